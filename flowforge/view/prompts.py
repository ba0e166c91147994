"""Prompts as models read them: control tokens, words of the template, values and other texts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from flowforge.view.turns import told_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flowforge.backends.notices import PromptPart
    from flowforge.journal.records import WorkRow
    from flowforge.view.run_view import RunView

PromptKind = Literal["special", "template", "value", "plain"]
PromptText: TypeAlias = tuple[PromptKind, str]


def prompt_texts(
    parts: Sequence[PromptPart], request: Mapping[str, Any] | None
) -> Iterator[PromptText]:
    """A rendered prompt with the values in it told apart.

    parts: as `StepPrompted` has them. request: `WorkRow.request` of the same turn; where it is not
    known, values are not either.
    """
    waiting = [] if request is None else [*_said(request)]
    for kind, text in parts:
        if kind == "content":
            yield from _with_values(text, waiting)
        else:
            yield kind, text


def generations(works: Sequence[WorkRow]) -> list[WorkRow]:
    """The turns that a model was asked for."""
    return [work for work in works if work.kind == "generation"]


def prompts_of(
    view: RunView, path: str, turns: Sequence[WorkRow]
) -> list[Sequence[PromptPart] | None]:
    """The rendered prompt of each turn of a path; None for one that nobody told.

    turns: see `generations`. Runs of older versions told none, nor do answers of the step cache.
    """
    waiting = [*view.prompts.get(path, ())]
    found: list[Sequence[PromptPart] | None] = []
    for work in turns:
        request = cast("dict[str, Any]", work.request)
        at = next((idx for idx, parts in enumerate(waiting) if _says(parts, request)), None)
        found.append(None if at is None else waiting[at])
        del waiting[: 0 if at is None else at + 1]
    return found


def continued_paths(
    path: str | None, view: RunView, works_at: Callable[[str], Sequence[WorkRow]]
) -> list[str]:
    """The steps whose conversation `path` is the end of, the first one first."""
    found: list[str] = []
    while path is not None and path not in found:
        found.append(path)
        turns = generations(works_at(path))
        if turns:
            before = cast("dict[str, Any]", turns[0].request)["continues"]
        else:
            step = view.picture.steps.get(path)
            before = None if step is None else step.continues
        path = before
    return found[::-1]


def _says(parts: Sequence[PromptPart], request: Mapping[str, Any]) -> bool:
    """Whether all that is said in a request is in a prompt; of results the form is not known."""
    content = "\n".join(text for kind, text in parts if kind == "content")
    return all(
        str(turn["text"]).strip() in content for turn in request.get("said", ()) if "text" in turn
    )


def _said(request: Mapping[str, Any]) -> Iterator[tuple[PromptText, ...]]:
    """What the messages of a request say, in order."""
    if request.get("system") is not None:
        yield (("plain", str(request["system"])),)
    for turn in request.get("said", ()):
        if "results" in turn:
            for result in turn["results"]:
                is_text = isinstance(result, str)
                yield (("value", result if is_text else json.dumps(result, ensure_ascii=False)),)
        else:
            pieces = told_turn(turn).pieces
            yield tuple(("value" if is_value else "plain", text) for is_value, text in pieces)


def _with_values(text: str, waiting: list[tuple[PromptText, ...]]) -> Iterator[PromptText]:
    """The content of a message. waiting: what is said next; what is found is taken away.

    A template may strip a text, and a backend may put words around it, as those about tools.
    """
    rest = text
    while rest:
        places = (_place(said, rest) for said in waiting)
        found = next(((idx, at) for idx, at in enumerate(places) if at is not None), None)
        if found is None:
            yield "plain", rest
            return
        idx, at = found
        said = _stripped(waiting[idx]) if _whole(waiting[idx]) not in rest else waiting[idx]
        del waiting[: idx + 1]
        if at:
            yield "plain", rest[:at]
        yield from (piece for piece in said if piece[1])
        rest = rest[at + len(_whole(said)) :]


def _place(said: tuple[PromptText, ...], text: str) -> int | None:
    """Where a message stands in a text: all of it, or whole words of it."""
    whole = _whole(said)
    if whole == text:
        return 0
    if whole not in text:
        whole = whole.strip()
    at = text.find(whole) if whole else -1
    while at >= 0:
        before, behind = text[:at][-1:], text[at + len(whole) :][:1]
        if not before.isalnum() and not behind.isalnum():
            return at
        at = text.find(whole, at + 1)
    return None


def _whole(said: tuple[PromptText, ...]) -> str:
    return "".join(piece for _, piece in said)


def _stripped(said: tuple[PromptText, ...]) -> tuple[PromptText, ...]:
    """The pieces without the white space at both ends."""
    whole = _whole(said)
    start, end = len(whole) - len(whole.lstrip()), len(whole.rstrip())
    found: list[PromptText] = []
    at = 0
    for kind, piece in said:
        found.append((kind, piece[max(0, start - at) : max(0, end - at)]))
        at += len(piece)
    return tuple(found)
