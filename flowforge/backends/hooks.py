"""Hooks: Python functions that see what models are asked and what they write.

A file of hooks has a function `before`, a function `after`, or both; each may be `async`. A
function that blocks for long, as one that asks a service, runs in a thread of its own.

    def before(prompted):            # may return other turns for those that it was given
        prompted.annotations["turns"] = len(prompted.turns)
        if "forbidden" in prompted.turns[-1].text:
            raise Blocked("nobody asks for that here")

    def after(written):              # may return another text
        return re.sub(EMAIL, "[email]", written.text)

A hook that fails blocks: what it did not see goes nowhere.
"""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import anyio.to_thread

from flowforge.backends.passing import PassingBackend, PassingConversation
from flowforge.backends.protocol import GenerationDone, TextDelta
from flowforge.errors import FlowForgeError, ToolError, WorkflowError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from flowforge.backends.protocol import (
        Backend,
        Conversation,
        GenerateRequest,
        GenerationCut,
        JsonValue,
        ScoreRequest,
        ScoringDone,
        ToolOffer,
    )
    from flowforge.grammars.tool_formats import ToolCall


class Blocked(Exception):
    """Raised by a hook: this prompt is not asked, or this answer is not given.

    The step fails with WF426 for a prompt, WF427 for an answer; a request to a server is refused.
    """

    def __init__(self, reason: str) -> None:
        """reason: what whoever asked is told."""
        super().__init__(reason)
        self.reason = reason


SeenRole = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class SeenTurn:
    """One turn of a conversation as a hook sees it. text: its content, before any template."""

    role: SeenRole
    text: str


@dataclass(frozen=True, slots=True)
class Prompted:
    """What a model is about to be asked.

    source: the step path, or the path of the request. client: whose key it is; "" in runs. turns:
    those that no hook has seen yet: of a request all, of a step those since the last answer.
    annotations: JSON values that a hook may add; the answer's are the same ones.
    """

    source: str
    client: str
    turns: tuple[SeenTurn, ...]
    annotations: dict[str, JsonValue] = field(default_factory=dict[str, "JsonValue"])


@dataclass(frozen=True, slots=True)
class Written:
    """What a model has written.

    source, client, annotations: as in Prompted. text: the answer, whole. calls: the tools that it
    calls, which a hook can only block.
    """

    source: str
    client: str
    text: str
    calls: tuple[ToolCall, ...]
    annotations: dict[str, JsonValue] = field(default_factory=dict[str, "JsonValue"])


Before: TypeAlias = Callable[[Prompted], object]
After: TypeAlias = Callable[[Written], object]


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions that are called in order; what one returns the next one sees.

    before: each takes a Prompted and returns turns, or nothing to leave them. after: each takes a
    Written and returns a text, or nothing to leave it. Both may be async, and may raise Blocked.
    """

    before: tuple[Before, ...] = ()
    after: tuple[After, ...] = ()

    async def look_before(self, prompted: Prompted) -> tuple[SeenTurn, ...]:
        """The turns to ask with: as many as given. Raises Blocked, ToolError TL151."""
        for hook in self.before:
            result = await _called(hook, prompted)
            if result is not None:
                prompted = replace(prompted, turns=_turns(result, prompted, hook))
        return prompted.turns

    async def look_after(self, written: Written) -> str:
        """The text to give. Raises Blocked, ToolError TL151."""
        for hook in self.after:
            result = await _called(hook, written)
            if result is not None and not isinstance(result, str):
                raise _bad_hook(hook, f"it returned a {type(result).__name__}, expected a text")
            written = written if result is None else replace(written, text=result)
        return written.text


NO_HOOKS = Hooks()


def load_hooks(files: Sequence[Path | str]) -> Hooks:
    """The hooks of Python files. Raises ToolError TL150 for one that has none or cannot be run."""
    before: list[Before] = []
    after: list[After] = []
    for file in files:
        try:
            found = runpy.run_path(str(file))
        except Exception as error:
            # The code of a user's file: whatever it raises is told with its place.
            raise ToolError(
                "TL150",
                f"the hooks {str(file)!r} cannot be run: {type(error).__name__}: {error}",
                help="a file of hooks has a function 'before', 'after' or both",
            ) from error
        before += [found["before"]] if callable(found.get("before")) else []
        after += [found["after"]] if callable(found.get("after")) else []
        if not callable(found.get("before")) and not callable(found.get("after")):
            raise ToolError(
                "TL150",
                f"the hooks {str(file)!r} have neither a function 'before' nor one 'after'",
                help="def before(prompted): ..., def after(written): ...",
            )
    return Hooks(tuple(before), tuple(after))


def hooked(backend: Backend, hooks: Hooks) -> Backend:
    """The backend as the hooks let it be used; closing it stays with whoever opened it."""
    return HookedBackend(backend, hooks) if hooks != NO_HOOKS else backend


class HookedBackend(PassingBackend):
    """A backend whose conversations are seen by hooks. An answer that hooks see is not streamed."""

    def __init__(self, inner: Backend, hooks: Hooks) -> None:
        super().__init__(inner)
        self._hooks = hooks

    def around(self, inner: Conversation) -> Conversation:
        """See `PassingBackend`."""
        return HookedConversation(inner, self._hooks)

    async def open(self, *, system: str | None = None, model: str | None = None) -> Conversation:
        """See `Backend`. Raises WorkflowError WF426 for a system prompt that a hook blocks."""
        if system is not None:
            turns = (SeenTurn("system", system),)
            system = (await _allowed(self._hooks, "", turns))[0].text
        return await super().open(system=system, model=model)


class HookedConversation(PassingConversation):
    """A conversation whose turns wait until hooks have seen them."""

    def __init__(
        self, inner: Conversation, hooks: Hooks, waiting: tuple[SeenTurn, ...] = ()
    ) -> None:
        super().__init__(inner)
        self._hooks = hooks
        self._waiting = waiting
        self._held_back: GenerationDone | None = None

    def around(self, inner: Conversation) -> Conversation:
        """See `PassingConversation`."""
        return HookedConversation(inner, self._hooks, self._waiting)

    def add_user(self, text: str) -> None:
        """See `Conversation`."""
        self._waiting += (SeenTurn("user", text),)

    def add_assistant(self, text: str) -> None:
        """See `Conversation`."""
        self._waiting += (SeenTurn("assistant", text),)

    def add_results(self, results: Sequence[JsonValue]) -> None:
        """See `Conversation`. What tools return is not theirs to see: it goes on at once."""
        self.inner.add_results(results)

    def add_written(
        self, written: GenerationDone, prefill: str, offer: ToolOffer | None = None
    ) -> None:
        """See `Conversation`. What an earlier process was allowed is allowed."""
        self._say(self._waiting)
        self._waiting = ()
        self.inner.add_written(written, prefill, offer)

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        """See `Conversation`. Raises WorkflowError WF426, WF427, ToolError TL151."""
        self._held_back = None
        annotations: dict[str, JsonValue] = {}
        await self._let_through(request.label, annotations)
        updates = self.inner.generate(request)
        try:
            async for update in updates:
                if not self._hooks.after:
                    yield update
                elif isinstance(update, GenerationDone):
                    self._held_back = update
                    text = await self._seen(request, update, annotations)
                    yield TextDelta(text, 0)
                    self._held_back = None
                    yield replace(update, text=text)
                else:
                    # Its tokens count now; what it says is for the hooks first.
                    yield replace(update, text="")
        finally:
            await updates.aclose()

    def take_cut(self) -> GenerationCut | None:
        """See `Conversation`. An answer that nobody was given cost what it cost."""
        held_back, self._held_back = self._held_back, None
        return super().take_cut() if held_back is None else held_back.as_cut()

    async def score(self, request: ScoreRequest) -> ScoringDone:
        """See `Conversation`. Raises WorkflowError WF426, ToolError TL151."""
        await self._let_through(request.label, {})
        return await self.inner.score(request)

    async def _let_through(self, label: str, annotations: dict[str, JsonValue]) -> None:
        if self._waiting:
            self._say(await _allowed(self._hooks, label, self._waiting, annotations))
            self._waiting = ()

    def _say(self, turns: Sequence[SeenTurn]) -> None:
        for turn in turns:
            add = self.inner.add_user if turn.role == "user" else self.inner.add_assistant
            add(turn.text)

    async def _seen(
        self, request: GenerateRequest, done: GenerationDone, annotations: dict[str, JsonValue]
    ) -> str:
        written = Written(request.label, "", done.text, done.calls, annotations)
        try:
            return await self._hooks.look_after(written)
        except Blocked as error:
            raise _blocked("WF427", request.label, "the answer", error) from error


async def _allowed(
    hooks: Hooks,
    label: str,
    turns: tuple[SeenTurn, ...],
    annotations: dict[str, JsonValue] | None = None,
) -> tuple[SeenTurn, ...]:
    prompted = Prompted(label, "", turns, {} if annotations is None else annotations)
    try:
        return await hooks.look_before(prompted)
    except Blocked as error:
        raise _blocked("WF426", label, "the prompt", error) from error


def _blocked(code: str, label: str, what: str, error: Blocked) -> WorkflowError:
    where = f" of {label!r}" if label else ""
    return WorkflowError(
        code,
        f"a hook blocks {what}{where}: {error.reason}",
        help="the hooks of this run are in the files of --hooks",
    )


async def _called(hook: Callable[[Any], object], seen: Prompted | Written) -> object:
    try:
        if inspect.iscoroutinefunction(hook):
            return await hook(seen)
        return await anyio.to_thread.run_sync(partial(hook, seen))
    except (Blocked, FlowForgeError):
        raise
    except Exception as error:
        raise _bad_hook(hook, f"{type(error).__name__}: {error}") from error


def _turns(result: object, given: Prompted, hook: Before) -> tuple[SeenTurn, ...]:
    turns = result.turns if isinstance(result, Prompted) else result
    if not isinstance(turns, tuple | list):
        raise _bad_hook(hook, f"it returned a {type(result).__name__}, expected turns")
    found = tuple(cast("Sequence[object]", turns))
    roles = [turn.role for turn in found if isinstance(turn, SeenTurn)]
    if len(roles) < len(found) or roles != [turn.role for turn in given.turns]:
        raise _bad_hook(hook, "it returned other turns than it was given, expected other texts")
    return cast("tuple[SeenTurn, ...]", found)


def _bad_hook(hook: Callable[..., object], reason: str) -> ToolError:
    name = getattr(hook, "__name__", repr(hook))
    return ToolError(
        "TL151",
        f"the hook {name!r} failed: {reason}",
        help="nothing is asked or given that a hook has not seen: mend it, or leave it out",
    )
