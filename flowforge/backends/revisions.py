"""What pins the model behind a backend, for results that are kept beyond a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.backends.protocol import Backend
    from flowforge.engine.config import Dtype
    from flowforge.engine.statistics import ComputeStatistics


@runtime_checkable
class Revisioned(Protocol):
    """A backend that can tell one state of a model from another."""

    async def revision_of(self, model: str | None) -> str:
        """A text that is another one when the model may answer otherwise; None: its own model."""
        ...


def fingerprint(directory: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a model's files: reading gigabytes would cost more than a step."""
    files = [path for path in sorted(directory.iterdir()) if path.is_file()]
    stats = [(path.name, path.stat()) for path in files]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def arithmetic_of(compute: ComputeStatistics, asked: Dtype, context_len: int) -> str:
    """How an engine comes to its numbers, as far as that decides what a model says.

    compute: of the engine. asked: the dtype in its settings. context_len: what it was loaded for.
    Settled values count, not what was asked for: `auto` that came to bfloat16 is bfloat16.

    In it is what makes other numbers: the type of activations, what is rounded beside them
    (activations by products of integers, weights to float8), how KV is kept, the context, by which
    positions may turn otherwise; and whether bits are promised, since a result that came about
    without the promise would break it. Left out is what only sums the same numbers in another
    order, as any other step beside does too (threads, kernels, device, split, shared reads), and
    what changes no token at all (pages, guesses, overlap, graphs).
    """
    said = [compute.dtype]
    if compute.is_deterministic:
        said.append("deterministic")
    if asked in ("int4", "int8") and compute.device == "cpu":
        said.append("products of integers")
    if asked == "float8":
        said.append("weights in float8")
    if compute.kv_dtype != compute.dtype:
        said.append(f"KV in {compute.kv_dtype}")
    return ", ".join([*said, f"context {context_len}"])


async def revision_of(backend: Backend, model: str | None) -> str:
    """The revision of a backend's model; without one of its own, the names of both."""
    if isinstance(backend, Revisioned):
        return await backend.revision_of(model)
    return backend.name if model is None else f"{backend.name} {model}"
