"""The programs of a workload as workflows: what an author would write, one step a call.

A call is a `gen` step. A prompt that begins with all that an earlier call read and wrote goes on
with its conversation (`from`); what another call wrote stands in it as `${ … }`; a wait behind a
call is a tool, and what the next prompt says first is what the tool returns. Texts are inputs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge.bench.program_calls import MOST_CANDIDATES, Continued, Output, Segment
from flowforge.bench.token_text import text_of
from flowforge.language.loader import load_text, require_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from flowforge.bench.program_calls import Call, Part, Texts, Workload
    from flowforge.language.program import JsonValue, Program

_TOOL = {"python": "flowforge.bench.waiting_tool:look_up", "effect": "read"}


@dataclass(frozen=True, slots=True)
class ProgramWorkflow:
    """A program to be run. number: as in its calls. arrival_s: not before this time.

    continued: of calls that go on with the conversation of another one, which that is.
    """

    number: int
    arrival_s: float
    program: Program
    inputs: Mapping[str, JsonValue]
    continued: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Of a prompt: so many first tokens of a segment, or of what a call wrote."""

    source: Segment | int
    num_tokens: int


def step_of(call_idx: int) -> str:
    """The name of the step that makes a call."""
    return f"call_{call_idx}"


def tool_step_of(call_idx: int) -> str:
    """The name of the step that waits for the tool behind a call."""
    return f"tool_{call_idx}"


def workflows_of(workload: Workload, texts: Texts, temperature: float) -> list[ProgramWorkflow]:
    """All programs, in their order. texts: of segments. temperature: of all calls."""
    calls: dict[int, list[Call]] = {}
    for call in workload.calls:
        calls.setdefault(call.program, []).append(call)
    return [
        _Writer(workload, calls[number], texts, temperature).workflow(number) for number in calls
    ]


class _Writer:
    """Writes the workflow of one program. calls: its own."""

    def __init__(
        self, workload: Workload, calls: Sequence[Call], texts: Texts, temperature: float
    ) -> None:
        self._workload = workload
        self._calls = calls
        self._texts = texts
        self._temperature = temperature
        self._inputs: dict[_Piece, str] = {}
        self._prompts: dict[int, tuple[_Piece, ...]] = {}
        for call in calls:
            self._prompts[call.idx] = tuple(self._pieces(call.parts))
        self._continued: dict[int, int] = {}
        self._results: dict[int, _Piece | None] = {}
        for call in calls:
            for idx in call.needs:
                if workload.calls[idx].wait_s and self._results.get(idx) is None:
                    self._results[idx] = self._behind(idx, self._prompts[call.idx])

    def workflow(self, number: int) -> ProgramWorkflow:
        """The whole of it."""
        steps: dict[str, object] = {}
        for call in self._calls:
            steps[step_of(call.idx)] = self._step(call)
            if call.idx in self._results:
                steps[tool_step_of(call.idx)] = self._tool_step(call)
        whole = {
            "flowforge": 1,
            "name": self._workload.name,
            "inputs": dict.fromkeys(self._inputs.values(), "string"),
            "tools": {"look_up": _TOOL} if self._results else {},
            "steps": steps,
        }
        program = require_program(load_text("\n".join(_yaml(whole)), str(Path(__file__))))
        arrival_s = min(call.arrival_s for call in self._calls)
        inputs = {name: self._text_of(piece) for piece, name in self._inputs.items()}
        return ProgramWorkflow(number, arrival_s, program, inputs, self._continued)

    # -- prompts ----------------------------------------------------------------------------------

    def _pieces(self, parts: Sequence[Part]) -> list[_Piece]:
        pieces: list[_Piece] = []
        for part in parts:
            if isinstance(part, Segment):
                pieces.append(_Piece(part, part.num_tokens))
            elif isinstance(part, Output):
                pieces.append(self._written(part.call_idx))
            else:
                pieces += self._first_of(part)
        return pieces

    def _first_of(self, part: Continued) -> list[_Piece]:
        """What a call has read and written, as far as its conversation goes on."""
        whole = self._whole(part.call_idx)
        num_left = sum(piece.num_tokens for piece in whole)
        if part.num_tokens is not None:
            num_left = min(num_left, part.num_tokens)
        pieces: list[_Piece] = []
        for piece in whole:
            num_tokens = min(piece.num_tokens, num_left)
            if num_tokens:
                pieces.append(_Piece(piece.source, num_tokens))
            num_left -= num_tokens
        return pieces

    def _whole(self, idx: int) -> tuple[_Piece, ...]:
        return (*self._prompts[idx], self._written(idx))

    def _written(self, idx: int) -> _Piece:
        return _Piece(idx, self._workload.calls[idx].num_output)

    def _behind(self, idx: int, pieces: Sequence[_Piece]) -> _Piece | None:
        """The text that comes behind what a call wrote, which its tool must have returned."""
        for piece, following in pairwise(pieces):
            if piece == self._written(idx) and isinstance(following.source, Segment):
                return following
        return None

    def _text_of(self, piece: _Piece) -> str:
        assert isinstance(piece.source, Segment), "only texts that nobody writes are inputs"
        return text_of(self._texts.draw(piece.source)[: piece.num_tokens])

    # -- steps ------------------------------------------------------------------------------------

    def _step(self, call: Call) -> dict[str, object]:
        step: dict[str, object] = {}
        pieces, used = self._prompts[call.idx], set[str]()
        source = max(
            (idx for idx in call.needs if self._is_continued(idx, pieces)),
            key=lambda idx: len(self._prompts[idx]),
            default=None,
        )
        if source is not None:
            self._continued[call.idx] = source
            step["from"] = step_of(source)
            used.add(step_of(source))
        start = 0 if source is None else len(self._whole(source))
        texts = [self._said(call, pieces, place, used) for place in range(start, len(pieces))]
        step["user"] = "".join(texts)
        awaited = {self._awaited(idx) for idx in call.needs} - used
        if awaited:
            step["after"] = sorted(awaited)
        step["gen"] = {
            # Where only a prompt is to be computed, as for scoring, one token is asked for.
            "max_tokens": max(1, call.num_output),
            "temperature": self._temperature,
            "top_k": MOST_CANDIDATES,
            "seed": call.idx,
        }
        return step

    def _is_continued(self, idx: int, pieces: tuple[_Piece, ...]) -> bool:
        """Whether a prompt begins with all that a call read and wrote, and says something more."""
        whole = self._whole(idx)
        return len(pieces) > len(whole) and pieces[: len(whole)] == whole

    def _said(self, call: Call, pieces: Sequence[_Piece], place: int, used: set[str]) -> str:
        """What stands for a piece of a prompt. used: gets the step whose value it is."""
        piece = pieces[place]
        before = pieces[place - 1].source if place else None
        if isinstance(before, int) and before in call.needs and self._results.get(before) == piece:
            used.add(tool_step_of(before))
            return f"${{ {tool_step_of(before)} }}"
        if isinstance(piece.source, Segment):
            return f"${{ inputs.{self._input(piece)} }}"
        used.add(step_of(piece.source))
        is_whole = piece == self._written(piece.source)
        cut = "" if is_whole else f' | truncate({piece.num_tokens}, "")'
        return f"${{ {step_of(piece.source)}{cut} }}"

    def _tool_step(self, call: Call) -> dict[str, object]:
        result = self._results[call.idx]
        text = "" if result is None else f"${{ inputs.{self._input(result)} }}"
        arguments = {"seconds": call.wait_s, "text": text}
        return {"call": "look_up", "with": arguments, "after": step_of(call.idx)}

    def _awaited(self, idx: int) -> str:
        """The step that must have ended before a call which needs that one."""
        return tool_step_of(idx) if idx in self._results else step_of(idx)

    def _input(self, piece: _Piece) -> str:
        return self._inputs.setdefault(piece, f"text_{len(self._inputs)}")


def _yaml(mapping: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """The lines of a mapping in block style, which is read several times as quick as JSON."""
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{key}:"
            yield from _yaml(value, indent + "  ")
        else:
            yield f"{indent}{key}: {json.dumps(value)}"
