"""A Python function as a tool: its arguments are checked, its time and calls are limited."""

from __future__ import annotations

import inspect
import threading
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from pydantic_core import PydanticSerializationError, to_jsonable_python

from flowforge.errors import FlowForgeError, ToolError, WorkflowError
from flowforge.language.inputs import problem_with_value
from flowforge.language.json_values import problem_with_json
from flowforge.tools.argument_grammars import grammar_of_spec, resolve_grammar
from flowforge.tools.arguments import Arguments, UnfitArgumentsError, UnusableParametersError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flowforge.grammars.tool_formats import ArgumentGrammar
    from flowforge.language.program import JsonValue, ToolSpec

_UNFIT_TEXT = ("WF433", "WF434")
_MAX_THREADS = 40
"""Calls of one blocking tool at one time where the file sets no `concurrency`."""


class FunctionTool:
    """One tool of a run. A blocking function runs in worker threads, an async one on the loop."""

    def __init__(self, spec: ToolSpec, function: Callable[..., object]) -> None:
        """Raises ToolError TL102 when the function cannot be called with arguments by name.

        WorkflowError WF430 for a grammar of an argument that cannot be read.
        """
        self.spec = spec
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function)
        self._limiter: anyio.CapacityLimiter | None = None
        self._running = threading.BoundedSemaphore(spec.concurrency or _MAX_THREADS)
        try:
            self._arguments = Arguments(function)
        except UnusableParametersError as error:
            raise ToolError(
                "TL102",
                f"function {spec.function!r} cannot be a tool: {error}",
                location=spec.location,
                help="give each parameter a name and a type hint that its module can resolve",
            ) from error
        self.grammars: dict[str, ArgumentGrammar] = self._read_grammars()

    def __repr__(self) -> str:
        return f"FunctionTool({self.spec.name!r}, {self.spec.function!r})"

    @property
    def function(self) -> Callable[..., object]:
        """The function itself."""
        return self._function

    @property
    def doc(self) -> str:
        """The function's docstring; "" without one."""
        return inspect.getdoc(self._function) or ""

    def json_schema(self) -> dict[str, JsonValue]:
        """JSON Schema of the arguments, by the function's type hints."""
        return self._arguments.json_schema()

    async def call(self, arguments: Mapping[str, JsonValue], path: str) -> JsonValue:
        """Run the function and return its result as a JSON value.

        path: of the step that calls, for messages. A call that is cancelled or out of time is over
        at once where the function runs in a thread: the thread goes on, and what it returns later
        is dropped.
        Raises ToolError TL103 for arguments that do not fit, TL104 for a result that JSON cannot
        say, TL201 when the function raises, TL202 when its time is over; a FlowForgeError of the
        function as it is.
        """
        values = self._read(arguments, path)
        await self._judge_texts(values, path)
        async with self._limit():
            result = await self._run_in_time(values, path)
        try:
            value: JsonValue = to_jsonable_python(result, inf_nan_mode="constants")
            problem = problem_with_json(value)
        except (PydanticSerializationError, ValueError) as error:
            reason = f"returned {type(result).__name__}, which is no JSON value: {error}"
            raise self._error("TL104", path, reason) from error
        if problem is not None:
            raise self._error("TL104", path, f"returned what is no JSON value: {problem}")
        return value

    def _read(self, arguments: Mapping[str, JsonValue], path: str) -> dict[str, object]:
        try:
            values = self._arguments.read(arguments)
        except UnfitArgumentsError as error:
            raise self._error("TL103", path, f"got arguments that do not fit: {error}") from error
        if self.spec.parameters is not None:
            problem = problem_with_value(self.spec.parameters, dict(arguments))
            if problem is not None:
                raise self._error("TL103", path, f"got arguments that do not fit: {problem}")
        return values

    def _read_grammars(self) -> dict[str, ArgumentGrammar]:
        hinted = self._arguments.grammars.items()
        found = {name: resolve_grammar(one, self._function) for name, one in hinted}
        for name, spec in self.spec.grammars.items():
            if name not in self._arguments.names:
                known = ", ".join(self._arguments.names) or "none"
                raise ToolError(
                    "TL102",
                    f"function {self.spec.function!r} has no argument {name!r} for a grammar",
                    location=self.spec.location,
                    help=f"its arguments: {known}",
                )
            found[name] = grammar_of_spec(spec)
        return found

    async def _judge_texts(self, values: Mapping[str, object], path: str) -> None:
        """Have lark judge the arguments with a grammar; the model may have been held to less."""
        for name, grammar in self.grammars.items():
            text = values.get(name)
            if isinstance(text, str):
                try:
                    await anyio.to_thread.run_sync(grammar.judge, text)
                except WorkflowError as error:
                    if error.code not in _UNFIT_TEXT:
                        raise
                    reason = f"got arguments that do not fit: {name}: {error.message}"
                    raise self._error("TL103", path, reason) from error

    async def _run_in_time(self, values: Mapping[str, object], path: str) -> object:
        timeout_s = self.spec.timeout_s
        failure: Exception | None = None
        result: object = None
        with anyio.move_on_after(timeout_s) as scope:
            try:
                result = await self._run(values)
            except FlowForgeError:
                raise
            except Exception as error:
                failure = error
        # Whatever a function does that was told to stop, it did not end within its time.
        if timeout_s is not None and scope.cancel_called:
            help = "raise the tool's 'timeout', or say what follows by 'retry' or 'catch'"
            reason = f"did not return within its timeout of {timeout_s:g} s"
            raise self._error("TL202", path, reason, help)
        if failure is not None:
            reason = f"raised {type(failure).__name__}: {failure}"
            raise self._error("TL201", path, reason) from failure
        return result

    async def _run(self, values: Mapping[str, object]) -> object:
        call = partial(self._function, **values)
        if self._is_async:
            result = call()
        else:
            threaded = _ThreadedCall(call, self._running)
            try:
                # The limit of threads is ours: slow tools starve nobody else of the loop's.
                result = await anyio.to_thread.run_sync(
                    threaded, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
                )
            finally:
                threaded.is_abandoned = True
        return await result if inspect.isawaitable(result) else result

    def _limit(self) -> anyio.CapacityLimiter:
        # Made at first use, because it belongs to the event loop that it is made in.
        if self._limiter is None:
            unset = float("inf") if self._is_async else _MAX_THREADS
            self._limiter = anyio.CapacityLimiter(self.spec.concurrency or unset)
        return self._limiter

    def _error(self, code: str, path: str, reason: str, help: str | None = None) -> ToolError:
        return ToolError(
            code,
            f"tool {self.spec.name!r}, called by {path!r}, {reason}",
            location=self.spec.location,
            help=help,
        )


class _ThreadedCall:
    """A call in a worker thread, which may outlive whoever waits for it.

    So it counts as running until it returns, and one that was given up before it began never
    begins.
    """

    def __init__(self, call: Callable[[], object], running: threading.BoundedSemaphore) -> None:
        self._call = call
        self._running = running
        self.is_abandoned = False

    def __call__(self) -> object:
        with self._running:
            return None if self.is_abandoned else self._call()
