"""Where a tool's code comes from: 'module:function', looked for beside the workflow file first."""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flowforge.errors import FlowForgeError, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from flowforge.language.program import ToolSpec


def load_function(spec: ToolSpec, folder: Path) -> Callable[..., object]:
    """Import a tool's function.

    folder: searched before `sys.path` while the module is imported.
    Raises ToolError TL101, caused by what the import raised.
    """
    module_name, _, function_name = spec.function.partition(":")
    if not module_name or not function_name:
        raise _not_loaded(spec, "expected 'module:function'")
    try:
        with _searched_first(folder):
            found: object = importlib.import_module(module_name)
        for part in function_name.split("."):
            found = getattr(found, part)
    except FlowForgeError:
        raise
    except Exception as error:
        # Importing runs the module, which may raise anything.
        raise _not_loaded(spec, f"{type(error).__name__}: {error}") from error
    if not callable(found):
        raise _not_loaded(spec, f"it is of type {type(found).__name__}, expected a function")
    return found


@contextmanager
def _searched_first(folder: Path) -> Generator[None]:
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        # The module may have changed the list as well.
        if entry in sys.path:
            sys.path.remove(entry)


def _not_loaded(spec: ToolSpec, reason: str) -> ToolError:
    return ToolError(
        "TL101",
        f"tool {spec.name!r} cannot be loaded from {spec.function!r}: {reason}",
        location=spec.location,
        help="modules are looked for beside the workflow file, then where Python looks",
    )
