"""What the chats of one flow run share: the event stream, the books and the open conversations."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import anyio

from flowforge.backends.protocol import BackendStatistics, GenerationDone, TextDelta
from flowforge.errors import FlowForgeError, InternalError
from flowforge.flows.cached_turns import ToldConversation
from flowforge.flows.cancelling import RunningSteps
from flowforge.flows.failures import FailureLog
from flowforge.flows.servers import FlowServers
from flowforge.flows.values import shown_value
from flowforge.runtime.accounting import AccountBook
from flowforge.runtime.cancelling import cancelled_by_order
from flowforge.runtime.closing import close_conversation
from flowforge.runtime.events import (
    Accounting,
    StepCancelled,
    StepFailed,
    StepFinished,
    StepRetried,
    StepStarted,
    StepText,
)
from flowforge.runtime.failures import as_flowforge_error
from flowforge.runtime.notices import fact_of
from flowforge.runtime.page_samples import PageSampler
from flowforge.runtime.people import text_answer
from flowforge.runtime.seeds import derived_seed
from flowforge.runtime.state import Failure
from flowforge.runtime.step_parts import parts_of
from flowforge.secrets.secret_box import SecretBox
from flowforge.tools.function_tool import FunctionTool

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping

    from flowforge.backends.notices import Notice
    from flowforge.backends.protocol import (
        Backend,
        Conversation,
        FinishReason,
        GenerateRequest,
        ScoreRequest,
        ScoringDone,
        Usage,
    )
    from flowforge.flows.memo import FlowMemo
    from flowforge.flows.retries import NextTry
    from flowforge.flows.servers import McpTools
    from flowforge.flows.tool import Tool
    from flowforge.flows.tool_turns import AnyTool
    from flowforge.language.program import JsonValue, ToolSpec
    from flowforge.runtime.clock import Clock
    from flowforge.runtime.commands import StartQuestion
    from flowforge.runtime.people import Asker
    from flowforge.runtime.step_parts import StepParts
    from flowforge.runtime.stream import EventStream


P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class StepEnd:
    """What a step in progress will have come to. usage, finish_reason: where a model wrote."""

    value: object = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    is_left_early: bool = False


@dataclass(frozen=True, slots=True)
class _Open:
    """A conversation that is open. model: None for the run's own."""

    conversation: Conversation
    model: str | None


class FlowSession:
    """One run of a flow. seed: what every generation without a seed of its own derives its from."""

    def __init__(
        self,
        backend: Backend,
        stream: EventStream,
        seed: int,
        clock: Clock,
        asker: Asker,
        memo: FlowMemo | None = None,
        secrets: SecretBox | None = None,
    ) -> None:
        """memo: the run's journal; None for a run that leaves none. secrets: of the flow."""
        self.memo = memo
        self.secrets: SecretBox = secrets or SecretBox()
        self.backend = backend
        self.stream = stream
        self.seed = seed
        self.clock = clock
        self.asker = asker
        self.log: FailureLog = FailureLog()
        self._pages = PageSampler(backend)
        self.running: RunningSteps = RunningSteps()
        self.close_failures: list[Failure] = []
        self.book: AccountBook = AccountBook()
        self._conversations: dict[int, _Open] = {}
        self._tools: dict[int, FunctionTool] = {}
        self._limits: dict[int, anyio.CapacityLimiter] = {}
        self.servers: FlowServers = FlowServers(self.secrets)

    # -- steps ------------------------------------------------------------------------------------

    @contextmanager
    def step(
        self,
        path: str,
        verb: str,
        continues: str | None = None,
        following: NextTry | None = None,
    ) -> Generator[StepEnd]:
        """A step from its start to its one end: finished, failed, retried or cancelled.

        A step that fails because of one inside it, which readers know of already, is cancelled.
        following: what comes after a failure that may pass.
        """
        self.stream.emit(StepStarted(path, verb, continues))
        for sample in self._pages.look(self.stream.elapsed_s):
            self.stream.emit(sample)
        end = StepEnd()
        try:
            with self.running.cancellable(path):
                yield end
        except Exception as error:
            self.log.blame(path, error)
            untold = self.log.take_untold(error)
            self.stream.emit(_failed(path, untold, following))
            raise
        except BaseException:
            self.stream.emit(StepCancelled(path))
            raise
        self.stream.emit(StepCancelled(path) if end.is_left_early else _finished(path, end))

    def seed_for(self, path: str) -> int:
        """The seed of a generation that was given none."""
        return derived_seed(self.seed, f"{path} answer")

    def function_tool(self, tool: Tool[P, T]) -> FunctionTool:
        """The tool as this run calls it: its limit on calls at one time is the run's.

        Raises ToolError TL102 for a function that cannot be a tool.
        """
        key = id(tool.spec)
        if key not in self._tools:
            self._tools[key] = FunctionTool(tool.spec, tool.function)
        return self._tools[key]

    async def call_tool(
        self, tool: AnyTool, arguments: Mapping[str, JsonValue], path: str
    ) -> JsonValue:
        """Call a tool, unless an earlier process had its result; see `FunctionTool.call`.

        It is given its secrets, and none is in what it returns or raises.
        """
        function = self.function_tool(tool)

        async def act() -> JsonValue:
            with self.running.cancellable(path):
                return await self.secrets.call(
                    arguments, lambda opened: function.call(opened, path)
                )

        return await self.once(tool.spec, arguments, path, act)

    async def call_member(
        self, tools: McpTools, member: str, arguments: Mapping[str, JsonValue], path: str
    ) -> JsonValue:
        """Call a tool of a server, unless an earlier process had its result."""
        connection = await self.servers.connection(tools)

        async def act() -> JsonValue:
            with self.running.cancellable(path):
                return await self.secrets.call(
                    arguments, lambda opened: connection.call(member, opened, path)
                )

        return await self.once(tools.spec, arguments, path, act)

    async def once(
        self,
        spec: ToolSpec,
        arguments: Mapping[str, JsonValue],
        path: str,
        act: Callable[[], Awaitable[JsonValue]],
    ) -> JsonValue:
        """What a call comes to, unless an earlier process had its result."""
        if self.memo is None:
            return await act()
        return await self.memo.call(spec, dict(arguments), path, act, self.asker, self.stream.emit)

    def limit(self, spec: ToolSpec) -> anyio.CapacityLimiter:
        """The run's limit on calls of a workflow at one time."""
        limit = spec.concurrency or float("inf")
        return self._limits.setdefault(id(spec), anyio.CapacityLimiter(limit))

    async def ask(self, question: StartQuestion) -> str:
        """Ask a person, unless an earlier process had the answer."""

        async def asker(question: StartQuestion) -> str:
            with self.running.cancellable(question.path):
                return await self.asker(question)

        if self.memo is None:
            return await asker(question)
        return text_answer(question.path, await self.memo.ask(question, asker))

    # -- conversations ----------------------------------------------------------------------------

    async def open(self, system: str | None, model: str | None) -> Conversation:
        """A new conversation, to be given back with `close`. model: None for the run's own."""
        conversation = await self.backend.open(system=system, model=model)
        if self.memo is not None:
            conversation = ToldConversation(conversation, system, model)
        return self._keep(conversation, model)

    async def fork(self, conversation: Conversation) -> Conversation:
        """A fork, to be given back with `close`."""
        return self._keep(await conversation.fork(), self._model_of(conversation))

    async def close(self, conversation: Conversation) -> None:
        """Give a conversation back, cancelled or not; what its backend says against it is kept."""
        if self._conversations.pop(id(conversation), None) is not None:
            await close_conversation(conversation, "run", self.close_failures)

    async def close_all(self) -> None:
        """Give back what is still open: servers, and conversations if the flow was killed."""
        self.servers.close()
        for one in list(self._conversations.values()):
            await self.close(one.conversation)

    async def generate(
        self, conversation: Conversation, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone]:
        """Let the model write: deltas, each told as an event, then the end, entered in the books.

        Close the generator to stop early. What an earlier process had of it is not written again.
        """
        memo, parts = self.memo, parts_of(request)
        if memo is not None:
            kept = await memo.kept_answer(request)
            if kept is not None:
                conversation.add_written(kept, request.prefill, request.offer)
                delta = TextDelta(kept.text, kept.usage.generated_tokens)
                self._tell_text(request.label, delta, parts)
                yield delta
                yield kept
                return
            assert isinstance(conversation, ToldConversation), "runs with a journal open such ones"
            written = await memo.begin_answer(request, conversation.asked(request))
            request = replace(request, written=written)

        def tell(notice: Notice) -> None:
            self.stream.emit(fact_of(notice, request.label))

        asked = replace(request, tell=tell, run_key=str(self.seed))
        items = conversation.generate(asked)
        is_done = False
        try:
            async for item in items:
                if isinstance(item, TextDelta):
                    self._tell_text(request.label, item, parts)
                    if memo is not None:
                        await memo.wrote(request.label, item.token_ids)
                else:
                    self.book.enter(item, self._model_of(conversation))
                    is_done = True
                    if memo is not None:
                        await memo.end_answer(request, item)
                yield item
        except FlowForgeError as error:
            if memo is not None and not is_done:
                await memo.end_answer(request, error)
            raise
        except Exception as error:
            raise as_flowforge_error(error) from error
        finally:
            with anyio.CancelScope(shield=True):
                await items.aclose()
                if memo is not None and not is_done and self.running.is_cancelled(request.label):
                    # Whoever goes on with the run must meet it again.
                    await memo.end_answer(request, cancelled_by_order(request.label))
            cut = conversation.take_cut()
            if cut is not None:
                self.book.enter_cut(cut, self._model_of(conversation))
        if not is_done:
            raise InternalError(
                "IN507", f"backend {self.backend.name!r} ended a generation without its result"
            )

    async def score(self, conversation: Conversation, request: ScoreRequest) -> ScoringDone:
        """Weigh texts on a conversation, which stays as it is; entered in the books."""
        try:
            done = await conversation.score(request)
        except FlowForgeError:
            raise
        except Exception as error:
            raise as_flowforge_error(error) from error
        self.book.enter_scoring(done, self._model_of(conversation))
        return done

    def _tell_text(self, path: str, delta: TextDelta, parts: StepParts) -> None:
        self.stream.emit(StepText(path, delta.text, delta.num_tokens, delta.is_thought))
        for part in parts.told_by(delta):
            self.stream.emit(part)

    def _keep(self, conversation: Conversation, model: str | None) -> Conversation:
        self._conversations[id(conversation)] = _Open(conversation, model)
        return conversation

    def _model_of(self, conversation: Conversation) -> str | None:
        return self._conversations[id(conversation)].model

    # -- the end ----------------------------------------------------------------------------------

    def accounting(self) -> Accounting:
        """What the run cost so far."""
        try:
            statistics = self.backend.statistics()
        except Exception as error:
            # Whoever waits for the end must get one, also from a backend that is gone.
            statistics = BackendStatistics()
            self.close_failures.append(Failure("run", as_flowforge_error(error)))
        return self.book.total(statistics, self.stream.elapsed_s)


def _failed(
    path: str, error: FlowForgeError | None, following: NextTry | None
) -> StepFailed | StepRetried | StepCancelled:
    if error is None:
        return StepCancelled(path)
    if following is None or not following.is_for(error):
        return StepFailed(path, error.code, error.message, error.help)
    return StepRetried(
        path, error.code, error.message, error.help, following.path, following.delay_s
    )


def _finished(path: str, end: StepEnd) -> StepFinished:
    value = shown_value(end.value)
    return StepFinished(path, value, end.finish_reason, end.usage)
