"""A place in a conversation: what was said so far, and who may go on from there.

A turn that fails, is cut off or is cancelled leaves the conversation as it was. Backends see to
that for a turn that does not come to its end; a turn that must stand a check afterwards is written
on a fork, which takes the conversation's place when it does.
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from flowforge.backends.protocol import (
    GenerateRequest,
    GenerationDone,
    Score,
    ScoreRequest,
)
from flowforge.errors import InternalError, WorkflowError
from flowforge.flows.cached_turns import cached
from flowforge.flows.failures import ChatBusy
from flowforge.flows.retries import spec_of_retry, with_retries
from flowforge.flows.sampling import answer_options_of, cache_use_of, sampling_of
from flowforge.runtime.exact_choice import drawn_text
from flowforge.runtime.seeds import derived_seed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence

    from flowforge.backends.protocol import Conversation, ToolOffer
    from flowforge.flows.cached_turns import CacheUse
    from flowforge.flows.retries import NextTry, Retry
    from flowforge.flows.sampling import FormKind, SamplingOptions
    from flowforge.flows.scopes import Scope
    from flowforge.flows.session import FlowSession
    from flowforge.language.answer_specs import GrammarSpec
    from flowforge.language.program import JsonValue

T = TypeVar("T")

_SOON, _AFTER_FORKS = 0, 1
"""In how many steps a conversation is needed: its function goes on with it, or its forks do first.

More is not known of a function. What it has closed is needed by nobody.
"""


@dataclass(frozen=True, slots=True)
class Form:
    """What form a turn must have, at most one; offer: which tools it may call."""

    schema: Mapping[str, JsonValue] | None = None
    choice: tuple[str, ...] | None = None
    regex: str | None = None
    grammar: GrammarSpec | None = None
    offer: ToolOffer | None = None

    @property
    def kind(self) -> FormKind:
        """What options about forms go by."""
        if self.schema is not None:
            return "json"
        others = (self.choice, self.regex, self.grammar)
        return "other" if any(form is not None for form in others) else "free"


FREE = Form()


class Turn:
    """One turn of the model while it is written. value: what its step comes to."""

    def __init__(
        self,
        session: FlowSession,
        conversation: Conversation,
        request: GenerateRequest,
        cache: CacheUse | None = None,
    ) -> None:
        self._cache = cache
        self.conversation = conversation
        self.path: str = request.label
        self.value: object = None
        self._session = session
        self._request = request
        self._done: GenerationDone | None = None
        self._num_rounds = 0

    @property
    def is_whole(self) -> bool:
        """Whether the model has come to its end."""
        return self._done is not None

    @property
    def done(self) -> GenerationDone:
        """The end of a turn that is whole."""
        if self._done is None:
            raise InternalError("IN601", f"the turn of {self.path!r} is not written yet")
        return self._done

    async def texts(self) -> AsyncGenerator[str]:
        """The text as it comes, without thoughts; close it to stop early."""
        items = self._session.generate(self.conversation, self._request)
        async with cached(self._session, self, self._request, self._cache), aclosing(items):
            async for item in items:
                if isinstance(item, GenerationDone):
                    self._done = item
                elif not item.is_thought:
                    yield item.text

    async def follow(self, results: Sequence[JsonValue], offer: ToolOffer) -> GenerationDone:
        """Give the results of the calls back, and let the model write again."""
        self.conversation.add_results(results)
        sampling = self._request.sampling
        if sampling.seed is not None:
            self._num_rounds += 1
            seed = derived_seed(sampling.seed, f"round {self._num_rounds}")
            sampling = replace(sampling, seed=seed)
        self._request = replace(self._request, offer=offer, sampling=sampling)
        self._done = None
        return await self.write()

    async def write(self) -> GenerationDone:
        """Let the model write to its end."""
        async with aclosing(self.texts()) as texts:
            async for _ in texts:
                pass
        return self.done


class Cursor:
    """Owns one conversation. last_path: of the step whose turn is the conversation's last."""

    def __init__(
        self,
        session: FlowSession,
        scope: Scope,
        conversation: Conversation,
        last_path: str | None = None,
    ) -> None:
        self.session = session
        self.scope = scope
        self.last_path = last_path
        self._conversation = conversation
        self._is_closed = False
        self._writes: str | None = None
        self._num_forks = 0
        conversation.expect_use(_SOON)

    def add_user(self, text: str) -> None:
        """Append a user turn. Raises ChatBusy."""
        self._require_free()
        self._conversation.add_user(text)

    async def fork(self, scope: Scope) -> Cursor:
        """A second cursor from here; to be closed before `frozen` ends."""
        conversation = await self.session.fork(self._conversation)
        return Cursor(self.session, scope, conversation, self.last_path)

    async def close(self) -> None:
        """Give the conversation back; idempotent."""
        self._is_closed = True
        await self.session.close(self._conversation)

    @contextmanager
    def frozen(self) -> Generator[None]:
        """While forks are open. Raises ChatBusy while the model writes here."""
        self._require_open()
        if self._writes is not None:
            raise ChatBusy(f"the model writes {self._writes!r}")
        self._num_forks += 1
        if self._num_forks == 1:
            self._conversation.expect_use(_AFTER_FORKS)
        try:
            yield
        finally:
            self._num_forks -= 1
            if self._num_forks == 0 and not self._is_closed:
                self._conversation.expect_use(_SOON)

    @contextmanager
    def writing(self, name: str) -> Generator[None]:
        """While the model writes for the step called `name`. Raises ChatBusy."""
        self._require_free()
        self._writes = name
        try:
            yield
        finally:
            self._writes = None

    async def tried(
        self,
        name: str,
        retry: Retry | int,
        attempt: Callable[[str, NextTry | None], Awaitable[T]],
        *,
        is_relaxed: bool = False,
    ) -> T:
        """A step called `name`, tried as often as `retry` says; nobody else writes meanwhile."""
        spec = spec_of_retry(retry, is_relaxed=is_relaxed)
        with self.writing(name):
            return await with_retries(self.session, self.scope.path(name), spec, attempt)

    @asynccontextmanager
    async def turn(
        self, name: str, options: SamplingOptions, form: Form = FREE
    ) -> AsyncGenerator[Turn]:
        """`attempt` at a step called `name`, which is tried once."""
        with self.writing(name):
            async with self.attempt(self.scope.path(name), options, form) as turn:
                yield turn

    @asynccontextmanager
    async def attempt(
        self,
        path: str,
        options: SamplingOptions,
        form: Form = FREE,
        following: NextTry | None = None,
    ) -> AsyncGenerator[Turn]:
        """A step in which the model writes the next turn, which counts when the block ends well.

        A block that leaves before the turn is whole cancels the step.
        """
        with self.session.step(path, "gen", self.last_path, following) as end:
            request = self._request(path, options, form)
            conversation = self._conversation
            if form != FREE:
                conversation = await self.session.fork(conversation)
            turn = Turn(self.session, conversation, request, cache_use_of(options))
            async with self.trying(turn):
                yield turn
            if turn.is_whole:
                end.value = turn.value
                end.finish_reason, end.usage = turn.done.finish_reason, turn.done.usage
                self.last_path = path
            else:
                end.is_left_early = True

    async def choose(
        self, path: str, texts: tuple[str, ...], options: SamplingOptions, following: NextTry | None
    ) -> str:
        """A step that weighs texts and says one of them, which becomes the next turn."""
        with self.session.step(path, "gen", self.last_path, following) as end:
            request = ScoreRequest(texts, label=path)
            done = await self.session.score(self._conversation, request)
            seed = options.get("seed", self.session.seed_for(path))
            chosen = drawn_text(done.scores, options.get("temperature", 0.0), seed)
            self._conversation.add_assistant(chosen)
            end.value, end.usage = chosen, done.usage
            self.last_path = path
        return chosen

    async def score(
        self, path: str, texts: tuple[str, ...], following: NextTry | None
    ) -> tuple[Score, ...]:
        """A step in which the model weighs texts as its next turn; nothing is said."""
        with self.session.step(path, "score", self.last_path, following) as end:
            request = ScoreRequest(texts, label=path)
            done = await self.session.score(self._conversation, request)
            end.value, end.usage = done.scores, done.usage
        return done.scores

    @asynccontextmanager
    async def trying(self, turn: Turn) -> AsyncGenerator[None]:
        """The turn's conversation becomes the cursor's if the block ends well with a whole turn."""
        if turn.conversation is self._conversation:
            yield
            return
        dropped = turn.conversation
        try:
            yield
            if turn.is_whole:
                dropped, self._conversation = self._conversation, turn.conversation
                self._conversation.expect_use(_SOON)
        finally:
            await self.session.close(dropped)

    async def sample(
        self,
        path: str,
        idx: int,
        options: SamplingOptions,
        form: Form,
    ) -> Turn:
        """One of several answers to what was said, on a fork that the caller closes."""
        if "seed" in options:
            # One seed for all samples would give one answer many times.
            options = {**options, "seed": derived_seed(options["seed"], f"sample {idx}, try 1")}
        draft = await self.session.fork(self._conversation)
        request = self._request(path, options, form)
        return Turn(self.session, draft, request, cache_use_of(options))

    def _request(self, path: str, options: SamplingOptions, form: Form) -> GenerateRequest:
        return GenerateRequest(
            sampling=sampling_of(options, self.session.seed_for(path)),
            json_schema=form.schema,
            choice=form.choice,
            regex=form.regex,
            offer=form.offer,
            grammar=form.grammar,
            options=answer_options_of(options, form.kind),
            label=path,
        )

    def _require_free(self) -> None:
        self._require_open()
        if self._writes is not None:
            raise ChatBusy(f"the model writes {self._writes!r}")
        if self._num_forks:
            raise ChatBusy("forks of it are open")

    def _require_open(self) -> None:
        if self._is_closed:
            raise WorkflowError(
                "WF609",
                "the chat was used after the end of its block",
                help="keep what uses it inside 'async with', and return values, not chats",
            )
