"""What codes mean, why each comes about, an example and what to do; read when it is asked for.

The texts lie beside this module, one TOML file a family. Of each code there are:

    meaning          what it is, in a few words
    cause, fix       prose, with code between backticks
    example          prose, or one block under the name of its language: yaml, sh, python, …
    wrong, right     of a block: the one replaced by the other makes it right
    inputs, answers  of a yaml block whose problem only a run shows: what it is run with
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from flowforge.errors import WorkflowError
from flowforge.language.diagnostics import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.program import JsonValue

_FAMILIES = (
    *("WF0", "WF1", "WF2", "WF3", "WF4", "WF5", "WF6", "WF7", "TL"),
    *("EN1", "EN2", "EN3", "EN4", "EN7", "EN8", "EN9", "IN"),
)
_LANGUAGES = ("yaml", "sh", "python", "toml", "json", "lark", "text")
_MEANT = str.maketrans("OIL", "011")
_CODE = re.compile(r"\b(?:WF|TL|EN|IN)[0-9]{3}\b")


@dataclass(frozen=True, slots=True)
class Explanation:
    """One code.

    example, block: prose, and code in `language`; one of the two may be empty. wrong, right: the
    one replaced by the other makes the block right; both empty where so little does not mend it.
    """

    code: str
    meaning: str
    cause: str
    fix: str
    example: str = ""
    language: str = ""
    block: str = ""
    wrong: str = ""
    right: str = ""
    inputs: Mapping[str, JsonValue] | None = None
    answers: Mapping[str, JsonValue] | None = None

    @property
    def mended(self) -> str:
        """The block as it is right, or empty."""
        return self.block.replace(self.wrong, self.right) if self.wrong else ""


@dataclass(frozen=True, slots=True)
class Family:
    """Codes that begin alike, in order. prefix: how they begin."""

    prefix: str
    title: str
    explanations: tuple[Explanation, ...]


def changes(one: Explanation) -> list[str]:
    """The lines that differ between a block and the same as it is right, as `- …` and `+ …`."""
    before, after = one.block.splitlines(), one.mended.splitlines()
    while before and after and before[0] == after[0]:
        del before[0], after[0]
    while before and after and before[-1] == after[-1]:
        del before[-1], after[-1]
    return [*(f"- {line}" for line in before), *(f"+ {line}" for line in after)]


def how_it_is_run(inputs: Mapping[str, JsonValue]) -> str:
    """The command that runs a block, saved as example.yaml, with its inputs."""
    words = [f"-i {shlex.quote(f'{name}={_shown(value)}')}" for name, value in inputs.items()]
    return " ".join(["flowforge run example.yaml", *words])


def _shown(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def families() -> tuple[Family, ...]:
    """All codes."""
    return tuple(map(_read, _FAMILIES))


def explain(word: str) -> Explanation:
    """A code, which may be written small, or stand in a message: `error[WF202]: …`.

    Raises WorkflowError WF519 for what is no code, with the near miss.
    """
    shown = word.upper()
    found = _CODE.search(shown)
    code = shown if found is None else found[0]
    for prefix in _FAMILIES:
        if code.startswith(prefix):
            for one in _read(prefix).explanations:
                if one.code == code:
                    return one
    known = [one.code for family in families() for one in family.explanations]
    raise WorkflowError(
        "WF519",
        f"there is no code {word[:60]!r}",
        help=did_you_mean(
            code[:2] + code[2:].translate(_MEANT), known, "'flowforge explain' lists all codes"
        ),
    )


@functools.cache
def _read(prefix: str) -> Family:
    file = resources.files("flowforge.language.codes").joinpath(f"{prefix}.toml")
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    title: str = table.pop("title")
    return Family(prefix, title, tuple(_explanation(code, told) for code, told in table.items()))


def _explanation(code: str, told: dict[str, Any]) -> Explanation:
    language = next((one for one in _LANGUAGES if one in told), "")
    texts = {name: text for name, text in told.items() if name != language}
    return Explanation(code, **texts, language=language, block=told.get(language, ""))
