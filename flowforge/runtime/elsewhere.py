"""The models beyond this machine that a workflow may ask: its own, and those of flowforge.toml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flowforge.backends.elsewhere import Elsewhere, is_elsewhere
from flowforge.configuration import configuration_for
from flowforge.errors import WorkflowError
from flowforge.language.models import models_of
from flowforge.runtime.graph import programs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowforge.backends.routing.route import Route
    from flowforge.language.program import Program
    from flowforge.language.remote_models import RemoteModel


def elsewhere_of(program: Program) -> Elsewhere:
    """What a program's steps may ask.

    What flowforge.toml says of a name goes before what the file itself says, so that one file runs
    on the servers of each place; the outermost file goes before those that it runs. Raises
    WorkflowError WF537, WF538.
    """
    configuration = configuration_for(Path(program.file).parent)
    declared: dict[str, RemoteModel] = {}
    for one in programs_of(program):
        declared = {**one.models, **declared}
    named = models_of(program)
    return Elsewhere(
        {**declared, **configuration.models},
        configuration.routes,
        None in named,
        tuple(name for name in named if name is not None and not is_elsewhere(name)),
    )


def elsewhere_of_all(programs: Sequence[Program]) -> Elsewhere:
    """What the programs of one folder may ask, together.

    Raises WorkflowError WF538 where two declare a model of one name differently.
    """
    models: dict[str, RemoteModel] = {}
    routes: dict[str, Route] = {}
    here: dict[str, None] = {}
    for program in programs:
        found = elsewhere_of(program)
        here.update(dict.fromkeys(found.here))
        routes.update(found.routes)
        for name, model in found.models.items():
            if models.setdefault(name, model) != model:
                raise WorkflowError(
                    "WF538",
                    f"{program.file!r} declares the model {name!r} otherwise than another workflow",
                    help="declare it once, in the flowforge.toml beside them",
                )
    return Elsewhere(models, routes, here=tuple(here))


def elsewhere_in(folder: Path) -> Elsewhere:
    """What a flow in a folder may ask. Raises WorkflowError WF537, WF538."""
    configuration = configuration_for(folder)
    return Elsewhere(configuration.models, configuration.routes)
