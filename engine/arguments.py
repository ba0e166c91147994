"""What callers give the engine, checked where it comes in: a wrong value must harm nobody else.

Past this point values reach the engine's thread, whose steps are shared by all sequences.
"""

from __future__ import annotations

from numbers import Real
from typing import SupportsIndex

from flowforge.errors import EngineError


def require(is_met: object, name: str, expected: str, got: object, code: str = "EN210") -> None:
    """Raise EngineError unless a condition on the value of `name` is met."""
    if not is_met:
        raise EngineError(code, f"{name} must be {expected}, got {got!r}")


def require_integer(name: str, value: object, code: str = "EN210") -> None:
    """Raise EngineError for anything but an `int`; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"{name} must be an integer, got {value!r}"
        raise EngineError(code, message, help=_conversion(value))


def require_number(name: str, value: object, code: str = "EN210") -> None:
    """Raise EngineError for anything but a real number."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    require(is_number, name, "a number", value, code)


def _conversion(value: object) -> str | None:
    is_convertible = isinstance(value, SupportsIndex) and not isinstance(value, bool)
    return "convert integers of numpy and torch with int(…) or tolist()" if is_convertible else None
