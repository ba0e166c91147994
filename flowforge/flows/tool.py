"""A Python function as a tool of flows: arguments checked, time and calls at one time limited."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    get_type_hints,
    overload,
)

from pydantic import TypeAdapter

from flowforge.errors import WorkflowError
from flowforge.flows.durations import seconds_of
from flowforge.flows.functions import function_name, location_of
from flowforge.flows.values import json_value
from flowforge.language.program import ToolSpec
from flowforge.language.types import AnyType
from flowforge.secrets.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from flowforge.language.program import JsonValue

P = ParamSpec("P")
T = TypeVar("T")

Effect: TypeAlias = Literal["read", "idempotent", "write"]
"""What calling a tool twice does: nothing, the same as once, or something twice."""


class Tool(Generic[P, T]):
    """A function that `Run.call` calls; made by `@tool`. function: as it was written."""

    def __init__(
        self,
        function: Callable[P, T] | Callable[P, Awaitable[T]],
        spec: ToolSpec,
    ) -> None:
        self.function = function
        self.spec = spec
        self._signature = inspect.signature(function)
        self._result: TypeAdapter[Any] | None = None

    def __repr__(self) -> str:
        return f"Tool({self.spec.name}, effect={self.spec.effect})"

    def arguments(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, JsonValue]:
        """The arguments by name, as JSON. Raises WorkflowError WF613 when they do not fit."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise WorkflowError(
                "WF613", f"tool {self.spec.name!r} cannot be called so: {error}"
            ) from error
        return {name: self._argument(name, value) for name, value in bound.arguments.items()}

    def _argument(self, name: str, value: object) -> JsonValue:
        try:
            return _with_secrets(value, json_value(value))
        except ValueError as problem:
            raise WorkflowError(
                "WF613", f"argument {name!r} of tool {self.spec.name!r} is no JSON value: {problem}"
            ) from problem

    def result(self, value: JsonValue) -> T:
        """What the function returned, of the type it says, from its JSON."""
        if self._result is None:
            self._result = TypeAdapter(get_type_hints(self.function).get("return", Any))
        return cast("T", self._result.validate_python(value))


def _with_secrets(value: object, jsonable: JsonValue) -> JsonValue:
    """The JSON of a value with its secrets still sealed, which JSON knows as texts only."""
    match value, jsonable:
        case Secret(), _:
            return value
        case dict(), dict():
            given = cast("dict[object, object]", value)
            return {name: _with_secrets(given.get(name), one) for name, one in jsonable.items()}
        case list() | tuple(), list():
            items = cast("Sequence[object]", value)
            return [_with_secrets(*pair) for pair in zip(items, jsonable, strict=True)]
        case _:
            return jsonable


@overload
def tool(function: Callable[P, Awaitable[T]], /) -> Tool[P, T]: ...


@overload
def tool(function: Callable[P, T], /) -> Tool[P, T]: ...


@overload
def tool(
    *,
    name: str | None = None,
    effect: Effect = "write",
    timeout: str | float | None = None,
    concurrency: int | None = None,
) -> _ToolDecorator: ...


def tool(
    function: Callable[P, T] | Callable[P, Awaitable[T]] | None = None,
    /,
    *,
    name: str | None = None,
    effect: Effect = "write",
    timeout: str | float | None = None,
    concurrency: int | None = None,
) -> Tool[P, T] | _ToolDecorator:
    """Make a function, blocking or async, a tool; blocking ones run in worker threads.

        @ff.tool(effect="read", timeout="10s")
        def filings(query: str) -> list[str]: ...

    effect: see Effect; the careful one without. timeout: of one call, seconds or a text like '10s'.
    concurrency: calls at one time in a run. Arguments and results pass as JSON, as they do when a
    model calls the tool. Raises WorkflowError WF120.
    """
    timeout_s = None if timeout is None else seconds_of(timeout)
    options = _ToolOptions(name, effect, timeout_s, concurrency)
    return _ToolDecorator(options) if function is None else _make_tool(function, options)


@dataclass(frozen=True, slots=True)
class _ToolOptions:
    """What the parentheses of `@tool(…)` say."""

    name: str | None
    effect: Effect
    timeout_s: float | None
    concurrency: int | None


class _ToolDecorator:
    """`@tool(…)`, waiting for its function."""

    def __init__(self, options: _ToolOptions) -> None:
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Awaitable[T]], /) -> Tool[P, T]: ...

    @overload
    def __call__(self, function: Callable[P, T], /) -> Tool[P, T]: ...

    def __call__(self, function: Callable[P, T] | Callable[P, Awaitable[T]], /) -> Tool[P, T]:
        """Make the function a tool."""
        return _make_tool(function, self._options)


def _make_tool(
    function: Callable[P, T] | Callable[P, Awaitable[T]], options: _ToolOptions
) -> Tool[P, T]:
    name = function_name(function)
    spec = ToolSpec(
        name=options.name or name,
        function=f"{function.__module__}:{name}",
        effect=options.effect,
        parameters=None,
        result=AnyType(),
        timeout_s=options.timeout_s,
        concurrency=options.concurrency,
        location=location_of(function),
    )
    return Tool(function, spec)
