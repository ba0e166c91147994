"""What servers are asked: requests made by a seed, or recorded ones. The same seed, the same load.

Lengths are in words, which are about tokens: every server counts by its own tokenizer.
"""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from flowforge.errors import Location, WorkflowError

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.language.program import JsonValue

_WORDS = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world"),
    *("school", "state", "family", "student", "group", "country", "problem", "hand", "part"),
    *("place", "case", "week", "company", "system", "program", "question", "work", "number"),
    *("night", "point", "home", "water", "room", "mother", "area", "money", "story", "fact"),
    *("month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue"),
)
_FORM: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40},
        "score": {"type": "integer", "minimum": 0, "maximum": 10},
        "is_sure": {"type": "boolean"},
    },
    "required": ["title", "score", "is_sure"],
    "additionalProperties": False,
}
_FIXED = re.compile(r"(\d+)")
_RANGE = re.compile(r"(\d+)-(\d+)")
_LOG_NORMAL = re.compile(r"lognormal:(\d+):(\d+(?:\.\d+)?)")
_MAX_LEN = 1_000_000


@dataclass(frozen=True, slots=True)
class Length:
    """How long something is: a number, a range that is drawn from evenly, or log-normal.

    spec: '256', '100-400', or 'lognormal:256:0.5', a median and the deviation of its logarithm.
    """

    spec: str

    def draw(self, source: random.Random) -> int:
        """A length, at least 1. Raises WorkflowError WF535 for a spec that is none."""
        if match := _FIXED.fullmatch(self.spec):
            return self._checked(int(match[1]))
        if match := _RANGE.fullmatch(self.spec):
            low, high = int(match[1]), int(match[2])
            if low <= high:
                return self._checked(source.randint(low, high))
        if match := _LOG_NORMAL.fullmatch(self.spec):
            drawn = source.lognormvariate(math.log(max(1, int(match[1]))), float(match[2]))
            return self._checked(min(_MAX_LEN, round(drawn)) or 1)
        raise self._unusable()

    def _checked(self, length: int) -> int:
        if not 1 <= length <= _MAX_LEN:
            raise self._unusable()
        return length

    def _unusable(self) -> WorkflowError:
        return WorkflowError(
            "WF535",
            f"{self.spec[:60]!r} is no length",
            help="write 256, 100-400, or lognormal:256:0.5 (a median and a deviation)",
        )


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. body: all but the model and what streaming needs.

    at_s: seconds from the start; None where it comes as soon as there is room for it.
    """

    body: dict[str, JsonValue]
    at_s: float | None = None
    has_form: bool = False


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests made by a seed. input_len, output_len: in words, and in tokens at most.

    shared: the share of a prompt that its group has in common, as a system prompt; groups: how many
    such prompts there are. with_form: the share of requests that ask for JSON under a schema.
    rate: arrivals a second, Poisson; None leaves the times open.
    """

    num_requests: int
    input_len: Length = Length("256")
    output_len: Length = Length("64")
    shared: float = 0.0
    groups: int = 1
    with_form: float = 0.0
    rate: float | None = None
    seed: int = 0
    ignores_end: bool = False

    def asks(self) -> list[Ask]:
        """The requests, in their order."""
        source = random.Random(self.seed)
        prefixes = [random.Random(f"{self.seed} group {idx}") for idx in range(self.groups)]
        longest = [_text(prefix, 20_000) for prefix in prefixes] if self.shared else []
        at_s = 0.0
        asks: list[Ask] = []
        for idx in range(self.num_requests):
            if self.rate is not None:
                at_s += source.expovariate(self.rate)
            group = source.randrange(self.groups)
            num_words = self.input_len.draw(source)
            num_shared = min(20_000, round(num_words * self.shared))
            messages: list[JsonValue] = []
            if num_shared:
                told = " ".join(longest[group][:num_shared])
                messages.append({"role": "system", "content": told})
            own = " ".join(_text(source, max(1, num_words - num_shared)))
            messages.append({"role": "user", "content": f"{idx}: {own}"})
            body: dict[str, JsonValue] = {
                "messages": messages,
                "max_tokens": self.output_len.draw(source),
                "temperature": 0,
            }
            has_form = source.random() < self.with_form
            if has_form:
                form: JsonValue = {"name": "answer", "schema": _FORM, "strict": True}
                body["response_format"] = {"type": "json_schema", "json_schema": form}
            elif self.ignores_end:
                body["ignore_eos"] = True
            asks.append(Ask(body, None if self.rate is None else at_s, has_form))
        return asks


def recorded(path: Path, speed: float = 1.0) -> list[Ask]:
    """The chat requests of a recording (`serve --record`), as far apart as they were.

    speed: 2 is twice as fast. Raises WorkflowError WF535 for a file that is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise _bad_recording(path, 1, reason.lower()) from error
    asks: list[Ask] = []
    for number, line in enumerate(lines, 1):
        try:
            told: dict[str, Any] = json.loads(line)
            if not str(told["path"]).endswith("/chat/completions"):
                continue
            body = cast("dict[str, JsonValue]", dict(told["body"]))
            asks.append(Ask(_unserved(body), float(told["time_s"]) / speed, _has_form(body)))
        except (ValueError, KeyError, TypeError) as error:
            raise _bad_recording(path, number, f"{type(error).__name__}: {error}") from error
    if not asks:
        raise _bad_recording(path, 1, "it has no chat completions")
    asks.sort(key=lambda ask: ask.at_s or 0.0)
    first_s = asks[0].at_s or 0.0
    return [Ask(ask.body, (ask.at_s or 0.0) - first_s, ask.has_form) for ask in asks]


def _unserved(body: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """What was asked, without what the bench says itself."""
    own = ("model", "stream", "stream_options")
    return {name: value for name, value in body.items() if name not in own}


def _has_form(body: dict[str, JsonValue]) -> bool:
    form = body.get("response_format")
    return isinstance(form, dict) and form.get("type") != "text"


def _text(source: random.Random, num_words: int) -> list[str]:
    return source.choices(_WORDS, k=num_words)


def _bad_recording(path: Path, line: int, reason: str) -> WorkflowError:
    return WorkflowError(
        "WF535",
        f"the recording cannot be replayed: {reason}",
        location=Location(str(path), line, 1),
        help="give what 'flowforge serve --record FILE' wrote: a JSON object a line, with time_s, "
        "path and body",
    )
