"""A sequence as its user holds it: append, generate, fork, close, from a task of any event loop."""

from __future__ import annotations

from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio

from flowforge.engine.arguments import require, require_integer, require_number
from flowforge.engine.loop_bridge import Mailbox
from flowforge.engine.sampling import require_num_logprobs
from flowforge.engine.sequence import (
    GenerationFailed,
    GenerationFinished,
    GenerationRequest,
    GenerationUsage,
    SequenceId,
    TokensArrived,
    Update,
)
from flowforge.engine.step_errors import reader_error
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from flowforge.engine.core import EngineCore
    from flowforge.engine.engine_thread import EngineThread
    from flowforge.engine.prefix_rows import KvPrefix
    from flowforge.engine.sampling import TokenLogprobs


class EngineSequence:
    """A handle on one sequence of an engine. Used by one task at a time; `close` it when done.

    tokens: prompt and output, in order. The handle's own: read it, change it through the methods.
    num_computed: so many of them, from the front, were computed for it or whom it was forked from.
    cut_usage: what the last generation cost if it was stopped early or failed; else None.
    """

    def __init__(
        self,
        thread: EngineThread,
        sequence_id: SequenceId,
        tokens: list[int],
        num_computed: int = 0,
    ) -> None:
        self._thread = thread
        self._id = sequence_id
        self._is_closed = False
        self._is_generating = False
        self.tokens = tokens
        self.num_computed = num_computed
        self.cut_usage: GenerationUsage | None = None

    def __repr__(self) -> str:
        return f"EngineSequence({self._id} tokens={len(self.tokens)})"

    def append(self, token_ids: Sequence[int]) -> None:
        """Add prompt tokens; they are computed when the sequence next generates.

        Raises EngineError EN203 for an id that is not in the vocabulary, EN204 when closed, EN205
        while generating.
        """
        self._require_idle()
        added = list(token_ids)
        self._thread.require_known(added)
        if added:
            self.tokens += added
            self._thread.post(lambda core: core.append(self._id, added))

    def truncate(self, num_tokens: int) -> None:
        """Forget the tokens behind the first `num_tokens`. Raises as `append` does, and EN210.

        On an engine that has ended only the handle's own list changes: clean-up may come late.
        """
        self._require_idle()
        require_integer("num_tokens", num_tokens)
        require(num_tokens >= 0, "num_tokens", "at least 0", num_tokens)
        if num_tokens < len(self.tokens):
            del self.tokens[num_tokens:]
            self.num_computed = min(self.num_computed, num_tokens)
            if self._thread.is_running:
                self._thread.post(lambda core: core.truncate(self._id, num_tokens))

    def expect_use(self, num_steps: float, ready_at_s: float = 0.0) -> None:
        """Say in how many steps this sequence is needed again; see `EngineCore.expect_use`.

        An engine that has ended is told nothing: whoever uses the sequence will hear of that.
        """
        self._require_open()
        require_number("num_steps", num_steps)
        require(num_steps >= 0, "num_steps", "at least 0", num_steps)
        require_number("ready_at_s", ready_at_s)
        if not self._thread.is_running:
            return
        self._thread.post(lambda core: core.expect_use(self._id, num_steps, ready_at_s))

    def expect_last_use(self) -> None:
        """Say that the tokens are not needed after `close`; see `EngineCore.expect_last_use`."""
        self._require_open()
        self._thread.post(lambda core: core.expect_last_use(self._id))

    async def fork(self) -> EngineSequence:
        """A second sequence with the same tokens, sharing their KV copy-on-write.

        Works at any point, also while the parent generates: the child then has the tokens that
        the parent had between two steps. Raises EngineError EN204 when closed.
        """
        self._require_open()
        child_id = self._thread.next_id()
        tokens = list(self.tokens)
        if self._is_generating:
            try:
                tokens = await self._thread.ask(lambda core: core.fork(self._id, child_id))
            except BaseException:
                # A child that exists and that nobody holds could never be closed.
                if self._thread.is_running:
                    self._thread.post(lambda core: core.close(child_id))
                raise
        else:
            self._thread.post(lambda core: core.fork(self._id, child_id))
        return EngineSequence(self._thread, child_id, tokens, min(self.num_computed, len(tokens)))

    async def prefill(self, *, is_spare: bool = False) -> GenerationUsage:
        """Compute the tokens that are there and keep the logits behind them for forks to sample.

        is_spare: only in steps in which there is nothing else to compute.
        """
        stream = self._start(lambda core, sink: core.prefill(self._id, sink, is_spare=is_spare))
        return (await _end_of(stream)).usage

    async def score(
        self, token_ids: Sequence[int], *, num_top: int = 0
    ) -> tuple[TokenLogprobs, ...]:
        """Append tokens and say how likely the model found each, in one pass over them.

        num_top: so many of the likeliest tokens beside each, at most 100. The first token of a
        sequence has no probability: append it, and score the rest. Raises EngineError EN210, and as
        `append` and `generate` do; the tokens are then not appended.
        """
        added = list(token_ids)
        self._thread.require_known(added)
        require_num_logprobs("num_top", num_top)
        before = len(self.tokens)
        stream = self._start(lambda core, sink: core.score(self._id, added, sink, num_top))
        finished = await _end_of(stream)
        self.tokens[before:] = added
        return finished.scored

    def generate(
        self, request: GenerationRequest, rest_s: Callable[[], float] | None = None
    ) -> AsyncGenerator[TokensArrived | GenerationFinished]:
        """Sample until an end: tokens as they come, then one `GenerationFinished`.

        rest_s: called after tokens were handed out; for so many seconds those that come are
        gathered, and handed out together. The end does not wait. To wake a reader for every token
        takes of the cores that compute the next.
        Closing the generator early stops the generation before the next step and takes the tokens
        that were handed out so far as the sequence's.
        Raises EngineError: EN201 empty prompt, EN202 does not fit, EN21x while sampling, EN220 the
        model failed.
        """
        return self._start(lambda core, sink: core.generate(self._id, request, sink), rest_s)

    async def take_out(self) -> KvPrefix | None:
        """A copy of the KV that is computed of it; None where it holds none."""
        self._require_open()
        return await self._thread.ask(lambda core: core.take_out(self._id))

    async def close(self) -> None:
        """Give the pages back; returns when they are. Idempotent, and safe under cancellation."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread.is_running:
            with anyio.CancelScope(shield=True):
                await self._thread.ask(lambda core: core.close(self._id))

    async def _start(
        self,
        begin: Callable[[EngineCore, Mailbox[Update]], None],
        rest_s: Callable[[], float] | None = None,
    ) -> AsyncGenerator[TokensArrived | GenerationFinished]:
        self._require_idle()
        updates: Mailbox[Update] = Mailbox(self._thread.wake_ups, _may_wait)

        def command(core: EngineCore) -> None:
            try:
                begin(core, updates)
            except Exception as error:
                told = reader_error(error, "EN213", "preparing to choose tokens failed")
                updates.put(GenerationFailed(told))

        self._thread.post(command)
        self._is_generating = True
        self.cut_usage = None
        is_over = has_rested = False
        waiting: deque[Update] = deque()
        try:
            while not is_over:
                arrived = await updates.take()
                waiting.extend(_joined(arrived) if has_rested else arrived)
                while waiting:
                    update = waiting.popleft()
                    is_over = isinstance(update, GenerationFinished | GenerationFailed)
                    if isinstance(update, GenerationFailed):
                        self.cut_usage = update.usage
                        raise update.error
                    if isinstance(update, TokensArrived):
                        self.num_computed = len(self.tokens)
                        self.tokens += update.token_ids
                    if isinstance(update, GenerationFinished):
                        self.num_computed = max(self.num_computed, update.usage.prompt_tokens)
                    yield update
                seconds = 0.0 if rest_s is None or is_over else rest_s()
                has_rested = seconds > 0
                if has_rested:
                    await updates.rest(seconds)
        finally:
            try:
                if not is_over and not self._is_closed and self._thread.is_running:
                    with anyio.CancelScope(shield=True):
                        await self._abort(updates, waiting)
            finally:
                # asyncio's own cancellation, come a second time, knows no shields.
                self._is_generating = False

    async def _abort(self, updates: Mailbox[Update], waiting: deque[Update]) -> None:
        """Stop before the next step; what arrived but was not handed out is not the caller's."""
        num_tokens = len(self.tokens)

        def stop(core: EngineCore) -> GenerationUsage | None:
            usage = core.abort(self._id)
            core.truncate(self._id, num_tokens)
            return usage

        # One command: what is posted happens, even if this wait for its answer is broken off.
        usage = await self._thread.ask(stop)
        if usage is None:
            # It came to its end while it was given up.
            waiting.extend(updates.take_waiting())
            ends = [one for one in waiting if not isinstance(one, TokensArrived)]
            usage = ends[0].usage if ends else None
        self.cut_usage = usage

    def _require_open(self) -> None:
        if self._is_closed:
            raise EngineError("EN204", f"sequence {self._id} is closed")

    def _require_idle(self) -> None:
        self._require_open()
        if self._is_generating:
            raise EngineError(
                "EN205",
                f"sequence {self._id} is generating",
                help="wait for its end, close its updates ('async with aclosing(…)'), or fork it",
            )


async def _end_of(
    stream: AsyncGenerator[TokensArrived | GenerationFinished],
) -> GenerationFinished:
    """Wait for the end of a generation that samples nothing."""
    async with aclosing(stream):
        async for update in stream:
            if isinstance(update, GenerationFinished):
                return update
    raise AssertionError("a generation ends with its usage or an error")


def _may_wait(update: Update) -> bool:
    return isinstance(update, TokensArrived)


def _joined(updates: list[Update]) -> list[Update]:
    """The same with tokens that follow each other in one."""
    joined: list[Update] = []
    for update in updates:
        last = joined[-1] if joined else None
        if isinstance(update, TokensArrived) and isinstance(last, TokensArrived):
            joined[-1] = TokensArrived(
                last.token_ids + update.token_ids, last.logprobs + update.logprobs
            )
        else:
            joined.append(update)
    return joined
