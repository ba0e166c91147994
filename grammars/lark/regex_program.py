"""A regex as instructions: read a character, go on in several ways in order, check a condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from flowforge.grammars.lark.regex_tree import Branch, Chars, Look, Repeat, Sequence

if TYPE_CHECKING:
    from flowforge.grammars.lark.character_set import CharacterSet
    from flowforge.grammars.lark.regex_tree import Regex

_MAX_WAYS = 20_000


class TooLarge(Exception):
    """What is computed of a regex grows past what it is worth."""


@dataclass(frozen=True, slots=True)
class Take:
    """Read a character and go on."""

    chars: CharacterSet
    next: int


@dataclass(frozen=True, slots=True)
class Fork:
    """Go on at each of these, in order."""

    nexts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """Begin a round of a loop, or leave it; from `Again`, a round that took no text leaves it."""

    nexts: tuple[int, ...]
    then: int


@dataclass(frozen=True, slots=True)
class Again:
    """The end of a round of the loop at this place."""

    loop: int


@dataclass(frozen=True, slots=True)
class Check:
    """Go on under a condition."""

    look_idx: int
    next: int


Step: TypeAlias = "Take | Fork | Loop | Again | Check"


class Program:
    """A regex as instructions; the last of them is the end of a match."""

    def __init__(self, regex: Regex, max_size: int) -> None:
        self.steps: list[Step | None] = [None]
        self.looks: list[Look] = []
        self._max_size = max_size
        self.start = self._add(regex, 0)

    def after_round(self, loop: int, begun: frozenset[int]) -> int:
        """Where a round of a loop leads. begun: loops whose round has taken no text so far."""
        step = self.steps[loop]
        assert isinstance(step, Loop)
        return step.then if loop in begun else loop

    def _emit(self, step: Step) -> int:
        if len(self.steps) >= self._max_size:
            raise TooLarge
        self.steps.append(step)
        return len(self.steps) - 1

    def _add(self, regex: Regex, then: int) -> int:
        """Put a regex before a place; gives its own place."""
        match regex:
            case Chars(chars):
                return self._emit(Take(chars, then))
            case Sequence(parts):
                for part in reversed(parts):
                    then = self._add(part, then)
                return then
            case Branch(parts):
                return self._emit(Fork(tuple(self._add(part, then) for part in parts)))
            case Look():
                self.looks.append(regex)
                return self._emit(Check(len(self.looks) - 1, then))
            case Repeat():
                return self._repeat(regex, then)

    def _repeat(self, repeat: Repeat, then: int) -> int:
        if repeat.most is None:
            place = self._emit(Loop((), then))
            body = self._add(repeat.part, self._emit(Again(place)))
            self.steps[place] = Loop(_choice(repeat, body, then), then)
        else:
            place = then
            for _ in range(repeat.most - repeat.least):
                again = self._add(repeat.part, place)
                place = self._emit(Fork(_choice(repeat, again, then)))
        for _ in range(repeat.least):
            place = self._add(repeat.part, place)
        return place


def _choice(repeat: Repeat, again: int, then: int) -> tuple[int, int]:
    return (then, again) if repeat.is_lazy else (again, then)


def successors_of(
    regex: Regex, max_size: int
) -> tuple[dict[int, dict[int, int]], dict[int, CharacterSet]]:
    """For each place that reads a character, the places that may read the next.

    A number says in how many ways (2 for two or more); conditions are taken to be fulfilled. Also
    what each place reads. Raises TooLarge.
    """
    program = Program(regex, max_size)
    takes = {idx: step for idx, step in enumerate(program.steps) if isinstance(step, Take)}
    successors = {place: _reached(program, step.next) for place, step in takes.items()}
    return successors, {place: step.chars for place, step in takes.items()}


def _reached(program: Program, place: int) -> dict[int, int]:
    found: dict[int, int] = {}
    todo = [(place, frozenset[int]())]
    num_seen = 0
    while todo:
        place, begun = todo.pop()
        num_seen += 1
        if num_seen > _MAX_WAYS:
            raise TooLarge
        match program.steps[place]:
            case Take():
                found[place] = min(2, found.get(place, 0) + 1)
            case Fork(nexts):
                todo.extend((next, begun) for next in nexts)
            case Loop(nexts):
                todo.extend((next, begun | {place}) for next in nexts)
            case Again(loop):
                todo.append((program.after_round(loop, begun), begun))
            case Check(_, next):
                todo.append((next, begun))
            case None:
                pass
    return found
