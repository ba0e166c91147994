"""The step cache: what decides a work's result, and results that are taken instead of a work.

A key is made of named parts, so that a miss can say which of them is another one than before.
"""

from __future__ import annotations

import inspect
import json
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, cast

import anyio.to_thread

from flowforge.backends.protocol import Usage
from flowforge.journal.contents import digest_of
from flowforge.journal.records import WorkRow
from flowforge.journal.step_cache import CachedResult
from flowforge.runtime.commands import Answered, Returned, StartCall, StartGeneration
from flowforge.runtime.definitions import digest_of_part, static_path
from flowforge.runtime.recording import report_of, request_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from flowforge.journal.writer import JournalWriter
    from flowforge.language.program import JsonValue
    from flowforge.runtime.recording import Recorder
    from flowforge.runtime.run_journal import PastTurn

_SHORT = 60
# A revision tells a reader in words what is another one than before.
_SHORT_REVISION = 200
_IN_OTHER_PARTS = frozenset({"sampling", "offer", "options", "prefill"})

Cacheable = StartGeneration | StartCall
Result = Answered | Returned


@dataclass(frozen=True, slots=True)
class CacheNote:
    """What the cache had for a work. differs: parts of the key that the nearest result had other.

    reason: why there was none, "" for a hit.
    """

    path: str
    is_hit: bool
    reason: str = ""
    differs: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.is_hit:
            return f"cache {self.path}: hit"
        return f"cache {self.path}: miss, {self.reason}"


class StepCache:
    """The step cache as one run sees it. notes: what it had, work by work.

    is_seeded: whether somebody gave the run its seed; what is sampled is then of that seed.
    """

    def __init__(
        self, writer: JournalWriter, recorder: Recorder, *, is_seeded: bool = False
    ) -> None:
        self.is_seeded: bool = is_seeded
        self.notes: list[CacheNote] = []
        self._writer = writer
        self._recorder = recorder

    def only_one(self, parts: Mapping[str, str]) -> AbstractAsyncContextManager[None]:
        """Wait until no equal work runs, of this run or another one beside it."""
        return self._writer.flights.only_one(digest_of(dict(parts)))

    async def find(self, command: Cacheable, parts: Mapping[str, str]) -> Result | None:
        """The result of an equal work, if there is one that is young enough."""
        note, found = await anyio.to_thread.run_sync(self._find, command, parts)
        self.notes.append(note)
        return found

    async def keep(self, command: Cacheable, parts: Mapping[str, str], result: Result) -> None:
        """Keep what a work came to, unless it was cut off from its form or by a lack of room."""
        if isinstance(result, Answered) and not _is_whole(command, result):
            return
        entry = self._recorder.ended(result)
        assert entry is not None
        place = static_path(command.path)
        kept = CachedResult(
            *(digest_of(dict(parts)), place, parts, entry.kind),
            *(entry.result, entry.tokens, self._recorder.now()),
        )
        await anyio.to_thread.run_sync(self._writer.journal.keep_result, kept)

    def _find(
        self, command: Cacheable, parts: Mapping[str, str]
    ) -> tuple[CacheNote, Result | None]:
        journal, now, path = self._writer.journal, self._recorder.now(), command.path
        max_age_s = math.inf if command.cache_s is None else command.cache_s
        found = journal.cached(digest_of(dict(parts)), now)
        if found is None:
            return _missed(path, parts, journal.cached_at(static_path(path))), None
        age_s = now - found.created_at
        if age_s > max_age_s:
            return CacheNote(path, False, f"its result is {age_s:.0f} s old", ("age",)), None
        return CacheNote(path, True), _taken(found, path)


def parts_of_generation(
    command: StartGeneration, revision: str, chain: str, *, is_seeded: bool
) -> dict[str, str]:
    """What decides what a model writes. chain: see `chain_of`."""
    request = cast("dict[str, JsonValue]", request_of(command))
    asked = cast("dict[str, JsonValue]", request["request"])
    sampling = dict(cast("dict[str, JsonValue]", asked["sampling"]))
    drawn = sampling.pop("seed", None)
    if not sampling.get("temperature"):
        sample = "greedy"
    elif is_seeded or command.is_seeded:
        sample = f"seed {drawn}"
    else:
        # The seed of a run that was given none is another one each time: the place says which
        # sample this is. So branches and tries differ, and the next run has the same ones.
        sample = f"sample {command.path}"
    form = {name: value for name, value in asked.items() if name not in _IN_OTHER_PARTS}
    return {
        "model": _shown(revision, _SHORT_REVISION),
        "system": _shown(command.system),
        "conversation": chain,
        "prompt": _shown([request["said"], asked.get("prefill")]),
        "sampling": _shown(sampling),
        "sample": sample,
        "constraint": _shown([form, asked.get("options")]),
        "tools": _shown(asked.get("offer")),
    }


def parts_of_call(command: StartCall, function: Callable[..., object] | None) -> dict[str, str]:
    """What decides what a tool returns. function: of a Python tool, whose whole file counts."""
    return {
        "tool": _shown([command.tool.name, command.member, digest_of_part(command.tool)]),
        "source": _shown("" if function is None else _source_of(function)),
        "arguments": _shown(dict(command.arguments)),
    }


def chain_of(turns: Sequence[PastTurn]) -> str:
    """A hash of a conversation, from its beginning."""
    if not turns:
        return ""
    told = [
        [
            *(turn.system, turn.model, [asdict(one) for one in turn.said], turn.prefill),
            None if turn.offer is None else asdict(turn.offer),
            turn.done.text if turn.done.output_ids is None else list(turn.done.output_ids),
        ]
        for turn in turns
    ]
    return f"#{digest_of(cast('JsonValue', told))[:16]}"


def _is_whole(command: Cacheable, result: Answered) -> bool:
    """A cut answer that had a form is none; it would fail every later run too.

    One that was cut though nothing bounds it ended where the memory did: it may end elsewhere on a
    machine with more.
    """
    assert isinstance(command, StartGeneration)
    is_cut = result.done.finish_reason == "length"
    is_bounded = command.request.sampling.max_tokens is not None
    return not is_cut or (is_bounded and not command.request.has_form)


def _taken(found: CachedResult, path: str) -> Result:
    row = WorkRow(
        *(path, 0, found.kind, found.key, None, 1, found.created_at, 0, found.created_at),
        *("done", found.result, found.tokens),
    )
    report = report_of(row)
    assert isinstance(report, Answered | Returned)
    if isinstance(report, Answered):
        # Nothing was computed. The prompt's length stays: a conversation that is made again is held
        # to it.
        prompt_tokens = report.done.usage.prompt_tokens
        usage = Usage(prompt_tokens=prompt_tokens, reused_tokens=prompt_tokens)
        return replace(report, done=replace(report.done, usage=usage), is_cached=True)
    return replace(report, is_cached=True)


def _missed(path: str, parts: Mapping[str, str], others: list[CachedResult]) -> CacheNote:
    if not others:
        return CacheNote(path, False, "there is no result of this step yet")
    differing = [
        tuple(name for name in parts if other.parts.get(name) != parts[name]) for other in others
    ]
    nearest = min(range(len(others)), key=lambda idx: len(differing[idx]))
    told = "; ".join(
        f"{name} was {others[nearest].parts.get(name, 'absent')}, is {parts[name]}"
        for name in differing[nearest]
    )
    return CacheNote(path, False, told, differing[nearest])


def _source_of(function: Callable[..., object]) -> str:
    try:
        module = inspect.getmodule(function)
        return inspect.getsource(function if module is None else module)
    except (OSError, TypeError):
        # Compiled: it is known by its name alone.
        return repr(getattr(function, "__qualname__", type(function).__qualname__))


def _shown(value: JsonValue, most: int = _SHORT) -> str:
    """A part of a key: the value where it is short, else a hash of it. most: characters."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= most else f"#{digest_of(value)[:16]}"
