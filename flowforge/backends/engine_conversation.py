"""A conversation on the engine: a held sequence, in the tokens of its model's chat template."""

from __future__ import annotations

import re
import time
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flowforge.backends.answer_reader import AnswerEnd, AnswerReader
from flowforge.backends.notices import Rendered
from flowforge.backends.protocol import (
    GenerateRequest,
    GenerationCut,
    GenerationDone,
    Sampling,
    Score,
    ScoringDone,
    TextDelta,
    Usage,
)
from flowforge.backends.thoughts import ThoughtReader
from flowforge.engine.continuations import score_continuations
from flowforge.engine.kv.tokens import common_prefix_len
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationFinished, GenerationRequest, GenerationUsage
from flowforge.engine.text.messages import Message
from flowforge.errors import EngineError
from flowforge.grammars.calls_or_form import CallsOrForm
from flowforge.grammars.closing_state import ClosingState
from flowforge.grammars.thinking import Thinking, ThinkingState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from flowforge.backends.engine import EngineBackend
    from flowforge.backends.notices import PromptPart
    from flowforge.backends.protocol import JsonValue, ScoreRequest, ToolOffer
    from flowforge.backends.tool_speech import History
    from flowforge.engine.constraint import TokenConstraint
    from flowforge.engine.handle import EngineSequence
    from flowforge.engine.kv.prefix_tree import Namespace
    from flowforge.engine.sequence import TokensArrived
    from flowforge.grammars.tool_formats import CompiledTools


_NUMBERS = re.compile(r"\d+")
"""Of a label: branches, rounds and tries of one step often say what another of them has said."""

_UNLIKE_ENDS = ("a", " 1", "\n", ".")
"""Of a text: the ids that are the same with all of them are taken to be those of its beginning."""


_LEAST_PREPARED = 32
"""Tokens: fewer cost a step of their own more than they cost beside what is asked in the end."""

_LETTERS_A_TOKEN = 4


class EngineConversation:
    """A conversation whose prefix is a sequence of the engine; see `Conversation`.

    The sequence holds the prompts and what the model generated, token for token. User turns wait
    as messages and become tokens when the model is asked, in the template's own scaffolding.
    """

    def __init__(
        self,
        backend: EngineBackend,
        sequence: EngineSequence,
        history: History,
        namespace: Namespace,
    ) -> None:
        self.namespace: Namespace = namespace
        self.sequence: EngineSequence = sequence
        self._backend = backend
        backend.opened.add(self)
        self._history = history
        self._cut: GenerationCut | None = None

    def add_user(self, text: str) -> None:
        """See `Conversation.add_user`."""
        self._history = self._history.with_message(Message("user", text))

    def add_assistant(self, text: str) -> None:
        """See `Conversation.add_assistant`."""
        self._history = self._history.with_message(Message("assistant", text))

    def add_results(self, results: Sequence[JsonValue]) -> None:
        """See `Conversation.add_results`."""
        self._history = self._backend.speech.add_results(self._history, results)

    def add_written(
        self, written: GenerationDone, prefill: str, offer: ToolOffer | None = None
    ) -> None:
        """See `Conversation.add_written`."""
        history = self._introduced(offer)
        self.sequence.append(self._rest_of_prompt(history))
        self.sequence.append(self._backend.tokenizer.encode(prefill))
        num_tokens = len(self.sequence.tokens)
        if written.output_ids is None or num_tokens != written.usage.prompt_tokens:
            raise EngineError(
                "EN707",
                f"a conversation cannot go on as it was: its prompt had "
                f"{written.usage.prompt_tokens:,} tokens and would have {num_tokens:,} now",
                help="resume with the model that the run began with, or run it again",
            )
        self.sequence.append(written.output_ids)
        self._history = self._backend.speech.with_written(history, written.text, written.calls)

    def expect_use(self, num_steps: float, ready_in_s: float = 0.0) -> None:
        """See `Conversation.expect_use`."""
        # What waits for nothing has no time of its own: then the last use decides.
        ready_at_s = time.monotonic() + ready_in_s if ready_in_s else 0.0
        self.sequence.expect_use(num_steps, ready_at_s)

    async def fork(self) -> EngineConversation:
        """See `Conversation.fork`."""
        forked = await self.sequence.fork()
        return EngineConversation(self._backend, forked, self._history, self.namespace)

    async def close(self) -> None:
        """See `Conversation.close`."""
        self._backend.opened.discard(self)
        await self.sequence.close()

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        """See `Conversation.generate`."""
        started_at = time.monotonic()
        self._cut = None
        history = self._introduced(request.offer)
        rest = self._rest_of_prompt(history)
        tools = await self._backend.tools(request, rest)
        thinking = self._backend.thinking(request, rest)
        constraint = await self._backend.constraints.start(request, tools, thinking)
        self._tell_prompt(request, history)
        before = len(self.sequence.tokens)
        self.sequence.append(rest)
        self.sequence.append(self._backend.tokenizer.encode(request.prefill))
        prompt_len = len(self.sequence.tokens)
        reader = self._reader(request, tools, thinking)
        finished: GenerationFinished | None = None
        drawn = _Drawn(is_constrained=constraint is not None)
        is_whole = False
        try:
            if request.prefill:
                yield TextDelta(request.prefill, 0)
            if request.written:
                self.sequence.append(request.written)
                for delta in reader.deltas(request.written):
                    yield delta
            finished = self._end_of_written(request, constraint, reader)
            if finished is None:
                await self._restore()
                wanted = self._engine_request(request, constraint, thinking)
                updates = self.sequence.generate(wanted)
                async with aclosing(updates):
                    async for update in updates:
                        if isinstance(update, GenerationFinished):
                            finished = update
                            continue
                        drawn.take(update)
                        for delta in reader.deltas(update.token_ids):
                            yield delta
            last = reader.finish()
            if last:
                yield TextDelta(last, 0)
            is_whole = True
        finally:
            if not is_whole:
                num_given = prompt_len + len(request.written)
                self._cut = self._cut_of(finished, num_given, time.monotonic() - started_at)
                self.sequence.truncate(before)
        assert finished is not None, "a generation ends with its usage or an error"
        if reader.is_stopped:
            self.sequence.truncate(prompt_len + reader.num_tokens)
        elif thinking is not None and self._is_cut(request, constraint, reader):
            finished = replace(finished, reason="length")
        self._history = self._backend.speech.with_written(history, reader.text, reader.calls)
        done = self._done(reader, finished, prompt_len, time.monotonic() - started_at)
        if _was_closed(constraint):
            done = replace(done, finish_reason="closed")
        yield _with_restored(drawn.told_in(done), len(request.written))

    def _tell_prompt(self, request: GenerateRequest, history: History) -> None:
        if request.tell is None:
            return
        last_token = self.sequence.tokens[-1] if history.num_seen else None
        parts = self._backend.template.pieces(
            history.messages, history.tools, num_seen=history.num_seen, last_token=last_token
        )
        prefill: tuple[PromptPart, ...] = (("content", request.prefill),) if request.prefill else ()
        request.tell(Rendered((*parts, *prefill)))

    def _introduced(self, offer: ToolOffer | None) -> History:
        """The history, in which the model has been told of the tools."""
        history = self._history
        return history if offer is None else self._backend.speech.introduce(history, offer)

    def _end_of_written(
        self,
        request: GenerateRequest,
        constraint: TokenConstraint | None,
        reader: AnswerReader,
    ) -> GenerationFinished | None:
        """The end of a generation that had come to it before it was cut; None when it goes on."""
        written, max_tokens = request.written, request.sampling.max_tokens
        if not written:
            return None
        is_stopped = (
            reader.is_stopped
            or written[-1] in self._backend.tokenizer.eos_ids
            or (constraint is not None and constraint.is_complete)
        )
        num_answered = len(written) - reader.num_before
        if not is_stopped and (max_tokens is None or num_answered < max_tokens):
            return None
        usage = GenerationUsage(len(self.sequence.tokens), 0, 0, 0, 0, 0.0, 0.0)
        return GenerationFinished("stop" if is_stopped else "length", usage)

    def _is_cut(
        self, request: GenerateRequest, constraint: TokenConstraint | None, reader: AnswerReader
    ) -> bool:
        """Whether an answer behind thoughts came to max_tokens; the engine knows of no answer."""
        most = request.sampling.max_tokens
        if most is None or reader.num_tokens - reader.num_before < most:
            return False
        is_whole = constraint is not None and constraint.is_complete
        return not is_whole and self.sequence.tokens[-1] not in self._backend.tokenizer.eos_ids

    def _reader(
        self, request: GenerateRequest, tools: CompiledTools | None, thinking: Thinking | None
    ) -> AnswerReader:
        return AnswerReader(
            self._backend.tokenizer,
            prefill=request.prefill,
            stop=request.sampling.stop,
            tools=tools,
            may_be_text=request.may_take_form,
            thoughts=self._thought_reader(thinking),
        )

    def _thought_reader(self, thinking: Thinking | None) -> ThoughtReader | None:
        tokenizer = self._backend.tokenizer
        return None if thinking is None else ThoughtReader(tokenizer, thinking.marks)

    def take_cut(self) -> GenerationCut | None:
        """See `Conversation.take_cut`."""
        cut, self._cut = self._cut, None
        return cut

    def is_worth_preparing(self, beginning: str) -> bool:
        """See `preparing.Prepares`."""
        num_missing = len(self.sequence.tokens) - self.sequence.num_computed
        return num_missing + len(beginning) // _LETTERS_A_TOKEN >= _LEAST_PREPARED

    async def prepare(self, beginning: str) -> None:
        """See `preparing.Prepares`. The last tokens depend on what follows: they are left out."""
        started_at = time.monotonic()
        self._cut = None
        before = len(self.sequence.tokens)
        with_ends = [
            self._rest_of_prompt(self._history.with_message(Message("user", beginning + end)))
            for end in _UNLIKE_ENDS
        ]
        first, *others = with_ends
        num_certain = min(common_prefix_len(first, other) for other in others)
        self.sequence.append(first[:num_certain])
        finished: GenerationUsage | None = None
        try:
            if self.sequence.tokens:
                await self._restore()
                finished = await self.sequence.prefill(is_spare=True)
        finally:
            usage = self.sequence.cut_usage if finished is None else finished
            if usage is not None:
                num_known = usage.prefilled_tokens + usage.reused_tokens
                self._cut = GenerationCut(
                    _usage_of(usage, time.monotonic() - started_at),
                    prompt_ids=tuple(self.sequence.tokens[:num_known]),
                    output_ids=(),
                    num_written=0,
                )
            self.sequence.truncate(before)

    def expect_beginning(self, beginning: str) -> None:
        """See `preparing.Expects`. The last tokens depend on what follows: they find nothing."""
        history = self._history
        if beginning:
            history = history.with_message(Message("user", beginning))
        self.sequence.append(self._rest_of_prompt(history))

    async def score(self, request: ScoreRequest) -> ScoringDone:
        """See `Conversation.score`."""
        started_at = time.monotonic()
        before = len(self.sequence.tokens)
        end = self._end_of_turn()
        continuations = [self._backend.tokenizer.encode(text) + end for text in request.texts]
        try:
            self.sequence.append(self._rest_of_prompt(self._history))
            await self._restore()
            scored = await score_continuations(self.sequence, continuations)
            prompt_ids = tuple(self.sequence.tokens)
        finally:
            self.sequence.truncate(before)
        total_s = time.monotonic() - started_at
        usage = Usage(
            prompt_tokens=scored.usage.prompt_tokens + scored.num_computed,
            prefilled_tokens=scored.usage.prefilled_tokens + scored.num_computed,
            reused_tokens=scored.usage.reused_tokens,
            ttft_s=total_s,
            total_s=total_s,
        )
        scores = (
            Score(text, sum(one.logprob for one in logprobs), len(logprobs))
            for text, logprobs in zip(request.texts, scored.logprobs, strict=True)
        )
        prompts = tuple(prompt_ids + tuple(continuation) for continuation in continuations)
        return ScoringDone(tuple(scores), usage, prompts)

    async def _restore(self) -> None:
        """Find what an earlier process computed of this conversation."""
        if self._backend.kept is not None:
            await self._backend.kept.restore(self.namespace, self.sequence.tokens)

    def _end_of_turn(self) -> list[int]:
        """The id by which the model ends its turn; nothing for a model that has none."""
        tokenizer = self._backend.tokenizer
        end_id = tokenizer.turn_end_id
        if end_id is None:
            end_id = min(tokenizer.eos_ids, default=None)
        return [] if end_id is None else [end_id]

    def _engine_request(
        self,
        request: GenerateRequest,
        constraint: TokenConstraint | None,
        thinking: Thinking | None,
    ) -> GenerationRequest:
        written, sampling = request.written, request.sampling
        stop: AnswerEnd | None = None
        if sampling.stop or (thinking is not None and sampling.max_tokens is not None):
            most = None if thinking is None else sampling.max_tokens
            thoughts = self._thought_reader(thinking)
            stop = AnswerEnd(self._backend.tokenizer, sampling.stop, thoughts, most)
            stop.is_met_by(list(written))
        if sampling.max_tokens is not None:
            most_before = 0 if thinking is None else thinking.most_tokens
            num_left = sampling.max_tokens + most_before - len(written)
            sampling = replace(sampling, max_tokens=num_left)
        params = _sampling_params(sampling, num_logprobs=0 if request.with_logprob else None)
        return GenerationRequest(
            params,
            constraint,
            stop,
            request.priority,
            num_following=request.num_following,
            history_key=_NUMBERS.sub("*", request.label) or None,
        )

    def _rest_of_prompt(self, history: History) -> list[int]:
        """The ids between what the sequence has and where the model goes on."""
        template = self._backend.template
        if history.num_seen == 0:
            return template.render(history.messages, history.tools)
        last_token = self.sequence.tokens[-1]
        return template.continuation(
            history.seen, history.waiting, history.tools, last_token=last_token
        )

    def _cut_of(
        self, finished: GenerationFinished | None, prompt_len: int, total_s: float
    ) -> GenerationCut | None:
        """What the generation cost that the sequence did not bring to its end."""
        tokens = self.sequence.tokens
        # It may have come to its end, and its reader have been stopped at the last piece of text.
        usage = self.sequence.cut_usage if finished is None else finished.usage
        if usage is None:
            return None
        num_known = min(prompt_len, usage.prefilled_tokens + usage.reused_tokens)
        return GenerationCut(
            _usage_of(usage, total_s),
            prompt_ids=tuple(tokens[:num_known]),
            output_ids=tuple(tokens[prompt_len:]),
            num_written=usage.written_output_tokens,
        )

    def _done(
        self, reader: AnswerReader, finished: GenerationFinished, prompt_len: int, total_s: float
    ) -> GenerationDone:
        tokens, usage = self.sequence.tokens, finished.usage
        return GenerationDone(
            text=reader.text,
            finish_reason=finished.reason,
            usage=_usage_of(usage, total_s),
            prompt_ids=tuple(tokens[:prompt_len]),
            output_ids=tuple(tokens[prompt_len:]),
            num_written=usage.written_output_tokens,
            calls=reader.calls,
            cuts_call=reader.cuts_call,
        )


@dataclass(slots=True)
class _Drawn:
    """What the engine says of the tokens that it drew. logprobs: of those it was asked for."""

    is_constrained: bool
    num_forced: int = 0
    logprobs: list[float] = field(default_factory=list[float])

    def take(self, update: TokensArrived) -> None:
        if self.is_constrained:
            # One is sampled at a time; those behind it had to follow.
            self.num_forced += len(update.token_ids) - 1
        self.logprobs += (one.logprob for one in update.logprobs)

    def told_in(self, done: GenerationDone) -> GenerationDone:
        usage = replace(done.usage, forced_tokens=self.num_forced)
        if not self.logprobs:
            return replace(done, usage=usage)
        mean = sum(self.logprobs) / len(self.logprobs)
        return replace(done, usage=usage, mean_logprob=mean)


def _was_closed(constraint: TokenConstraint | None) -> bool:
    """Whether the answer was ended by the shortest valid ending instead of by the model."""
    if not isinstance(constraint, ClosingState | CallsOrForm | ThinkingState):
        return False
    return constraint.was_closed


def _usage_of(usage: GenerationUsage, total_s: float) -> Usage:
    """A generation's usage beside what came before it here, as compiling its constraint."""
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        prefilled_tokens=usage.prefilled_tokens,
        reused_tokens=usage.reused_tokens,
        generated_tokens=usage.output_tokens,
        ttft_s=total_s - usage.total_s + usage.ttft_s,
        total_s=total_s,
    )


def _with_restored(done: GenerationDone, num_restored: int) -> GenerationDone:
    """The engine took the restored tokens for a part of its prompt; they are output."""
    usage = replace(
        done.usage,
        prompt_tokens=done.usage.prompt_tokens - num_restored,
        generated_tokens=done.usage.generated_tokens + num_restored,
    )
    return replace(done, usage=usage, num_restored=num_restored)


def _sampling_params(sampling: Sampling, num_logprobs: int | None) -> SamplingParams:
    given = {
        name: value
        for name in ("temperature", "top_p", "top_k", "seed", "max_tokens")
        if (value := getattr(sampling, name)) is not None
    }
    return SamplingParams(**given, num_logprobs=num_logprobs)
