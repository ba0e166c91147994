"""A flow: an async function whose first parameter is its run, and whose others are its inputs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    cast,
    get_type_hints,
    overload,
)

from pydantic import TypeAdapter, ValidationError

from flowforge.errors import WorkflowError
from flowforge.flows.functions import function_name, location_of
from flowforge.flows.values import json_value
from flowforge.language.inputs import resolve_each

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from flowforge.errors import Location
    from flowforge.flows.run import Run
    from flowforge.language.program import JsonValue

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Input:
    """One input of a flow, from a parameter of its function."""

    name: str
    adapter: TypeAdapter[object]
    shown_type: str
    is_required: bool
    default: object


class Flow(Generic[P, T]):
    """An async function that can be run; made by `@flow`.

    Called directly, with the run of the flow that calls it, it is the plain function.
    """

    def __init__(
        self,
        function: Callable[Concatenate[Run, P], Awaitable[T]],
        secrets: Iterable[str] = (),
    ) -> None:
        self._function = function
        self.secrets: tuple[str, ...] = tuple(secrets)
        self.__doc__ = function.__doc__
        self.name: str = function_name(function)
        self._inputs = _inputs_of(function, self.name)

    def __call__(self, run: Run, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Run as a part of another flow: its steps are that flow's."""
        return self._function(run, *args, **kwargs)

    def __repr__(self) -> str:
        return f"Flow({self.name}, inputs={list(self._inputs)})"

    def resolve_inputs(self, given: Mapping[str, object]) -> dict[str, object]:
        """Every input: given, else its default, of the type that the function says.

        A text given for an input that takes no text, as from a command line, is read as JSON.
        Raises WorkflowError WF301, WF302, WF303; WrongInputsError for several.
        """
        return resolve_each(
            self._inputs, given, "flow", lambda name: self._value_of(self._inputs[name], given)
        )

    @property
    def location(self) -> Location:
        """Where its function is defined."""
        return location_of(self._function)

    def json_schema(self) -> dict[str, JsonValue]:
        """JSON Schema of its inputs as one object."""
        mode: Literal["validation"] = "validation"
        schemas, shared = TypeAdapter.json_schemas(
            [(name, mode, one.adapter) for name, one in self._inputs.items()]
        )
        properties: dict[str, JsonValue] = {name: schemas[name, mode] for name in self._inputs}
        required: list[JsonValue] = [name for name, one in self._inputs.items() if one.is_required]
        whole: dict[str, JsonValue] = {"type": "object", "properties": properties}
        return {**whole, "required": required, "additionalProperties": False, **shared}

    def call(self, run: Run, inputs: Mapping[str, object]) -> Awaitable[T]:
        """Call the function with resolved inputs."""
        # The inputs were checked against the parameters one by one.
        function = cast("Callable[..., Awaitable[T]]", self._function)
        return function(run, **inputs)

    def _value_of(self, one: _Input, given: Mapping[str, object]) -> object:
        if one.name not in given:
            if one.is_required:
                raise WorkflowError(
                    "WF301",
                    f"input {one.name!r} ({one.shown_type}) is missing",
                    location=location_of(self._function),
                    help=f"pass {one.name}=…; on the command line -i {one.name}=…",
                )
            return one.default
        value = self._validated(one, given[one.name])
        try:
            json_value(value)
        except ValueError as problem:
            raise self._unfit(one, str(problem)) from problem
        return value

    def _validated(self, one: _Input, value: object) -> object:
        try:
            return one.adapter.validate_python(value)
        except ValidationError as error:
            if isinstance(value, str):
                try:
                    return one.adapter.validate_json(value)
                except ValidationError:
                    pass  # the first message is about the text as it was given
            first = error.errors(include_url=False)[0]
            raise self._unfit(one, first["msg"].lower()) from error

    def _unfit(self, one: _Input, problem: str) -> WorkflowError:
        return WorkflowError(
            "WF303",
            f"input {one.name!r} expects {one.shown_type}: {problem}",
            location=location_of(self._function),
        )


@overload
def flow(function: Callable[Concatenate[Run, P], Awaitable[T]], /) -> Flow[P, T]: ...


@overload
def flow(*, secrets: Iterable[str]) -> _FlowDecorator: ...


def flow(
    function: Callable[Concatenate[Run, P], Awaitable[T]] | None = None,
    /,
    *,
    secrets: Iterable[str] = (),
) -> Flow[P, T] | _FlowDecorator:
    """Make an async function a flow.

        @ff.flow
        async def analyst(run: ff.Run, topic: str, audience: str = "executives") -> str: ...

    secrets: variables of the environment that it may read, see `secret`; a run begins only where
    all of them are set, and tells of none. Raises WorkflowError WF612 for a function that cannot be
    one.
    """
    if isinstance(secrets, str):
        raise TypeError(f"secrets must be a list of names, got the text {secrets!r}")
    return _FlowDecorator(tuple(secrets)) if function is None else Flow(function, secrets)


class _FlowDecorator:
    """`@flow(…)`, waiting for its function."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self._secrets = secrets

    def __call__(self, function: Callable[Concatenate[Run, P], Awaitable[T]], /) -> Flow[P, T]:
        """Make the function a flow."""
        return Flow(function, self._secrets)


def _inputs_of(function: Callable[..., object], name: str) -> dict[str, _Input]:
    if not inspect.iscoroutinefunction(function):
        raise _refused(function, f"flow {name!r} is not an async function", "write 'async def'")
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in {
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    }:
        reason = f"flow {name!r} has no parameter for its run"
        raise _refused(function, reason, f"write 'async def {name}(run: ff.Run, …)'")
    hints = _hints_of(function, name)
    return {
        one.name: _input_of(function, one, hints.get(one.name, object)) for one in parameters[1:]
    }


def _hints_of(function: Callable[..., object], name: str) -> dict[str, Any]:
    # The types of the run and of the result may be imported for checkers only.
    annotations = dict(function.__annotations__)
    first = next(iter(inspect.signature(function).parameters))
    wanted = {key: hint for key, hint in annotations.items() if key not in {first, "return"}}
    namespace = getattr(function, "__globals__", {})
    try:
        return get_type_hints(_Annotated(wanted), globalns=namespace, include_extras=True)
    except NameError as error:
        raise _refused(
            function,
            f"a type of an input of flow {name!r} is not known when it runs: {error}",
            "import the type outside 'if TYPE_CHECKING'",
        ) from error


class _Annotated:
    """Stands for a function with only some of its annotations."""

    def __init__(self, annotations: dict[str, Any]) -> None:
        self.__annotations__ = annotations


def _input_of(function: Callable[..., object], one: inspect.Parameter, hint: Any) -> _Input:
    if one.kind not in {
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    }:
        raise _refused(
            function,
            f"parameter {one.name!r} cannot be an input, which is given by name",
            "write it without '*' and before no '/'",
        )
    is_required = one.default is inspect.Parameter.empty
    shown = hint.__name__ if isinstance(hint, type) else str(hint)
    return _Input(one.name, TypeAdapter(hint), shown, is_required, one.default)


def _refused(function: Callable[..., object], message: str, help: str) -> WorkflowError:
    return WorkflowError("WF612", message, location=location_of(function), help=help)
