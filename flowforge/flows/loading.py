"""The flow that `FILE.py:NAME` names."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from flowforge.errors import FlowForgeError, WorkflowError
from flowforge.flows.flow import Flow
from flowforge.language.diagnostics import did_you_mean

if TYPE_CHECKING:
    from types import ModuleType

AnyFlow: TypeAlias = "Flow[..., object]"


def load_flow(target: str) -> AnyFlow:
    """Import a file and take its flow; NAME may be left out when there is only one.

    The file's folder goes in front of `sys.path`, as when Python runs a file.
    Raises WorkflowError WF614, caused by what the file raised.
    """
    path, name = split_target(target)
    flows = {key: value for key, value in vars(_import(path)).items() if isinstance(value, Flow)}
    if not name and len(flows) == 1:
        return next(iter(flows.values()))
    if name in flows:
        return flows[name]
    known = ", ".join(flows)
    if not flows:
        message, help = f"{str(path)!r} has no flow", "decorate an async function with @ff.flow"
    elif not name:
        message = f"{str(path)!r} has several flows: {known}"
        help = f"say which one: {path}:{next(iter(flows))}"
    else:
        message = f"{str(path)!r} has no flow {name!r}"
        help = did_you_mean(name, flows, f"its flows: {known}") or ""
    raise WorkflowError("WF614", message, help=help)


def split_target(target: str) -> tuple[Path, str]:
    """FILE.py and NAME of `FILE.py:NAME`; the name is empty where there is none."""
    file, colon, name = target.rpartition(":")
    is_named = bool(colon) and file.endswith(".py")
    return (Path(file), name) if is_named else (Path(target), "")


def _import(path: Path) -> ModuleType:
    name = f"flowforge_flow_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise WorkflowError("WF614", f"there is no file {str(path)!r}", help="check the path")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except FlowForgeError:
        raise
    except Exception as error:
        # A file may raise anything while it is imported.
        raise WorkflowError(
            "WF614",
            f"{str(path)!r} cannot be imported: {type(error).__name__}: {error}",
            help="--traceback shows where",
        ) from error
    return module
