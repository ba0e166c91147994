"""What can be said about a Python function: its name and its place."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from flowforge.errors import Location

if TYPE_CHECKING:
    from collections.abc import Callable


def function_name(function: Callable[..., object]) -> str:
    """The name it was defined with; that of its type for an object that is called."""
    return str(getattr(function, "__name__", type(function).__name__))


def location_of(function: Callable[..., object]) -> Location:
    """Where it is defined; line 1 of its module where that is not known."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return Location(str(getattr(function, "__module__", "?")), 1, 1)
    return Location(code.co_filename, code.co_firstlineno, 1)


def step_name_of(function: Callable[..., object]) -> str:
    """What a step that runs it is called: its name, or 'map' where that is no step's name."""
    name = function_name(function)
    return name if name.isascii() and name.isidentifier() else "map"
