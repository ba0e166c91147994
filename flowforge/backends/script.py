"""Scripted answers in the place of a model: for tests of workflows and of FlowForge itself.

    ScriptBackend({"angles": '["cost", "range"]', "explore[*]/draft": "a draft"})

A request is answered by its label, the step path, as `labels.matching_key` says: the exact key
first, then the first that matches with `*` for any run of characters; later tries and samples also
go by the path of their step. A list of answers is used up one by one; `ScriptedTurns` are chosen by
what their conversation has. Scores are answered by the
text that is certain, or by a JSON object of texts to logarithms. Tokens are words; prompts are
counted as a backend with a perfect prefix cache would count them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import anyio
import anyio.lowlevel

from flowforge.backends.labels import matching_key
from flowforge.backends.prefix_trie import PrefixTrie
from flowforge.backends.protocol import (
    BackendStatistics,
    Conversation,
    GenerationCut,
    GenerationDone,
    Score,
    ScoringDone,
    TextDelta,
    Usage,
)
from flowforge.errors import InternalError, WorkflowError
from flowforge.language.token_meter import WordMeter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

    from flowforge.backends.protocol import (
        FinishReason,
        GenerateRequest,
        JsonValue,
        ScoreRequest,
        ToolOffer,
    )
    from flowforge.grammars.tool_formats import ToolCall
    from flowforge.language.token_meter import TokenMeter

_TOKEN = re.compile(r"\S+\s*|\s+")
_UNLIKELY = -100.0
"""The logarithm of a text that is not the one that a script says is certain."""


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """One answer. gate: waited for before the first token. error: raised in place of the end.

    finish_reason: "length" to play a cut-off answer. mean_logprob: how likely the answer is, for
    picking the likeliest of several. calls: tools that are called, beside the text. thoughts: what
    is thought before it in a step that says `think`, cut off at that many tokens.
    """

    text: str = ""
    finish_reason: FinishReason = "stop"
    error: Exception | None = None
    gate: anyio.Event | None = None
    mean_logprob: float = 0.0
    calls: tuple[ToolCall, ...] = ()
    thoughts: str = ""


@dataclass(frozen=True, slots=True)
class ScriptedTurns:
    """The answers of a turn that calls tools: one before its first results, one behind them, ….

    Which comes next follows from the conversation, so that a resumed run gets the same ones.
    """

    answers: tuple[str | ScriptedAnswer, ...]


Answer: TypeAlias = "str | ScriptedAnswer | ScriptedTurns | Sequence[str | ScriptedAnswer]"
_Stock: TypeAlias = str | ScriptedAnswer | ScriptedTurns | list[str | ScriptedAnswer]


@dataclass(frozen=True, slots=True)
class RecordedPrompt:
    """What a request was asked with. text: the whole conversation, one 'role: content' a turn.

    model: the one its conversation was opened on; None for the run's own.
    """

    label: str
    text: str
    request: GenerateRequest | ScoreRequest
    model: str | None = None


class ScriptBackend:
    """A backend that answers from a table; `testing.script` makes one of plain values.

    Holds no model and no memory: it need not be closed, and serves any number of runs.
    """

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        """answers: by step path, in which `*` is any text; a list is used up one by one."""
        self._desk = _Desk(answers)

    @property
    def name(self) -> str:
        """How messages call it."""
        return "script"

    @property
    def capacity(self) -> None:
        """A script has room for everything."""
        return

    @property
    def token_meter(self) -> TokenMeter:
        """A token is a word, as everywhere here."""
        return WordMeter()

    @property
    def num_open(self) -> int:
        """Conversations opened or forked and not closed yet."""
        return self._desk.num_open

    @property
    def prompts(self) -> tuple[RecordedPrompt, ...]:
        """Every request so far, in order of start."""
        return tuple(self._desk.prompts)

    async def open(self, *, system: str | None = None, model: str | None = None) -> Conversation:
        """Start a conversation; any model will do."""
        await anyio.lowlevel.checkpoint()
        turns = () if system is None else (("system", system),)
        return _ScriptConversation(self._desk, turns, model)

    def statistics(self) -> BackendStatistics:
        """Token counts; one page per open conversation stands in for memory."""
        desk = self._desk
        return BackendStatistics(
            prefilled_tokens=desk.usage.prefilled_tokens,
            reused_tokens=desk.usage.reused_tokens,
            generated_tokens=desk.usage.generated_tokens,
            pages_total=desk.num_peak,
            pages_free=desk.num_peak - desk.num_open,
            pages_held=desk.num_open,
            pages_peak=desk.num_peak,
        )


class _Desk:
    """What the conversations of one backend share: the answers left, and the books."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.prompts: list[RecordedPrompt] = []
        self.num_open = 0
        self.num_peak = 0
        self.usage = Usage()
        self._answers: dict[str, _Stock] = {
            key: list(answer)
            if isinstance(answer, Sequence) and not isinstance(answer, str)
            else answer
            for key, answer in answers.items()
        }
        self._vocabulary: dict[str, int] = {}
        self._written = PrefixTrie()

    def take_in(self) -> None:
        self.num_open += 1
        self.num_peak = max(self.num_peak, self.num_open)

    def let_go(self) -> None:
        self.num_open -= 1

    def answer(self, label: str, num_results: int) -> ScriptedAnswer:
        """num_results: turns with results of calls behind the last turn of the user."""
        key = self._key(label)
        stock = self._answers[key]
        if isinstance(stock, ScriptedTurns):
            answers = list(stock.answers[num_results:])
        else:
            answers = stock if isinstance(stock, list) else [stock]
        if not answers:
            raise WorkflowError(
                "WF522",
                f"the script's answers for {key!r} are used up",
                help=f"add one more answer to {key!r}",
            )
        answer = answers.pop(0)
        return ScriptedAnswer(answer) if isinstance(answer, str) else answer

    def _key(self, label: str) -> str:
        key = matching_key(self._answers, label)
        if key is not None:
            return key
        known = ", ".join(repr(key) for key in self._answers) or "nothing"
        raise WorkflowError(
            "WF521",
            f"the script has no answer for step {label!r}",
            help=f"it answers {known}; '*' in a key matches any text",
        )

    def token_ids(self, text: str) -> tuple[int, ...]:
        return self.ids_of(_TOKEN.findall(text))

    def ids_of(self, tokens: Sequence[str]) -> tuple[int, ...]:
        return tuple(self._vocabulary.setdefault(token, len(self._vocabulary)) for token in tokens)

    def account(
        self, prompt_ids: tuple[int, ...], output_ids: tuple[int, ...], num_restored: int = 0
    ) -> Usage:
        """num_restored: output tokens that are computed as a prompt is, the first ones."""
        computed = prompt_ids + output_ids[:num_restored]
        num_new = self._written.add(computed)
        self._written.add(prompt_ids + output_ids[:-1])
        num_reused = len(computed) - num_new
        return self._count(Usage(len(prompt_ids), num_new, num_reused, len(output_ids)))

    def account_texts(self, prompts: Sequence[tuple[int, ...]]) -> Usage:
        distinct = PrefixTrie()
        for prompt_ids in prompts:
            distinct.add(prompt_ids)
        num_new = sum(map(self._written.add, prompts))
        return self._count(Usage(len(distinct), num_new, len(distinct) - num_new))

    def _count(self, usage: Usage) -> Usage:
        self.usage = Usage(
            prefilled_tokens=self.usage.prefilled_tokens + usage.prefilled_tokens,
            reused_tokens=self.usage.reused_tokens + usage.reused_tokens,
            generated_tokens=self.usage.generated_tokens + usage.generated_tokens,
        )
        return usage


class _ScriptConversation:
    """A list of turns; forking copies it."""

    def __init__(
        self,
        desk: _Desk,
        turns: tuple[tuple[str, str], ...],
        model: str | None,
        known: frozenset[str] = frozenset(),
    ) -> None:
        self._desk = desk
        self._turns = turns
        self._model = model
        self._known = known
        self._is_open = True
        self._cut: GenerationCut | None = None
        desk.take_in()

    def add_user(self, text: str) -> None:
        self._require_open()
        self._turns = (*self._turns, ("user", text))

    def add_assistant(self, text: str) -> None:
        self._require_open()
        self._turns = (*self._turns, ("assistant", text))

    def add_results(self, results: Sequence[JsonValue]) -> None:
        self._require_open()
        told = (("tool", json.dumps(result, ensure_ascii=False)) for result in results)
        self._turns = (*self._turns, *told)

    def add_written(
        self, written: GenerationDone, prefill: str, offer: ToolOffer | None = None
    ) -> None:
        self._introduce(offer)
        self._turns = (*self._turns, ("assistant", _said(written.text, written.calls)))

    async def generate(
        self, request: GenerateRequest
    ) -> AsyncGenerator[TextDelta | GenerationDone, None]:
        self._introduce(request.offer)
        answer, prompt_ids = self._ask(request)
        prompt_ids += self._desk.token_ids(request.prefill)
        thoughts = _TOKEN.findall(answer.thoughts)[: request.options.think or 0]
        tokens = thoughts + _TOKEN.findall(answer.text)
        num_restored = len(request.written)
        num_written, is_whole = num_restored, False
        try:
            if answer.gate is not None:
                await answer.gate.wait()
            if request.prefill:
                yield TextDelta(request.prefill, 0)
            for delta in _restored(request.written, tokens, len(thoughts)):
                yield delta
            for idx, token in enumerate(tokens[num_restored:], num_restored):
                await anyio.lowlevel.checkpoint()
                num_written += 1
                yield TextDelta(token, 1, self._desk.token_ids(token), idx < len(thoughts))
            await anyio.lowlevel.checkpoint()
            if answer.error is not None:
                raise answer.error
            is_whole = True
        finally:
            output_ids = self._desk.ids_of(tokens[:num_written])
            usage = self._desk.account(prompt_ids, output_ids, num_restored)
            self._cut = None if is_whole else GenerationCut(usage, prompt_ids, output_ids)
        text = request.prefill + answer.text
        said = "".join(thoughts) + _said(text, answer.calls)
        self._turns = (*self._turns, ("assistant", said))
        yield GenerationDone(
            text,
            answer.finish_reason,
            usage,
            prompt_ids,
            output_ids,
            num_restored=num_restored,
            calls=answer.calls,
            cuts_call=answer.finish_reason == "length" and bool(answer.calls),
            mean_logprob=answer.mean_logprob if request.with_logprob else None,
        )

    def _introduce(self, offer: ToolOffer | None) -> None:
        """Say which tools there are, once, before what is said next."""
        new = [tool.name for tool in offer.tools if tool.name not in self._known] if offer else []
        if not new:
            return
        self._known |= set(new)
        written = (i for i, (role, _) in enumerate(self._turns, 1) if role == "assistant")
        place = max(written, default=0)
        told = ("tools", ", ".join(new))
        self._turns = (*self._turns[:place], told, *self._turns[place:])

    def take_cut(self) -> GenerationCut | None:
        cut, self._cut = self._cut, None
        return cut

    async def score(self, request: ScoreRequest) -> ScoringDone:
        answer, prompt_ids = self._ask(request)
        if answer.gate is not None:
            await answer.gate.wait()
        await anyio.lowlevel.checkpoint()
        if answer.error is not None:
            raise answer.error
        token_ids = [self._desk.token_ids(f"{text} </assistant>") for text in request.texts]
        prompts = tuple(prompt_ids + one for one in token_ids)
        scores = tuple(
            Score(text, logprob, len(one))
            for (text, logprob), one in zip(_logprobs(answer.text, request), token_ids, strict=True)
        )
        return ScoringDone(scores, self._desk.account_texts(prompts), prompts)

    def _ask(
        self, request: GenerateRequest | ScoreRequest
    ) -> tuple[ScriptedAnswer, tuple[int, ...]]:
        """Put a request on record; its answer, and the tokens of what it is asked with."""
        self._require_open()
        asked = "\n".join(f"{role}: {content}" for role, content in self._turns)
        self._desk.prompts.append(RecordedPrompt(request.label, asked, request, self._model))
        answer = self._desk.answer(request.label, _num_results(self._turns))
        prompt = "".join(f"<{role}> {content} </{role}> " for role, content in self._turns)
        return answer, self._desk.token_ids(prompt + "<assistant> ")

    def expect_use(self, num_steps: float, ready_in_s: float = 0.0) -> None:
        self._require_open()

    async def fork(self) -> Conversation:
        self._require_open()
        await anyio.lowlevel.checkpoint()
        return _ScriptConversation(self._desk, self._turns, self._model, self._known)

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._desk.let_go()
        await anyio.lowlevel.checkpoint()

    def _require_open(self) -> None:
        if not self._is_open:
            raise InternalError("IN510", "a closed conversation was used")


def _restored(
    written: tuple[int, ...], tokens: Sequence[str], num_thoughts: int
) -> Iterator[TextDelta]:
    """What an earlier generation had of these tokens, thoughts before the answer."""
    num_thought = min(len(written), num_thoughts)
    for start, end in ((0, num_thought), (num_thought, len(written))):
        if start < end:
            text = "".join(tokens[start:end])
            yield TextDelta(text, end - start, written[start:end], end <= num_thoughts)


def _num_results(turns: Sequence[tuple[str, str]]) -> int:
    """How many turns hold results of calls, since the user last said something."""
    roles = [role for role, _ in turns if role != "tools"]
    since = roles[max((i for i, role in enumerate(roles) if role == "user"), default=0) :]
    return sum(before != "tool" and role == "tool" for before, role in pairwise(since))


def _said(text: str, calls: tuple[ToolCall, ...]) -> str:
    """What an assistant's turn shows of a text and the calls beside it."""
    written = (f"{call.name}({json.dumps(dict(call.arguments))})" for call in calls)
    return " ".join((text, *written) if text else written)


def _logprobs(answer: str, request: ScoreRequest) -> list[tuple[str, float]]:
    """Each text's logarithm. Raises WorkflowError WF523 when the answer does not say it."""
    if answer in request.texts:
        return [(text, 0.0 if text == answer else _UNLIKELY) for text in request.texts]
    try:
        table = json.loads(answer)
    except ValueError:
        table = None
    logprobs = table if isinstance(table, dict) else {}
    for text in request.texts:
        if isinstance(logprobs.get(text), bool) or not isinstance(logprobs.get(text), int | float):
            raise WorkflowError(
                "WF523",
                f"the script's answer for {request.label!r} says nothing of the text {text!r}",
                help="answer a scoring by one of its texts, or by an object of each text to the "
                "logarithm of its probability",
            )
    return [(text, float(logprobs[text])) for text in request.texts]
