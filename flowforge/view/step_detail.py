"""All that is known of one step: tries, prompts with their values, constraint, answer, calls."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from flowforge.view.constraint_state import constraint_state
from flowforge.view.printable import printable, without_loose_joiners
from flowforge.view.prompts import continued_paths, generations, prompt_texts, prompts_of
from flowforge.view.step_tree import tries_of
from flowforge.view.texts import clock_text, tokens_text, value_text
from flowforge.view.turns import told_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from flowforge.backends.notices import PromptPart
    from flowforge.journal.records import WorkRow
    from flowforge.runtime.picture import StepPicture
    from flowforge.view.run_view import RunView

Kind = Literal[
    "heading", "plain", "dim", "value", "special", "template", "shared", "output", "error", "good"
]

WorksAt: TypeAlias = "Callable[[str], Sequence[WorkRow]]"
"""What the journal has of a path."""

_CLOCK_S = 0.5
"""By how much two clocks may differ."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A text of one kind; printable, with line feeds. A new line begins where it says so.

    Of prompts: "value" is what an expression put there, "special" a control token, "template" other
    words of the chat template, "shared" what the step reads of the conversation that it continues.
    """

    kind: Kind
    text: str
    begins_line: bool = True


def detail_of(view: RunView, path: str, works_at: WorksAt) -> list[Piece]:
    """A step from its first try to its last."""
    pieces: list[Piece] = []
    for step in tries_of(view.picture, path):
        works = _begun_works(view, step, works_at(step.path))
        pieces += _about(view, step)
        pieces += _shared(view, step, works_at)
        pieces += _asked(view, step, works)
        pieces += _outcome(view, step)
        pieces += _calls(view, step.path)
    return [
        Piece(one.kind, without_loose_joiners(printable(one.text)), one.begins_line)
        for one in pieces
    ]


def _begun_works(view: RunView, step: StepPicture, works: Sequence[WorkRow]) -> list[WorkRow]:
    """Those that had begun by the time that is seen, as far as clocks tell."""
    if step.ended_s is not None or not works or any(work.num_starts > 1 for work in works):
        return [*works]
    elapsed_s = view.time_s - step.started_s + _CLOCK_S
    return [work for work in works if work.started_at - works[0].started_at <= elapsed_s]


def _about(view: RunView, step: StepPicture) -> Iterator[Piece]:
    yield Piece("heading", step.path)
    state = view.activity_of(step) or step.status
    end_s = view.time_s if step.ended_s is None else step.ended_s
    yield Piece(
        "plain",
        f"{step.verb or 'step'}: {state}, begun at {clock_text(step.started_s)}, "
        f"{end_s - step.started_s:.1f} s",
    )
    if step.continues is not None:
        yield Piece("plain", f"continues {step.continues}: shares its prefix")
    if step.path in view.prompts or step.continues in view.prompts:
        yield from _legend()
    usage = step.usage
    if usage is not None:
        yield Piece(
            "plain",
            f"prompt {tokens_text(usage.prompt_tokens)}: {usage.reused_tokens:,} shared, "
            f"{usage.prefilled_tokens:,} computed; written {tokens_text(usage.generated_tokens)}, "
            f"TTFT {usage.ttft_s * 1000:.0f} ms, {usage.total_s:.1f} s",
        )
    if step.finish_reason == "length":
        yield Piece("error", "cut off at max_tokens")
    if step.question is not None:
        yield Piece("heading", "Question")
        yield Piece("plain", step.question.prompt)
        if step.question.show is not None:
            yield Piece("value", value_text(step.question.show))
        yield from (Piece("plain", f"- {choice}") for choice in step.question.choices)


def _shared(view: RunView, step: StepPicture, works_at: WorksAt) -> Iterator[Piece]:
    """The conversation that a step continues, as it reads it."""
    if step.continues is None or step.continues == step.path:
        return
    for path in continued_paths(step.continues, view, works_at):
        yield Piece("heading", f"Shared prefix, from {path}")
        turns = generations(works_at(path))
        for work, parts in zip(turns, prompts_of(view, path, turns), strict=True):
            yield from _as_shared(_prompt(work, parts))
            result = cast("dict[str, Any] | None", work.result)
            if result is not None and "text" in result:
                yield from _answer(str(result["text"]), opens_turn=parts is None)
        if not turns:
            # It is seen from a file of events.
            known = view.prompts.get(path, [])
            for parts in known:
                yield from _as_shared(_parts_of(parts, None))
            yield from _answer(view.text_of(path), opens_turn=not known)


def _answer(text: str, *, opens_turn: bool) -> Iterator[Piece]:
    """What a model wrote. opens_turn: no template has said so before it."""
    if opens_turn:
        yield Piece("dim", "assistant ")
    yield Piece("shared", text, begins_line=False)


def _as_shared(pieces: Iterable[Piece]) -> Iterator[Piece]:
    for one in pieces:
        yield one if one.kind == "special" else Piece("shared", one.text, one.begins_line)


def _asked(view: RunView, step: StepPicture, works: Sequence[WorkRow]) -> Iterator[Piece]:
    """What was asked for, turn by turn."""
    turns = generations(works)
    told = prompts_of(view, step.path, turns)
    prompts = {work.turn: parts for work, parts in zip(turns, told, strict=True)}
    for work in works:
        if work.num_starts > 1:
            yield Piece("dim", f"started {work.num_starts} times: its process was cut")
        if work.kind == "call":
            request = cast("dict[str, Any]", work.request)
            yield Piece("heading", f"Call of {request['tool']}")
            yield Piece("value", json.dumps(request["arguments"], ensure_ascii=False, indent=2))
        elif work.kind == "generation":
            yield Piece("heading", "Prompt")
            yield from _prompt(work, prompts[work.turn])
            yield from _constraint(view, step, work)
    if not turns and step.path in view.prompts:
        yield Piece("heading", "Prompt")
        for parts in view.prompts[step.path]:
            yield from _parts_of(parts, None)


def _legend() -> Iterator[Piece]:
    """How the kinds look, each in its own look."""
    yield Piece("dim", "in prompts: ")
    yield Piece("special", "control tokens", begins_line=False)
    for kind, words in (("template", "the template's words"), ("value", "values")):
        yield Piece("dim", ", ", begins_line=False)
        yield Piece(cast("Kind", kind), words, begins_line=False)


def _prompt(work: WorkRow, parts: Sequence[PromptPart] | None) -> Iterator[Piece]:
    """The prompt of a turn: as the model reads it, or who says what, where that is all there is."""
    request = cast("dict[str, Any]", work.request)
    if parts is not None:
        yield from _parts_of(parts, request)
        return
    if request.get("system") is not None:
        yield Piece("dim", "system ")
        yield Piece("plain", str(request["system"]), begins_line=False)
    for turn_told in map(told_turn, request.get("said", ())):
        yield Piece("dim", f"{turn_told.role} ")
        for is_value, text in turn_told.pieces:
            yield Piece("value" if is_value else "plain", text, begins_line=False)


def _parts_of(parts: Sequence[PromptPart], request: dict[str, Any] | None) -> Iterator[Piece]:
    begins_line = True
    for kind, text in prompt_texts(parts, request):
        yield Piece(kind, text, begins_line)
        begins_line = False


def _constraint(view: RunView, step: StepPicture, work: WorkRow) -> Iterator[Piece]:
    """The form of an answer, and how far the text that is seen has come in it."""
    request = cast("dict[str, Any]", work.request)
    text = _written(view, step, work)
    state = constraint_state(request.get("request", {}), text)
    if state is None:
        return
    yield Piece("heading", "Constraint")
    yield Piece("plain", state.name)
    usage = step.usage
    if usage is not None and usage.forced_tokens and usage.generated_tokens:
        share = usage.forced_tokens / usage.generated_tokens
        yield Piece(
            "plain",
            f"forced {usage.forced_tokens:,} of {tokens_text(usage.generated_tokens)} "
            f"({share:.0%}): nothing else could follow there",
        )
    if state.num_taken is not None and state.num_taken < len(text):
        yield Piece("error", f"taken up to character {state.num_taken:,} of {len(text):,}")
    if state.may_end is not None:
        kind: Kind = "good" if state.may_end else "plain"
        yield Piece(kind, "a whole answer" if state.may_end else "not a whole answer yet")
        yield Piece("plain", f"next: {state.following}")


def _written(view: RunView, step: StepPicture, work: WorkRow) -> str:
    """What was written by the time that is seen: values of a recording are not as written."""
    result = cast("dict[str, Any] | None", work.result)
    if step.ended_s is not None and work.status == "done" and result is not None:
        return str(result["text"])
    text = view.texts.get(step.path)
    return "" if text is None else text.kept


def _outcome(view: RunView, step: StepPicture) -> Iterator[Piece]:
    text = view.text_of(step.path)
    if text:
        yield Piece("heading", "Output" if step.ended_s is not None else "Output so far")
        yield Piece("output", _pretty(text) if step.ended_s is not None else text)
    if step.failure is not None:
        caught = "Caught" if step.is_caught else "Failed"
        yield Piece("heading", caught)
        yield Piece("error", f"{step.failure.message} [{step.failure.code}]")
        if step.failure.help is not None:
            yield Piece("plain", f"help: {step.failure.help}")
    if step.next_path is not None:
        yield Piece("plain", f"tried again as {step.next_path}")


def _calls(view: RunView, path: str) -> Iterator[Piece]:
    for call_path, use in view.calls.items():
        if not call_path.startswith(f"{path}/"):
            continue
        yield Piece("heading", f"Tool call {call_path.removeprefix(f'{path}/')}")
        yield Piece("value", json.dumps(dict(use.call.arguments), ensure_ascii=False, indent=2))
        if use.result is None or use.returned_s is None:
            yield Piece("dim", "no result yet")
            continue
        kind: Kind = "error" if use.result.is_error else "good"
        yield Piece(kind, f"after {use.returned_s - use.called_s:.1f} s")
        yield Piece("plain", value_text(use.result.result))


def _pretty(text: str) -> str:
    """JSON indented, anything else as it is."""
    if text[:1] not in {"{", "["}:
        return text
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    except ValueError:
        return text
