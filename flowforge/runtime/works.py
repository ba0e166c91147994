"""What the core asks for, carried out: generations, tool calls, questions and the conversations.

Everything here acts and decides nothing. Each work ends with exactly one report.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from flowforge.backends.answer_grammars import value_of_answer
from flowforge.backends.preparing import is_worth_preparing, prepare
from flowforge.backends.protocol import GenerationDone, TextDelta
from flowforge.backends.revisions import revision_of
from flowforge.errors import EngineError, InternalError, WorkflowError
from flowforge.runtime.accounting import AccountBook
from flowforge.runtime.ahead import Ahead
from flowforge.runtime.caching import chain_of, parts_of_call, parts_of_generation
from flowforge.runtime.closing import close_conversation
from flowforge.runtime.commands import (
    Answered,
    Failed,
    Noted,
    Opened,
    PartClosed,
    Returned,
    StartCall,
    StartGeneration,
    StartQuestion,
    Stopped,
    ToolResults,
)
from flowforge.runtime.events import StepText
from flowforge.runtime.exact_choice import choose_exactly
from flowforge.runtime.expected_prompts import ExpectedPrompts
from flowforge.runtime.failures import as_flowforge_error
from flowforge.runtime.notices import fact_of
from flowforge.runtime.people import text_answer
from flowforge.runtime.state import Failure
from flowforge.runtime.step_parts import parts_of
from flowforge.runtime.uncertainty import may_run_again

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskGroup

    from flowforge.backends.notices import Notice
    from flowforge.backends.protocol import (
        Backend,
        Conversation,
        GenerateRequest,
        GenerationCut,
    )
    from flowforge.runtime.ahead import Items
    from flowforge.runtime.caching import StepCache
    from flowforge.runtime.commands import ExpectPrompt, ExpectUse, Prepare, Report, Turn
    from flowforge.runtime.events import StepPart
    from flowforge.runtime.people import Asker
    from flowforge.runtime.run_journal import PastTurn, RunJournal
    from flowforge.runtime.step_parts import StepParts
    from flowforge.runtime.stream import EventStream
    from flowforge.runtime.tool_times import ToolTimes
    from flowforge.secrets.secret_box import SecretBox
    from flowforge.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Whom the works of a run act through."""

    backend: Backend
    asker: Asker
    toolbox: Toolbox
    secrets: SecretBox
    tool_times: ToolTimes


class Works:
    """The works of one run and its conversations. Owned by the run's shell.

    book: what the works cost. close_failures: what a backend said against giving memory back.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        stream: EventStream,
        send: Callable[[Report | Noted], None],
        journal: RunJournal | None,
    ) -> None:
        self.book = AccountBook()
        self.close_failures: list[Failure] = []
        self._backend = surroundings.backend
        self._asker = surroundings.asker
        self._toolbox = surroundings.toolbox
        self._secrets = surroundings.secrets
        self._tool_times = surroundings.tool_times
        self._awaited: dict[str, tuple[StartCall | StartQuestion, float]] = {}
        self._stream = stream
        self._send = send
        self._journal = journal
        self._conversations: dict[str, Conversation] = {}
        self._restoring: dict[str, anyio.Lock] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._ahead: dict[str, Ahead] = {}
        self._preparing: dict[str, anyio.CancelScope] = {}
        self._expected = ExpectedPrompts(surroundings.backend, self._left_s)

    def start(self, command: StartGeneration | StartCall | StartQuestion, tasks: TaskGroup) -> None:
        """Begin a work; its report follows."""
        if command.path in self._preparing:
            self._preparing[command.path].cancel()
        if self._expected.is_coming(command.path):
            tasks.start_soon(self._expected.begun, command.path)
        self._scopes[command.path] = anyio.CancelScope()
        if not isinstance(command, StartGeneration):
            self._awaited[command.path] = (command, self._stream.elapsed_s)
        tasks.start_soon(self._work, command)

    def stop(self, path: str) -> None:
        """Cancel a work. It may have ended already, with its report still on the way."""
        if path in self._scopes:
            self._scopes[path].cancel()

    def foresee(self, command: StartGeneration, tasks: TaskGroup) -> None:
        """Begin a generation that nobody has asked for yet; nothing of it is told."""
        ahead = self._ahead[command.path] = Ahead(command)

        async def begin(tell: Callable[[Notice], None]) -> tuple[Conversation, Items]:
            conversation = await self._opened(command.continues, command.system, command.model)
            # No await from here on: what is open must come into the hands that close it.
            say(conversation, command.said)
            return conversation, conversation.generate(replace(command.request, tell=tell))

        tasks.start_soon(ahead.run, begin)

    async def give_up(self, path: str) -> None:
        """End the generation of `path` that was foreseen, if nobody has asked for it."""
        ahead = self._ahead.pop(path, None)
        if ahead is None:
            return
        try:
            cut = await ahead.give_up()
            if cut is not None:
                self.book.enter_cut(cut, ahead.command.model)
        except Exception as error:
            self.close_failures.append(Failure(path, as_flowforge_error(error)))

    def prepare(self, command: Prepare, tasks: TaskGroup) -> None:
        """Have what is known of a coming prompt computed while there is nothing else to do."""
        if command.continues is not None:
            conversation = self._conversations.get(command.continues)
            if conversation is None or not is_worth_preparing(conversation, command.beginning):
                return
        self._preparing[command.path] = anyio.CancelScope()
        tasks.start_soon(self._prepare, command)

    def stop_preparing(self) -> None:
        """Nothing more comes."""
        self._expected.end()
        for scope in self._preparing.values():
            scope.cancel()

    async def _prepare(self, command: Prepare) -> None:
        continues, conversation = command.continues, None
        try:
            with self._preparing[command.path]:
                if continues is None or continues in self._conversations:
                    conversation = await self._opened(continues, command.system, command.model)
                    await prepare(conversation, command.beginning)
        except (EngineError, WorkflowError):
            # Nothing was asked for yet: the step itself will meet what is wrong, and tell.
            pass
        finally:
            del self._preparing[command.path]
            if conversation is not None:
                await self._close_prepared(conversation, command)

    async def _close_prepared(self, conversation: Conversation, command: Prepare) -> None:
        cut = conversation.take_cut()
        if cut is not None:
            self.book.enter_cut(cut, command.model)
        await close_conversation(conversation, command.path, self.close_failures)

    def expect_use(self, use: ExpectUse) -> None:
        """Tell the backend how soon a conversation is continued, if it is open."""
        if use.path in self._conversations:
            ready_in_s = max(map(self._left_s, use.awaits), default=0.0)
            self._conversations[use.path].expect_use(use.num_steps, ready_in_s)

    def expect_prompt(self, prompt: ExpectPrompt, tasks: TaskGroup) -> None:
        """Tell the backend what is known of a coming prompt, where memory is short."""
        if self._expected.take(prompt):
            tasks.start_soon(self._expected.tell)

    def _left_s(self, path: str) -> float:
        """How long a call or question may still take."""
        if path not in self._awaited:
            return 0.0
        command, since_s = self._awaited[path]
        passed_s = self._stream.elapsed_s - since_s
        return max(0.0, self._tool_times.expected_s(command) - passed_s)

    async def release(self, path: str) -> None:
        """Close the conversation of `path`, if there is one."""
        conversation = self._conversations.pop(path, None)
        self._restoring.pop(path, None)
        if conversation is not None:
            await close_conversation(conversation, path, self.close_failures)

    async def release_all(self) -> None:
        """Close what is still open."""
        self.close_failures += await self._expected.close()
        for path in list(self._ahead):
            await self.give_up(path)
        for path in list(self._conversations):
            await self.release(path)

    async def _work(self, command: StartGeneration | StartCall | StartQuestion) -> None:
        report: Report = Stopped(command.path)
        with self._scopes[command.path]:
            try:
                report = await self._act(command)
            except Exception as error:
                failure = as_flowforge_error(error)
                self._secrets.mask_error(failure)
                report = Failed(command.path, failure)
        del self._scopes[command.path]
        awaited = self._awaited.pop(command.path, None)
        if awaited is not None and isinstance(report, Returned) and not report.is_cached:
            self._tool_times.took(awaited[0], self._stream.elapsed_s - awaited[1])
        self._send(report)

    async def _act(self, command: StartGeneration | StartCall | StartQuestion) -> Report:
        cache = None if self._journal is None else self._journal.cache
        if cache is None or isinstance(command, StartQuestion) or command.cache_s is None:
            return await self._carry_out(command)
        return await self._cached(command, cache)

    async def _carry_out(self, command: StartGeneration | StartCall | StartQuestion) -> Report:
        match command:
            case StartGeneration():
                return await self._answer(command)
            case StartCall():
                return await self._call(command)
            case StartQuestion():
                answer = text_answer(command.path, await self._asker(command))
                return Returned(command.path, answer)

    # -- results from the cache -------------------------------------------------------------------

    async def _cached(self, command: StartGeneration | StartCall, cache: StepCache) -> Report:
        parts = await self._parts(command, cache)
        async with cache.only_one(parts):
            found = await cache.find(command, parts)
            if found is None:
                report = await self._carry_out(command)
                if isinstance(report, Answered | Returned):
                    await cache.keep(command, parts, report)
                return report
        if isinstance(command, StartGeneration) and isinstance(found, Answered):
            return await self._take(command, found.done)
        return found

    async def _parts(
        self, command: StartGeneration | StartCall, cache: StepCache
    ) -> dict[str, str]:
        if isinstance(command, StartCall):
            return parts_of_call(command, self._toolbox.function_of(command.tool))
        assert self._journal is not None
        revision = await revision_of(self._backend, command.model)
        source = command.continues
        turns = [] if source is None else await self._journal.turns_before(source, ())
        return parts_of_generation(command, revision, chain_of(turns), is_seeded=cache.is_seeded)

    async def _take(self, command: StartGeneration, done: GenerationDone) -> Report:
        """Go on as if the model had just written this.

        A conversation that is not open is made from the journal once somebody continues it.
        """
        path = command.path
        if command.continues != path:
            self._send(Opened(path))
        else:
            # It lacks this turn.
            await self.release(path)
        if done.text:
            self._tell(path, parts_of(command.request), TextDelta(done.text, 0))
        return Answered(path, await _with_value(command.request, done), is_cached=True)

    # -- calls ------------------------------------------------------------------------------------

    async def _call(self, command: StartCall) -> Report:
        journal = self._journal
        if journal is not None and journal.is_uncertain(command):
            policy = journal.on_uncertain or command.tool.on_uncertain
            if not await may_run_again(command, policy, self._asker, self._stream.emit):
                return Returned(command.path, None)
        value = await self._toolbox.call(
            command.tool, command.arguments, command.path, command.member
        )
        return Returned(command.path, value)

    # -- generations ------------------------------------------------------------------------------

    async def _answer(self, command: StartGeneration) -> Report:
        request = command.request
        if request.options.scoring == "exact":
            conversation = await self._conversation(command)
            say(conversation, command.said)
            chosen, scored = await choose_exactly(conversation, request)
            self.book.enter_scoring(scored, command.model)
            return Answered(command.path, chosen)
        items, take_cut = await self._begun(command)
        parts = parts_of(request)
        done: GenerationDone | None = None
        try:
            async for item in items:
                if isinstance(item, TextDelta):
                    for fact in self._tell(command.path, parts, item):
                        if command.tells_parts:
                            self._send(PartClosed(command.path, fact.key, fact.value))
                    if self._journal is not None:
                        await self._journal.wrote(command.path, item.token_ids)
                else:
                    done = item
        finally:
            with anyio.CancelScope(shield=True):
                await items.aclose()
            cut = take_cut()
            if cut is not None:
                self.book.enter_cut(cut, command.model)
        if done is None:
            raise InternalError(
                "IN507", f"backend {self._backend.name!r} ended a generation without its result"
            )
        self.book.enter(done, command.model)
        return Answered(command.path, await _with_value(request, done))

    def _tell(self, path: str, parts: StepParts, delta: TextDelta) -> list[StepPart]:
        """Tell readers of the run what is written; returns the parts that are final by it."""
        self._stream.emit(StepText(path, delta.text, delta.num_tokens, delta.is_thought))
        closed = [*parts.told_by(delta)]
        for part in closed:
            self._stream.emit(part)
        return closed

    async def _begun(
        self, command: StartGeneration
    ) -> tuple[Items, Callable[[], GenerationCut | None]]:
        """Let the model write, unless it does so already; and who says what that cost if cut."""
        path, request = command.path, command.request
        if self._journal is not None and not request.with_logprob:
            request = replace(request, written=self._journal.written(command))

        def tell(notice: Notice) -> None:
            self._send(Noted(fact_of(notice, path)))

        ahead = self._ahead.get(path)
        if ahead is not None and ahead.command == command and not request.written:
            try:
                conversation, items = await ahead.adopt(tell)
            except BaseException:
                await self.give_up(path)
                raise
            del self._ahead[path]
            self._conversations[path] = conversation
            self._send(Opened(path))
            return items, ahead.take_cut
        await self.give_up(path)
        conversation = await self._conversation(command)
        say(conversation, command.said)
        return conversation.generate(replace(request, tell=tell)), conversation.take_cut

    async def _conversation(self, command: StartGeneration) -> Conversation:
        path = command.path
        if command.continues == path:
            return await self._open_conversation(path)
        conversation = await self._opened(command.continues, command.system, command.model)
        self._conversations[path] = conversation
        self._send(Opened(path))
        return conversation

    async def _opened(
        self, continues: str | None, system: str | None, model: str | None
    ) -> Conversation:
        """A conversation of its own, new or forked."""
        if continues is None:
            return await self._backend.open(system=system, model=model)
        return await (await self._open_conversation(continues)).fork()

    async def _open_conversation(self, path: str) -> Conversation:
        """The conversation of a work that has ended; made again if another process had it."""
        if path in self._conversations or self._journal is None:
            return self._conversations[path]
        # Branches that continue one conversation ask for it at once: one makes it.
        async with self._restoring.setdefault(path, anyio.Lock()):
            if path not in self._conversations:
                turns = await self._journal.turns_before(path, self._conversations)
                self._conversations[path] = await self._made_again(turns)
            return self._conversations[path]

    async def _made_again(self, turns: list[PastTurn]) -> Conversation:
        first = turns[0]
        if first.continues is None:
            conversation = await self._backend.open(system=first.system, model=first.model)
        else:
            conversation = await self._conversations[first.continues].fork()
        try:
            for turn in turns:
                say(conversation, turn.said)
                if turn.done.was_weighed:
                    conversation.add_assistant(turn.done.text)
                else:
                    conversation.add_written(turn.done, turn.prefill, turn.offer)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await conversation.close()
            raise
        return conversation


async def _with_value(request: GenerateRequest, done: GenerationDone) -> GenerationDone:
    """Have lark judge an answer under a grammar, which takes too long for the event loop."""
    grammar = request.grammar
    if grammar is None or done.calls or done.finish_reason == "length":
        return done
    value = await anyio.to_thread.run_sync(value_of_answer, grammar, done.text)
    return replace(done, parsed=value)


def say(conversation: Conversation, said: tuple[Turn, ...]) -> None:
    """Append turns whose text is given."""
    for turn in said:
        if isinstance(turn, ToolResults):
            conversation.add_results(turn.results)
        elif turn.role == "user":
            conversation.add_user(turn.text)
        else:
            conversation.add_assistant(turn.text)
