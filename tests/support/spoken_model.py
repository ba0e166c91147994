"""A stand-in for a model over bytes that says what it is told to, for tests of the server.

To a last user message that begins with "say " it answers with the rest of it and ends its turn; to
any other, and to a prompt without turns, with numbers without an end. So what comes back through
HTTP is known, and constraints can still lead it elsewhere.
"""

from __future__ import annotations

import threading
import time
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from byte_vocabulary import byte_vocabulary
from history_model import HistoryRunner

from flowforge.backends.engine import EngineBackend
from flowforge.engine.core import EngineCore
from flowforge.engine.engine import Engine
from flowforge.engine.kv.cache import KvCache
from flowforge.engine.model_interface import ModelLimits
from flowforge.engine.scheduler import SchedulerLimits
from flowforge.engine.text.chat_template import ChatTemplate

if TYPE_CHECKING:
    import numpy.typing as npt

    from flowforge.engine.model_interface import LaunchedStep
    from flowforge.engine.step_plan import StepPlan

END = "<|end|>"
START = "<|start|>"
CONTEXT_LEN = 4096
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)

_BYTES = byte_vocabulary([START], [END])
TOKENIZER = _BYTES.tokenizer
_END_ID, _START_ID = _BYTES.control_ids[END], _BYTES.control_ids[START]
_VOCAB_SIZE = _BYTES.vocabulary.vocab_size
_BYTE_IDS = {TOKENIZER.token_bytes(one): one for one in range(256)}
_NUM_HEAD = len(TOKENIZER.encode("assistant\n"))
# Among what a constraint allows, the earlier letter wins: no two logits are equal.
_NOISE = np.linspace(1.0, 0.0, _VOCAB_SIZE, dtype=np.float32)


class Pace:
    """Lets the model compute so many steps, or as many as it likes."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)
        self.is_free = True
        self.num_steps = 0
        self.failure: Exception | None = None

    def hold(self) -> None:
        """From now on each step needs a permit."""
        self.is_free = False

    def allow(self, num_steps: int = 1) -> None:
        """Permit so many steps more."""
        self._permits.release(num_steps)

    def release(self) -> None:
        """From now on nothing is held."""
        self.is_free = True
        self.allow()

    def step(self) -> None:
        """Called before each step, on the engine's thread."""
        if not self.is_free:
            self._permits.acquire()
        self.num_steps += 1
        if self.failure is not None:
            raise self.failure


class SpokenRunner(HistoryRunner):
    """The stand-in's rows are histories, as of any; its logits are what it wants to say."""

    def __init__(self, kv: KvCache, pace: Pace) -> None:
        super().__init__(kv)
        self._pace = pace

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """See `StepRunner.launch`."""
        self._pace.step()
        launched = super().launch(plan)
        self.plans.clear()
        return launched

    def logits(self, history: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """What it wants to say behind a history."""
        logits = _NOISE.copy()
        logits[next_id(history)] = 20.0
        return logits


def next_id(history: tuple[int, ...]) -> int:
    """What the stand-in says after these tokens."""
    if _START_ID not in history:
        return _BYTE_IDS[_number_byte(len(history))]
    start = len(history) - 1 - history[::-1].index(_START_ID)
    said = history[start + 1 + _NUM_HEAD :]
    wanted = _wanted(history[:start])
    if wanted is None:
        return _BYTE_IDS[_number_byte(len(said))]
    done = b"".join(map(TOKENIZER.token_bytes, said))
    # Where a constraint has led it elsewhere it goes on as far as it had come.
    rest = wanted[len(done) :]
    return _BYTE_IDS[rest[:1]] if rest else _END_ID


@lru_cache
def _wanted(prompt: tuple[int, ...]) -> bytes | None:
    text = b"".join(map(TOKENIZER.token_bytes, prompt)).decode()
    _, _, last = text.rpartition(f"{START}user\n")
    said = last.removesuffix(END).partition(END)[0]
    return said.removeprefix("say ").encode() if said.startswith("say ") else None


def _number_byte(idx: int) -> bytes:
    return b"0123456789 "[idx % 11 : idx % 11 + 1]


def spoken_engine(pace: Pace, *, num_pages: int = 2048, page_size: int = 16) -> Engine:
    """An engine on the stand-in, not started."""

    def make_core() -> EngineCore:
        kv = KvCache(num_pages, page_size)
        return EngineCore(
            SpokenRunner(kv, pace),
            kv,
            SchedulerLimits(512, 64),
            ModelLimits(_VOCAB_SIZE, CONTEXT_LEN, frozenset({_END_ID})),
            clock=time.monotonic,
        )

    return Engine(make_core)


def spoken_backend(engine: Engine) -> EngineBackend:
    """A backend on a started engine."""
    return EngineBackend(engine, TOKENIZER, ChatTemplate(TEMPLATE, TOKENIZER))
