"""The built-in engine as a backend: conversations are held sequences, forks share their KV.

Here the rooms meet: the engine's tokens, the model's chat template, the grammars' constraints.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

import anyio

from flowforge.backends.answer_constraints import AnswerConstraints
from flowforge.backends.engine_conversation import EngineConversation
from flowforge.backends.protocol import BackendStatistics
from flowforge.backends.revisions import arithmetic_of, fingerprint
from flowforge.backends.tool_speech import History, ToolSpeech
from flowforge.engine.config import EngineConfig
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.loading import engine_for
from flowforge.engine.model_store import Progress, resolve_model, silent
from flowforge.engine.models.config import read_model_config
from flowforge.engine.text.chat_template import ChatTemplate
from flowforge.engine.text.messages import Message
from flowforge.engine.text.tokenizer import Tokenizer
from flowforge.errors import WorkflowError
from flowforge.grammars.thinking import Thinking, ThinkingMarks
from flowforge.language.token_meter import EncodingMeter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from flowforge.backends.kept_prefixes import KeptPrefixes
    from flowforge.backends.protocol import GenerateRequest
    from flowforge.engine.engine import Engine
    from flowforge.grammars.tool_formats import CompiledTools
    from flowforge.language.token_meter import TokenMeter

_NUM_LAST_IDS = 16
"""Of a prompt: enough to see whether it ends by opening a part for thoughts."""


@asynccontextmanager
async def open_engine_backend(
    model: str | Path | None = None,
    *,
    progress: Progress = silent,
    config: EngineConfig | None = None,
    today: date | None = None,
    tool_format: str | None = None,
    kv_folder: Path | None = None,
) -> AsyncGenerator[EngineBackend]:
    """Load a model and run its engine for as long as the context lasts.

    model: a directory, a Hugging Face id, or None for the default model, fetched at first use.
    config: the engine's settings; EngineConfig() if None.
    today: what chat templates that print a date print, for as long; None is this machine's date.
    tool_format: how the model writes tool calls; None is what its chat template speaks.
    kv_folder: where KV is kept for other processes; None keeps none.
    Raises EngineError when the model cannot be had or loaded; frees all memory at exit.
    """
    settings = config or EngineConfig()

    def load_text() -> tuple[Path, Tokenizer, ChatTemplate, int]:
        location = resolve_model(model, progress=progress)
        # First of all, because a folder without it is no model and has nothing else to tell.
        known = read_model_config(location.directory, settings.context_len)
        tokenizer = Tokenizer.from_directory(location.directory)
        shown = today or date.today()
        template = ChatTemplate.from_directory(location.directory, tokenizer, today=shown)
        return location.directory, tokenizer, template, known.max_context_len

    directory, tokenizer, template, context_len = await anyio.to_thread.run_sync(load_text)
    async with engine_for(directory, vocab_size=tokenizer.vocab_size, config=settings) as engine:
        kept = None if kv_folder is None else _kept_prefixes(engine, directory, settings, kv_folder)
        arithmetic = arithmetic_of(engine.statistics().compute, settings.dtype, context_len)
        yield EngineBackend(engine, tokenizer, template, tool_format, kept, arithmetic)


def _kept_prefixes(
    engine: Engine, directory: Path, config: EngineConfig, folder: Path
) -> KeptPrefixes:
    from flowforge.backends.kept_prefixes import KeptPrefixes
    from flowforge.engine.prefix_files import PrefixFolder

    return KeptPrefixes(engine, PrefixFolder(folder, rows_name(directory, config)))


def rows_name(directory: Path, config: EngineConfig | None) -> str:
    """What KV rows depend on: engines of one name may use what another computed.

    directory: of the model. config: None for the default.
    """
    config = config or EngineConfig()
    # A context of another length may turn K rows by other frequencies, kernels round otherwise,
    # and ranks have rows of their own.
    names = ("context_len", "dtype", "is_deterministic", "kernel_rows", "kv_dtype", "tp")
    return repr((fingerprint(directory), tuple(getattr(config, name) for name in names)))


class EngineBackend:
    """Conversations on one engine."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        tool_format: str | None = None,
        kept: KeptPrefixes | None = None,
        arithmetic: str = "",
    ) -> None:
        """tool_format: see `open_engine_backend`. Raises EngineError EN321.

        kept: what earlier processes computed; None where nothing is kept. arithmetic: see
        `arithmetic_of`; "" where nobody keeps results.
        """
        self.engine = engine
        self.tokenizer = tokenizer
        self.template = template
        self.speech = ToolSpeech(template, tool_format)
        self.constraints = AnswerConstraints(tokenizer, engine.vocab_size)
        self.opened: set[EngineConversation] = set()
        self.kept = kept
        self.arithmetic = arithmetic

    @property
    def name(self) -> str:
        """Always 'engine'."""
        return "engine"

    @property
    def capacity(self) -> int:
        """The engine's."""
        return self.engine.capacity

    @property
    def token_meter(self) -> TokenMeter:
        """The model's tokenizer."""
        return EncodingMeter(self.tokenizer.encode)

    async def open(
        self,
        *,
        system: str | None = None,
        model: str | None = None,
        namespace: Namespace | None = None,
    ) -> EngineConversation:
        """Start a conversation. Computes nothing yet.

        namespace: only conversations of one namespace share KV; None is the common one.
        Raises WorkflowError WF512 for a model: this engine has one (`engines` opens several).
        """
        if model is not None:
            raise WorkflowError(
                "WF512",
                f"model {model!r} is asked for, and this backend has one model",
                help="leave 'model' out, or open the backend by open_engines",
            )
        messages = () if system is None else (Message("system", system),)
        sequence = self.engine.open(namespace=namespace)
        return EngineConversation(self, sequence, History(messages), namespace or Namespace())

    async def keep_prefixes(self) -> None:
        """See `KeepsPrefixes`."""
        if self.kept is not None:
            await self.kept.keep([(one.namespace, one.sequence) for one in self.opened])

    def statistics(self) -> BackendStatistics:
        """As of the engine's last step."""
        statistics = self.engine.statistics()
        return BackendStatistics(
            prefilled_tokens=statistics.prefilled_tokens,
            reused_tokens=statistics.kv.reused_tokens,
            generated_tokens=statistics.generated_tokens,
            pages_total=statistics.kv.pages_total,
            pages_free=statistics.kv.pages_free,
            pages_cached=statistics.kv.pages_cached,
            pages_held=statistics.kv.pages_held,
            pages_peak=statistics.kv.pages_peak_held,
        )

    async def page_uses(self) -> str:
        """See `page_maps.Paged`."""
        return await self.engine.page_uses()

    async def tools(self, request: GenerateRequest, rest: list[int]) -> CompiledTools | None:
        """What the answer may call, compiled; None without tools, or for nothing but a form.

        rest: the last ids of the prompt. Raises WorkflowError WF421.
        """
        offer = request.offer
        if offer is None or (request.has_form and not request.may_call):
            return None
        # Thoughts that are asked for are no part of the answer, and a form has none.
        thinks_apart = request.options.think is not None or request.has_form
        if request.may_take_form:
            # Whatever is no call is the form's.
            offer = replace(offer, choice="required")
        reasoning = "none" if thinks_apart else self.speech.reasoning(self._end_of(rest))

        def compile_offer() -> CompiledTools:
            return self.speech.compile(offer, reasoning, self.constraints.vocabulary())

        return await anyio.to_thread.run_sync(compile_offer)

    def thinking(self, request: GenerateRequest, rest: list[int]) -> Thinking | None:
        """What the model is to think before its answer; None if nothing.

        rest: the last ids of the prompt. Raises WorkflowError WF422 for a model without thoughts.
        """
        budget = request.options.think
        if budget is None:
            return None
        calls_tools = request.may_call if request.has_form else request.offer is not None
        span = self.speech.thinking_span(calls_tools=calls_tools)
        if span is None:
            raise WorkflowError(
                "WF422",
                f"{request.label!r} lets the model think before it answers, and this model's chat "
                "template marks no thoughts",
                help="leave 'think' out, or run it on a model that thinks, as Qwen3",
            )
        is_opened = self._end_of(rest).rstrip().endswith(span.opening)
        encode = self.tokenizer.encode_scaffolding
        marks = ThinkingMarks(
            () if is_opened else tuple(encode(span.opening)),
            span.closing,
            tuple(encode(span.closing)),
            tuple(encode(span.after)),
        )
        return Thinking(marks, budget)

    def _end_of(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids[-_NUM_LAST_IDS:], skip_special=False)
