"""Workloads: programs of calls whose prompts are made of pieces that several of them share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

Ids: TypeAlias = "tuple[int, ...]"

MOST_CANDIDATES = 64
"""Of which a call draws its next token.

Random weights find all tokens about equally likely; to order a whole vocabulary takes long.
"""


@dataclass(frozen=True, slots=True)
class Segment:
    """A text: the same key and length are the same tokens wherever they stand."""

    key: Hashable
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Output:
    """What an earlier call wrote. call_idx: its place among the calls of the workload."""

    call_idx: int


@dataclass(frozen=True, slots=True)
class Continued:
    """The prompt of an earlier call and what it wrote: its conversation goes on.

    num_tokens: only so many of them, where a context was cut; None for all.
    """

    call_idx: int
    num_tokens: int | None = None


Part: TypeAlias = Segment | Output | Continued


@dataclass(frozen=True, slots=True)
class Call:
    """One generation. needs: calls that must have ended before.

    parts: what its prompt is made of. num_output: tokens it writes; 0 only computes the prompt, as
    scoring does. wait_s: between its end and the start of those that need it, for a tool.
    arrival_s: not before this time of the run.
    """

    idx: int
    program: int
    parts: tuple[Part, ...]
    num_output: int
    needs: tuple[int, ...] = ()
    wait_s: float = 0.0
    arrival_s: float = 0.0


@dataclass(slots=True)
class Workload:
    """Calls in an order in which each comes behind those it needs."""

    name: str
    calls: list[Call] = field(default_factory=list["Call"])

    def add(
        self,
        program: int,
        parts: Sequence[Part],
        num_output: int,
        needs: Sequence[int] = (),
        wait_s: float = 0.0,
        arrival_s: float = 0.0,
    ) -> int:
        """Add a call; returns its index."""
        idx = len(self.calls)
        self.calls.append(
            Call(idx, program, tuple(parts), num_output, tuple(needs), wait_s, arrival_s)
        )
        return idx

    @property
    def num_programs(self) -> int:
        """How many programs the calls belong to."""
        return len({call.program for call in self.calls})

    @property
    def critical_len(self) -> int:
        """Steps that the longest chain of calls takes at least: one for each output token.

        The first token comes with the prompt's last, and a prompt alone takes one step.
        """
        longest: list[int] = []
        for call in self.calls:
            before = max((longest[idx] for idx in call.needs), default=0)
            longest.append(before + max(1, call.num_output))
        return max(longest, default=0)

    def scaled(self, divisor: int, wait_factor: float) -> Workload:
        """The same with all lengths divided, none to nothing, and waits that much as long."""
        scaled = Workload(self.name)
        for call in self.calls:
            scaled.add(
                call.program,
                [_shortened(part, divisor) for part in call.parts],
                -(-call.num_output // divisor),
                call.needs,
                call.wait_s * wait_factor,
                call.arrival_s * wait_factor,
            )
        return scaled

    def first_programs(self, num_programs: int) -> Workload:
        """The same with the first so many programs only."""
        known = list(dict.fromkeys(call.program for call in self.calls))[:num_programs]
        kept = [call for call in self.calls if call.program in set(known)]
        place = {call.idx: idx for idx, call in enumerate(kept)}
        fewer = Workload(self.name)
        for call in kept:
            needs = [place[idx] for idx in call.needs]
            parts = [_moved(part, place) for part in call.parts]
            fewer.add(call.program, parts, call.num_output, needs, call.wait_s, call.arrival_s)
        return fewer


def _moved(part: Part, place: Mapping[int, int]) -> Part:
    if isinstance(part, Segment):
        return part
    return replace(part, call_idx=place[part.call_idx])


def _shortened(part: Part, divisor: int) -> Part:
    if isinstance(part, Segment) or (isinstance(part, Continued) and part.num_tokens is not None):
        assert part.num_tokens is not None, "a segment has a length"
        return replace(part, num_tokens=-(-part.num_tokens // divisor))
    return part


@dataclass(slots=True)
class Texts:
    """The tokens of a workload as far as they are known. draw: those of a segment."""

    draw: Callable[[Segment], Ids]
    prompts: dict[int, Ids] = field(default_factory=dict[int, "Ids"])
    outputs: dict[int, Ids] = field(default_factory=dict[int, "Ids"])

    def known_prompt(self, call: Call) -> Ids:
        """The prompt up to the first part that is not known yet."""
        ids: list[int] = []
        for part in call.parts:
            if isinstance(part, Segment):
                ids += self.draw(part)
                continue
            output = self.outputs.get(part.call_idx)
            if isinstance(part, Continued):
                said = self.prompts.get(part.call_idx, ()) + (output or ())
                ids += said[: part.num_tokens]
                if output is None and (part.num_tokens is None or part.num_tokens > len(said)):
                    break
            elif output is None:
                break
            else:
                ids += output
        return tuple(ids)


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Of a workload: prompt tokens, output tokens, and prompt tokens that are distinct.

    A token is distinct when no prompt or output before it had the same with all the same before it;
    what is sampled last is not computed, and so counts for none.
    """

    prompt: int
    output: int
    unique: int


def count_tokens(workload: Workload, texts: Texts) -> TokenCounts:
    """Count when every prompt and output is known."""
    known: dict[tuple[int, int], int] = {}
    num_prompt = num_output = num_unique = 0
    for call in workload.calls:
        prompt, output = texts.prompts[call.idx], texts.outputs[call.idx]
        num_prompt += len(prompt)
        num_output += len(output)
        before, node = len(known), 0
        for token in prompt:
            node = known.setdefault((node, token), len(known) + 1)
        num_unique += len(known) - before
        for token in output[:-1]:
            node = known.setdefault((node, token), len(known) + 1)
    return TokenCounts(num_prompt, num_output, num_unique)


def with_unlike_tokens(workload: Workload) -> Texts:
    """Texts of the workload in which no two segments or outputs have a token in common."""
    drawn: dict[Segment, Ids] = {}
    num_drawn = 0

    def draw(segment: Segment) -> Ids:
        nonlocal num_drawn
        if segment not in drawn:
            drawn[segment] = tuple(range(num_drawn, num_drawn + segment.num_tokens))
            num_drawn += segment.num_tokens
        return drawn[segment]

    texts = Texts(draw)
    for call in workload.calls:
        texts.prompts[call.idx] = texts.known_prompt(call)
        texts.outputs[call.idx] = draw(Segment(("output", call.idx), call.num_output))
    return texts
