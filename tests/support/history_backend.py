"""The engine backend on the stand-in model: real pages and a real thread, and no weights."""

from __future__ import annotations

import string
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from history_model import EOS, VOCAB_SIZE, history_core
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as TokenizerModel

from flowforge.backends.engine import EngineBackend
from flowforge.engine.engine import Engine
from flowforge.engine.text.chat_template import ChatTemplate
from flowforge.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from flowforge.engine.core import EngineCore

_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class HistoryBackend:
    """A backend, its engine and that engine's core, which may be looked at while nothing runs."""

    backend: EngineBackend
    core: EngineCore

    async def check_nothing_held(self) -> None:
        """No page is held, and the books of the pages are right."""
        statistics = await self.backend.engine.settle()
        assert 0 == statistics.kv.pages_held, statistics
        self.core.check_invariants()


@asynccontextmanager
async def open_history_backend(*, num_pages: int = 128) -> AsyncGenerator[HistoryBackend]:
    """An engine that knows letters and a few signs; what else is in a prompt is left out."""
    tokenizer = small_tokenizer()
    core = history_core(num_pages=num_pages, page_size=4, max_step_tokens=32)[0]
    async with Engine(lambda: core) as engine:
        template = ChatTemplate(_TEMPLATE, tokenizer)
        yield HistoryBackend(EngineBackend(engine, tokenizer, template), core)


def small_tokenizer() -> Tokenizer:
    """As many tokens as the stand-in has ids, one a sign; `<|end|>` is the id that ends a turn."""
    whitespace = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(" \n")[0][0]
    signs = list(whitespace + string.ascii_lowercase + string.digits + ".,:?!-_[](")
    vocabulary = {text: idx for idx, text in enumerate(["<|end|>", "<|start|>", *signs])}
    assert vocabulary["<|end|>"] == EOS
    assert len(vocabulary) == VOCAB_SIZE
    tokenizer = TokenizerModel(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>"), AddedToken("<|start|>")])
    return Tokenizer(tokenizer.to_str(), eos_ids=[EOS])
