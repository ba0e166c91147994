"""Whether the answers that a program asks for have room in the model at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.errors import WorkflowError
from flowforge.language.program import Gen, Run, WrittenTurn
from flowforge.language.traversal import all_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.program import Program, Step


def require_room(program: Program, capacity: int) -> None:
    """Refuse what cannot fit whatever its prompt is, before anything runs.

    capacity: tokens that the run's own model has room for, prompt and answer together; steps on
    other models are left alone. Raises WorkflowError WF516 at the first step that asks for more.
    """
    for step, num_tokens in _asked_of_own_model(program):
        if num_tokens >= capacity:
            raise WorkflowError(
                "WF516",
                f"step {step.name!r} asks for up to {num_tokens:,} tokens, and the model has room "
                f"for {capacity:,} together with its prompt",
                location=step.location,
                help="lower 'max_tokens', or give the model more room: --context-len, --kv-memory",
            )


def _asked_of_own_model(program: Program) -> Iterator[tuple[Step, int]]:
    """Steps with the most tokens that they let the model write in one answer or turn."""
    for step in all_steps(program.steps.values()):
        if isinstance(step.verb, Run):
            yield from _asked_of_own_model(step.verb.program)
        elif isinstance(step.verb, Gen) and step.verb.model is None:
            turns = step.verb.turns if isinstance(step.verb.turns, tuple) else ()
            written = [turn.sampling for turn in turns if isinstance(turn, WrittenTurn)]
            asked = [one.max_tokens or 0 for one in (*written, step.verb.sampling)]
            yield step, max(asked)
