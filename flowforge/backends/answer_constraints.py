"""The constraints of answers on one model: compiled once each, started for each generation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anyio

from flowforge.backends.answer_grammars import load_grammar
from flowforge.errors import EngineError, WorkflowError
from flowforge.grammars import (
    JsonOptions,
    Vocabulary,
    compile_choice,
    compile_json_schema,
    compile_regex,
)
from flowforge.grammars.calls_or_form import CallsOrForm
from flowforge.grammars.closing_state import ClosingState
from flowforge.grammars.constraint_cache import ConstraintCache
from flowforge.grammars.thinking import ThinkingState, compile_thoughts

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from flowforge.backends.protocol import GenerateRequest
    from flowforge.engine.constraint import TokenConstraint
    from flowforge.engine.text.tokenizer import Tokenizer
    from flowforge.grammars import CompiledConstraint
    from flowforge.grammars.constraint import ConstraintState
    from flowforge.grammars.thinking import AnswerState, Thinking
    from flowforge.grammars.tool_formats import CompiledTools


class AnswerConstraints:
    """Owns the model's vocabulary, made at first use (half a second), and what is compiled for it.

    vocab_size: width of the model's logits.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._vocabulary: Vocabulary | None = None
        self._cache: ConstraintCache[CompiledConstraint] = ConstraintCache()
        self._compiling = anyio.Lock()

    def vocabulary(self) -> Vocabulary:
        """For worker threads; two that ask first at the same time make two."""
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(
                self._tokenizer.tokenizer_json,
                eos_ids=self._tokenizer.eos_ids,
                vocab_size=self._vocab_size,
            )
        return self._vocabulary

    async def start(
        self,
        request: GenerateRequest,
        tools: CompiledTools | None = None,
        thinking: Thinking | None = None,
    ) -> TokenConstraint | None:
        """A fresh constraint for one generation; compiled in a worker thread at first use.

        tools: the calls that the answer may make. thinking: what comes before it. Raises
        WorkflowError when a constraint cannot be used, or does not allow the prefill; EngineError
        EN707 when it does not allow what an earlier generation of the same request wrote.
        """
        calls = None if tools is None else tools.constraint.start()
        form = await self._form(request) if request.may_take_form else None
        state: AnswerState | None = calls or form
        if calls is not None and form is not None:
            state = CallsOrForm(calls, form)
        constraint: TokenConstraint | None = state
        if thinking is not None:
            thoughts = await self._thoughts(thinking.marks.closing)
            most = request.sampling.max_tokens
            constraint = ThinkingState(thinking, thoughts.start(), state, most)
        if constraint is not None and not _take(constraint, self._without_end(request.written)):
            raise EngineError(
                "EN707",
                f"what {request.label!r} had written does not fit its constraint any more",
                help="run it from that step again: flowforge rerun RUN --from STEP",
            )
        return constraint

    async def _form(self, request: GenerateRequest) -> ConstraintState | ClosingState:
        """The form of an answer, behind its prefill. Raises WorkflowError."""
        compiled = await self._compiled(*self._recipe(request))
        plain = compiled.start()
        state = ClosingState(plain) if request.options.on_cut == "close" else plain
        if not _take(state, self._tokenizer.encode(request.prefill)):
            raise WorkflowError(
                "WF416",
                f"the prefill {request.prefill[:60]!r} of {request.label!r} is no beginning of "
                "what its constraint allows",
                help="change the one or the other; JSON is written without white space",
            )
        return state

    def _without_end(self, token_ids: tuple[int, ...]) -> Iterable[int]:
        for token_id in token_ids:
            if token_id in self._tokenizer.eos_ids:
                return
            yield token_id

    async def _thoughts(self, closing: str) -> CompiledConstraint:
        def compile() -> CompiledConstraint:
            return compile_thoughts(closing, self.vocabulary())

        return await self._compiled(("thoughts", closing), compile)

    async def _compiled(
        self, key: Hashable, compile: Callable[[], CompiledConstraint]
    ) -> CompiledConstraint:
        compiled = self._cache.find(key)
        if compiled is None:
            # One at a time: many that wait for one constraint must not wait in a thread each.
            async with self._compiling:
                compiled = self._cache.find(key)
                if compiled is None:
                    compiled = await anyio.to_thread.run_sync(self._cache.get, key, compile)
        return compiled

    def _recipe(
        self, request: GenerateRequest
    ) -> tuple[Hashable, Callable[[], CompiledConstraint]]:
        """What a request's constraint is kept under, and how it is compiled."""
        if (choice := request.choice) is not None:
            return ("choice", choice), lambda: compile_choice(choice, self.vocabulary())
        if (regex := request.regex) is not None:
            return ("regex", regex), lambda: compile_regex(regex, self.vocabulary())
        if (grammar := request.grammar) is not None:
            return grammar, lambda: load_grammar(grammar).compile(self.vocabulary())
        schema = request.json_schema
        assert schema is not None, "a form is one of four"
        options = JsonOptions(request.options.on_unsupported, request.options.whitespace)
        # The order of its keys counts: it is the order in which the model writes them.
        key = ("json", json.dumps(schema), options)
        return key, lambda: compile_json_schema(schema, self.vocabulary(), options)


def _take(constraint: TokenConstraint, token_ids: Iterable[int]) -> bool:
    try:
        return all(constraint.advance(token_id) for token_id in token_ids)
    except ValueError:
        return False
