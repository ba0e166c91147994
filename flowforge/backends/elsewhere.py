"""What a run may ask beside the engine of its process; nothing of the network is imported here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowforge.errors import WorkflowError
from flowforge.language.diagnostics import did_you_mean
from flowforge.language.remote_models import REMOTE, ROUTE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.backends.routing.route import Route
    from flowforge.language.remote_models import RemoteModel


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What may be asked beside the engine: servers' models, and routes, by name.

    needs_own: whether anything runs on the run's own model, so that it has to be there. here: the
    models of this machine that steps name, as far as steps are known.
    """

    models: Mapping[str, RemoteModel] = field(default_factory=dict[str, "RemoteModel"])
    routes: Mapping[str, Route] = field(default_factory=dict[str, "Route"])
    needs_own: bool = True
    here: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there are engines alone."""
        return not self.models and not self.routes

    def require(self, name: str) -> None:
        """Raise WorkflowError WF512 for a model or route that is not declared."""
        known = [*(REMOTE + one for one in self.models), *(ROUTE + one for one in self.routes)]
        if is_elsewhere(name) and name not in known:
            otherwise = f"there are: {', '.join(known) or 'none'}; see docs/backends.md"
            raise WorkflowError(
                "WF512",
                f"{name!r} is declared neither in flowforge.toml nor in the workflow",
                help=did_you_mean(name, known, otherwise),
            )


HERE = Elsewhere()


def is_elsewhere(model: str | None) -> bool:
    """Whether a model's name is that of a server's model or of a route."""
    return model is not None and model.startswith((REMOTE, ROUTE))
