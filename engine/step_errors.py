"""What the readers of a generation are told of an exception: a coded error that keeps no memory."""

from __future__ import annotations

import traceback

from flowforge.errors import EngineError, FlowForgeError


def reader_error(error: Exception, code: str, what: str) -> FlowForgeError:
    """The error to hand out for an exception that was caught in a step.

    Errors of FlowForge's own go through; others become the cause of an EngineError of this code.
    """
    drop_frames(error)
    if isinstance(error, FlowForgeError):
        return error
    told = EngineError(
        code,
        f"{what}: {type(error).__name__}: {error}",
        help="lower max_step_tokens or kv_bytes" if says_out_of_memory(error) else None,
    )
    told.__cause__ = error
    return told


def drop_frames(error: BaseException) -> None:
    """Turn an exception's traceback into a note.

    A traceback holds its frames, frames hold their callers, and so whoever keeps the error would
    keep the engine with its weights and pages.
    """
    if not isinstance(error, FlowForgeError):
        error.add_note("on the engine's thread:\n" + "".join(traceback.format_exception(error)))
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is not None and one.__traceback__ is not None:
            one.__traceback__ = None
            pending += [one.__cause__, one.__context__]


def says_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on the CPU or on an accelerator."""
    # By name: torch is not imported just to look at an error.
    is_accelerators = type(error).__name__ == "OutOfMemoryError"
    is_memory = isinstance(error, MemoryError) or "allocate memory" in str(error)
    return is_accelerators or is_memory
