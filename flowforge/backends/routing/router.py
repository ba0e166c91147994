"""A route as a backend: each request goes to the model that it is for, or to the next one.

A conversation on a route is what was said in it; conversations with its models are opened when a
request first goes there, and forked with it, so that what they share stays shared.
"""

from __future__ import annotations

import time
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from flowforge.backends.notices import Routed
from flowforge.backends.protocol import GenerationDone, TextDelta
from flowforge.backends.routing.breaker import Breaker
from flowforge.backends.routing.route import Asked, Choice, choices_for, is_shadowed
from flowforge.backends.routing.shadows import ShadowAnswer
from flowforge.backends.routing.turns import (
    SaidResults,
    SaidText,
    WrittenBy,
    num_chars_of,
    tell,
)
from flowforge.errors import EngineError, InternalError
from flowforge.language.remote_models import REMOTE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from anyio.abc import TaskGroup

    from flowforge.backends.notices import Notice
    from flowforge.backends.protocol import (
        Conversation,
        GenerateRequest,
        GenerationCut,
        JsonValue,
        ScoreRequest,
        ScoringDone,
        ToolOffer,
    )
    from flowforge.backends.routing.route import Route
    from flowforge.backends.routing.turns import SaidTurn

_OF_THE_SERVER = frozenset({"EN401", "EN403", "EN408", "EN409"})
"""Codes that say something of a server's health; others say something of the request."""
_MAX_SHADOWS = 64


class Router:
    """One route. open_on: opens a conversation with a model. tasks: where shadows run.

    loads: requests under way by model, those of this route.
    """

    def __init__(
        self,
        route: Route,
        open_on: Callable[[str, str | None], Awaitable[Conversation]],
        tasks: TaskGroup,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.route = route
        self.open_on = open_on
        self.now: Callable[[], float] = now
        self.loads: dict[str, int] = dict.fromkeys(route.targets, 0)
        self.breakers = {target: Breaker(route.failures, route.pause_s) for target in route.targets}
        self._tasks = tasks
        self._num_shadows = 0

    @property
    def num_local(self) -> int:
        """Models of this process that it may send to."""
        return sum(not target.startswith(REMOTE) for target in self.route.targets)

    async def open(self, system: str | None) -> RoutedConversation:
        """Start a conversation; with which models, its requests decide."""
        await anyio.lowlevel.checkpoint()
        return RoutedConversation(self, system, (), {})

    def cast_shadow(
        self, request: GenerateRequest, open_: Callable[[], Awaitable[Conversation]]
    ) -> ShadowAnswer | None:
        """Have the second model answer too; None where too many are at it already."""
        if self._num_shadows >= _MAX_SHADOWS:
            return None
        shadow = ShadowAnswer(self.route, request)
        self._num_shadows += 1

        async def run() -> None:
            try:
                await shadow.run(open_)
            finally:
                self._num_shadows -= 1

        self._tasks.start_soon(run)
        return shadow


class RoutedConversation:
    """See `Conversation`. Owns the conversations with its models, by their names."""

    def __init__(
        self,
        router: Router,
        system: str | None,
        turns: tuple[SaidTurn, ...],
        inner: dict[str, tuple[Conversation, int]],
    ) -> None:
        """inner: conversations with models, and how many of the turns each has been told."""
        self._router = router
        self._system = system
        self._turns = turns
        self._inner = inner
        self._shadows: list[ShadowAnswer] = []
        self._cut: GenerationCut | None = None
        self._next_use: tuple[float, float] | None = None
        self._is_open = True

    def add_user(self, text: str) -> None:
        """See `Conversation.add_user`."""
        self._turns = (*self._turns, SaidText("user", text))

    def add_assistant(self, text: str) -> None:
        """See `Conversation.add_assistant`."""
        self._turns = (*self._turns, SaidText("assistant", text))

    def add_results(self, results: Sequence[JsonValue]) -> None:
        """See `Conversation.add_results`."""
        last = self._turns[-1] if self._turns else None
        num_calls = len(last.done.calls) if isinstance(last, WrittenBy) else 0
        if len(results) != num_calls:
            raise ValueError(f"expected {num_calls} results, got {len(results)}")
        self._turns = (*self._turns, SaidResults(tuple(results)))

    def add_written(
        self, written: GenerationDone, prefill: str, offer: ToolOffer | None = None
    ) -> None:
        """See `Conversation.add_written`; models are told of it as of a text."""
        self._turns = (*self._turns, WrittenBy(written, prefill, offer, None))

    def expect_use(self, num_steps: float, ready_in_s: float = 0.0) -> None:
        """See `Conversation.expect_use`."""
        self._next_use = (num_steps, ready_in_s)
        for conversation, _ in self._inner.values():
            conversation.expect_use(num_steps, ready_in_s)

    async def fork(self) -> RoutedConversation:
        """See `Conversation.fork`."""
        self._require_open()
        forks: dict[str, tuple[Conversation, int]] = {}
        try:
            for model, (conversation, num_told) in self._inner.items():
                forks[model] = (await conversation.fork(), num_told)
            await anyio.lowlevel.checkpoint()
        except BaseException:
            await _close_all(forks)
            raise
        return RoutedConversation(self._router, self._system, self._turns, forks)

    async def close(self) -> None:
        """See `Conversation.close`. Waits for second answers, as long as the route says."""
        self._is_open = False
        shadow = self._router.route.shadow
        shadows, self._shadows = self._shadows, []
        if shadow is not None and shadows:
            with anyio.move_on_after(shadow.wait_s):
                for one in shadows:
                    await one.ended.wait()
            for one in shadows:
                one.drop()
                await one.ended.wait()
        inner, self._inner = self._inner, {}
        await _close_all(inner)
        await anyio.lowlevel.checkpoint()

    def take_cut(self) -> GenerationCut | None:
        """See `Conversation.take_cut`."""
        cut, self._cut = self._cut, None
        return cut

    async def score(self, request: ScoreRequest) -> ScoringDone:
        """See `Conversation.score`; by the model that a request would first go to."""
        choice = self._choices(self._asked(request.label, (), ""))[0]
        conversation = await self._on(choice.to)
        return await conversation.score(request)

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        """See `Conversation.generate`. Raises what the last model raised, EngineError EN411."""
        self._require_open()
        self._cut = None
        asked = self._asked(request.label, request.tags, request.run_key)
        shadow = self._shadow(request, asked)
        is_answered = False
        try:
            generation = self._by_the_first_that_answers(request, asked)
            try:
                async for item in generation:
                    if isinstance(item, GenerationDone) and shadow is not None:
                        shadow.take_first(item)
                        is_answered = True
                    yield item
            finally:
                await generation.aclose()
        finally:
            if shadow is not None and not is_answered:
                shadow.drop()

    async def _by_the_first_that_answers(
        self, request: GenerateRequest, asked: Asked
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        router, has_begun = self._router, False
        choices = [*self._choices(asked)]
        while choices:
            choice = choices.pop(0)
            breaker = router.breakers[choice.to]
            if not breaker.admit(router.now()) and choices:
                # Another request is its trial by now.
                continue
            _tell_route(request.tell, router.route.label, choice)
            items = self._from(choice.to, request)
            try:
                async for item in items:
                    # The prefill is told before anybody is asked.
                    is_prefill = isinstance(item, TextDelta) and item.text == request.prefill
                    if isinstance(item, TextDelta) and not item.num_tokens and is_prefill:
                        if not has_begun:
                            yield item
                        has_begun = True
                        continue
                    if isinstance(item, TextDelta):
                        choices = []
                    yield item
                breaker.succeed()
                return
            except EngineError as error:
                if error.code in _OF_THE_SERVER:
                    breaker.fail(router.now())
                if not choices:
                    raise
                following = choices[0]
                choices[0] = Choice(following.to, f"fallback: {choice.to} failed [{error.code}]")
            finally:
                await items.aclose()

    async def _from(
        self, model: str, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        """The answer of one model, which joins the conversation when it is whole."""
        router = self._router
        if model.startswith(REMOTE) or router.num_local > 1:
            # Nobody knows whose tokens these are.
            request = replace(request, written=())
        conversation = await self._on(model)
        router.loads[model] += 1
        items = conversation.generate(request)
        try:
            async for item in items:
                if isinstance(item, GenerationDone):
                    turn = WrittenBy(item, request.prefill, request.offer, model)
                    self._turns = (*self._turns, turn)
                    self._inner[model] = (conversation, len(self._turns))
                yield item
        finally:
            router.loads[model] -= 1
            await items.aclose()
            self._cut = conversation.take_cut() or self._cut

    async def _on(self, model: str) -> Conversation:
        """The conversation with a model, told of all that was said."""
        if model not in self._inner:
            conversation = await self._router.open_on(model, self._system)
            if self._next_use is not None:
                conversation.expect_use(*self._next_use)
            self._inner[model] = (conversation, 0)
        conversation, num_told = self._inner[model]
        tell(conversation, self._turns[num_told:], model)
        self._inner[model] = (conversation, len(self._turns))
        return conversation

    def _shadow(self, request: GenerateRequest, asked: Asked) -> ShadowAnswer | None:
        shadow = self._router.route.shadow
        if shadow is None or not is_shadowed(self._router.route, asked):
            return None
        model, turns, system = shadow.to, self._turns, self._system

        async def open_() -> Conversation:
            conversation = await self._router.open_on(model, system)
            tell(conversation, turns, model)
            return conversation

        begun = self._router.cast_shadow(request, open_)
        if begun is not None:
            self._shadows.append(begun)
        return begun

    def _asked(self, label: str, tags: tuple[str, ...], run_key: str) -> Asked:
        beginning = repr((self._system, self._turns[:1]))
        key = blake2b(beginning.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        num_chars = len(self._system or "") + num_chars_of(self._turns)
        return Asked(label, tags, num_chars, run_key, key)

    def _choices(self, asked: Asked) -> tuple[Choice, ...]:
        """The models to ask, without those that are left alone. Raises EngineError EN411."""
        router, now = self._router, self._router.now()
        choices = choices_for(router.route, asked, router.loads.__getitem__)
        rests = {one.to: router.breakers[one.to].rest_s(now) for one in choices}
        first = choices[0]
        ready = tuple(one for one in choices if not rests[one.to])
        if not ready:
            shown = ", ".join(f"{to} for {rest_s:.0f} s more" for to, rest_s in rests.items())
            raise EngineError(
                "EN411",
                f"{router.route.label} has no model left to ask: {shown} left alone",
                help="see why they failed (flowforge report routes), or add one to 'fallback'",
            )
        if ready[0] is first:
            return ready
        reason = f"fallback: {first.to} is left alone for {rests[first.to]:.0f} s more"
        return (Choice(ready[0].to, reason), *ready[1:])

    def _require_open(self) -> None:
        if not self._is_open:
            raise InternalError("IN510", "a closed conversation was used")


def _tell_route(tell_: Callable[[Notice], None] | None, route: str, choice: Choice) -> None:
    if tell_ is not None:
        tell_(Routed(route, choice.to, choice.reason))


async def _close_all(inner: dict[str, tuple[Conversation, int]]) -> None:
    with anyio.CancelScope(shield=True):
        for conversation, _ in inner.values():
            await conversation.close()
