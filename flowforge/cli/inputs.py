"""The inputs of a run, from `--inputs FILE` and `-i NAME=VALUE` or `NAME=@FILE`; `-i` wins."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge.errors import WorkflowError
from flowforge.language.inputs import require_right
from flowforge.language.json_values import read_json
from flowforge.view.texts import reason_text

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from flowforge.language.program import JsonValue

# A hundred million tokens or so.
_MOST_BYTES = 256 << 20


def read_inputs(pairs: Sequence[str], file: Path | None) -> dict[str, JsonValue]:
    """The inputs as given. Raises WorkflowError WF520; WrongInputsError for several."""
    wrong: list[WorkflowError] = []
    given: dict[str, JsonValue] = {}
    named: dict[str, str] = {}
    if file is not None:
        with _noted(wrong):
            given = _read_file(file)
    for pair in pairs:
        with _noted(wrong):
            _take_pair(pair, named)
    for name, text in named.items():
        with _noted(wrong):
            given[name] = _content_of(name, text)
    require_right(wrong)
    return given


@contextmanager
def _noted(wrong: list[WorkflowError]) -> Generator[None]:
    try:
        yield
    except WorkflowError as error:
        wrong.append(error)


def _take_pair(pair: str, named: dict[str, str]) -> None:
    name, text = _split_pair(pair)
    if name in named:
        raise WorkflowError(
            "WF520",
            f"input {name!r} is given by two -i, {named[name]!r} and {text!r}",
            help='leave one out; a list is written as JSON: -i \'NAME=["a", "b"]\'',
        )
    named[name] = text


def _split_pair(pair: str) -> tuple[str, str]:
    name, equals, text = pair.partition("=")
    if not equals or not name:
        raise WorkflowError(
            "WF520", f"expected -i NAME=VALUE, got {pair!r}", help='for example -i topic="bicycles"'
        )
    return name, text


def _content_of(name: str, text: str) -> str:
    """`@FILE` is the text of a file; a text that begins with '@' is written with two."""
    if not text.startswith("@") or text.startswith("@@"):
        return text.removeprefix("@")
    try:
        # Line ends as they are: what a prompt holds is what the file holds.
        return _read_bounded(Path(text[1:])).decode("utf-8")
    except (OSError, ValueError) as error:
        raise WorkflowError(
            "WF520",
            f"the text of input {name!r} cannot be read from {text[1:]!r}: {reason_text(error)}",
            help=f"a text that begins with '@' is written with two: -i {name}=@@…",
        ) from error


def _read_bounded(file: Path) -> bytes:
    """Raises ValueError for more than any model reads, as of a device that has no end."""
    with file.open("rb") as opened:
        content = opened.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES >> 20} MB")
    return content


def _read_file(file: Path) -> dict[str, JsonValue]:
    try:
        given = read_json(_read_bounded(file).decode("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise WorkflowError(
            "WF520",
            f"the inputs file {str(file)!r} cannot be read: {reason_text(error)}",
            help='it holds one JSON object, for example { "topic": "bicycles" }',
        ) from error
    if not isinstance(given, dict):
        raise WorkflowError(
            "WF520",
            f"the inputs file {str(file)!r} must hold a JSON object, got {type(given).__name__}",
            help='for example { "topic": "bicycles" }',
        )
    return given
