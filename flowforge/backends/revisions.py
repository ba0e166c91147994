"""What pins the model behind a backend, for results that are kept beyond a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.backends.protocol import Backend


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


async def revision_of(backend: Backend, model: str | None) -> str:
    """The revision of a backend's model; without one of its own, the names of both."""
    if isinstance(backend, Revisioned):
        return await backend.revision_of(model)
    return backend.name if model is None else f"{backend.name} {model}"
