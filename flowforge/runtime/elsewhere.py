"""The models beyond this machine that a workflow may ask: its own, and those of flowforge.toml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flowforge.backends.elsewhere import Elsewhere
from flowforge.configuration import configuration_for
from flowforge.language.models import models_of
from flowforge.runtime.graph import programs_of

if TYPE_CHECKING:
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
    return Elsewhere(
        {**declared, **configuration.models}, configuration.routes, None in models_of(program)
    )


def elsewhere_in(folder: Path) -> Elsewhere:
    """What a flow in a folder may ask. Raises WorkflowError WF537, WF538."""
    configuration = configuration_for(folder)
    return Elsewhere(configuration.models, configuration.routes)
