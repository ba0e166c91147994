"""A function's parameters as the arguments of a tool, by its type hints."""

from __future__ import annotations

import inspect
import json
import typing
from dataclasses import MISSING, field, make_dataclass
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from flowforge.tools.argument_grammars import MisplacedGrammarError, grammars_of_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flowforge.language.program import JsonValue

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class UnusableParametersError(Exception):
    """The function cannot be called with arguments by name."""


class UnfitArgumentsError(Exception):
    """Arguments that the function's type hints do not allow; the text says which and why."""


class Arguments:
    """The parameters of one function. A parameter without a type hint takes any value.

    grammars: of those that are texts of one, by name.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        """Raises UnusableParametersError for parameters without names or with unknown types."""
        try:
            parameters = inspect.signature(function).parameters
            hints = typing.get_type_hints(function, include_extras=True)
        except (NameError, TypeError, ValueError) as error:
            raise UnusableParametersError(str(error)) from error
        for parameter in parameters.values():
            if parameter.kind not in _NAMED:
                raise UnusableParametersError(
                    f"parameter {str(parameter)!r} has no name of its own"
                )
        self.names = tuple(parameters)
        self.required = tuple(
            name for name, one in parameters.items() if one.default is inspect.Parameter.empty
        )
        try:
            self.grammars = grammars_of_hints(hints)
        except MisplacedGrammarError as error:
            raise UnusableParametersError(str(error)) from error
        fields = [
            (name, hints.get(name, Any), field(default=MISSING if name in self.required else None))
            for name in self.names
        ]
        try:
            holder = make_dataclass("arguments", fields, kw_only=True)
            self._adapter: TypeAdapter[object] = TypeAdapter(holder)
        except (PydanticUserError, TypeError, ValueError) as error:
            raise UnusableParametersError(str(error).splitlines()[0]) from error

    def json_schema(self) -> dict[str, JsonValue]:
        """JSON Schema of the arguments as one object."""
        return {**self._adapter.json_schema(), "additionalProperties": False}

    def read(self, given: Mapping[str, JsonValue]) -> dict[str, object]:
        """The values to call the function with; what is not given keeps the function's default.

        Strict as JSON is: '3' is no number, but a text may spell a date.
        Raises UnfitArgumentsError.
        """
        unknown = [name for name in given if name not in self.names]
        if unknown:
            known = ", ".join(self.names) or "none"
            raise UnfitArgumentsError(f"unknown argument {unknown[0]!r}, it takes {known}")
        missing = [name for name in self.required if name not in given]
        if missing:
            raise UnfitArgumentsError(f"argument {missing[0]!r} is missing")
        try:
            values = self._adapter.validate_json(json.dumps(dict(given)), strict=True)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_input=False)
            reasons = (f"{_place(one['loc'])}: {_lowered(one['msg'])}" for one in problems)
            raise UnfitArgumentsError("; ".join(reasons)) from error
        return {name: getattr(values, name) for name in given}


def _place(location: tuple[int | str, ...]) -> str:
    head, *rest = location
    return str(head) + "".join(f"[{part!r}]" for part in rest)


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:]
