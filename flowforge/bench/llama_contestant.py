"""llama.cpp as a contestant, by the calls of llama-cpp-python that are llama.cpp's own."""

from __future__ import annotations

import ctypes
import random
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from flowforge.bench.scenes import Stopwatch, some_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from flowforge.bench.scenes import Scene, Spent

_Row: TypeAlias = tuple[int, int, int, bool]
"""Token, position, sequence, and whether its logits are wanted."""

_BATCH = 512

# Seldom installed, so type checkers need not know it.
llama_cpp: Any = import_module("llama_cpp")


class LlamaContestant:
    """One KV cache for all sequences, whose common cells are there once, or a part for each.

    Neither is quicker in every scene: both are contestants.
    """

    def __init__(
        self, file: Path, num_threads: int, num_streams: int, num_tokens: int, *, is_unified: bool
    ) -> None:
        """num_streams, num_tokens: the most that a scene has, of one stream."""
        llama_cpp.llama_backend_init()
        quiet = llama_cpp.llama_log_callback(_say_nothing)
        llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
        self._kept = quiet  # by the library, which does not hold it
        settings = llama_cpp.llama_model_default_params()
        settings.n_gpu_layers = 0
        self._model: Any = llama_cpp.llama_model_load_from_file(str(file).encode(), settings)
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = num_tokens * num_streams
        options.n_batch = options.n_ubatch = _BATCH
        options.n_seq_max = num_streams
        options.n_threads = options.n_threads_batch = num_threads
        options.kv_unified = is_unified
        self._context: Any = llama_cpp.llama_init_from_model(self._model, options)
        if not self._context:
            raise MemoryError(f"llama.cpp has no room for {options.n_ctx} tokens")
        self._memory: Any = llama_cpp.llama_get_memory(self._context)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._random = random.Random(1)
        self._is_unified = is_unified
        self._held: tuple[int, int] | None = None

    def play(self, scene: Scene) -> Spent | None:
        """See `Contestant.play`.

        Where all sequences have one cache, streams of equal contexts would share them.
        """
        if self._is_unified and scene.kind in ("decode", "prefill"):
            return None
        if scene.kind in ("decode", "shared"):
            self._hold(scene)
            watch = Stopwatch()
            self._write(scene)
            return watch.spent()
        self._forget()
        watch = Stopwatch()
        self._read(scene.prompt_len)
        if scene.kind == "fan_out":
            self._share(scene)
            self._write(scene)
        spent = watch.spent()
        self._forget()
        return spent

    def _hold(self, scene: Scene) -> None:
        """A context for each stream, computed once and copied, unless they are there."""
        wanted = (scene.num_streams, scene.prompt_len)
        if self._held != wanted:
            self._forget()
            self._read(scene.prompt_len)
            self._share(scene)
            self._held = wanted

    def _share(self, scene: Scene) -> None:
        for sequence in range(1, scene.num_streams):
            llama_cpp.llama_memory_seq_cp(self._memory, 0, sequence, -1, -1)

    def _read(self, num_tokens: int) -> None:
        tokens = some_tokens(self._random, num_tokens)
        for start in range(0, num_tokens, _BATCH):
            part = enumerate(tokens[start : start + _BATCH], start)
            self._decode([(token, at, 0, at == num_tokens - 1) for at, token in part])

    def _write(self, scene: Scene) -> None:
        """Write greedily, and forget what was written."""
        tokens = [1000] * scene.num_streams
        for step in range(scene.num_steps):
            at = scene.prompt_len + step
            self._decode([(token, at, idx, True) for idx, token in enumerate(tokens)])
            tokens = [self._likeliest(idx) for idx in range(scene.num_streams)]
        for sequence in range(scene.num_streams):
            llama_cpp.llama_memory_seq_rm(self._memory, sequence, scene.prompt_len, -1)

    def _likeliest(self, idx: int) -> int:
        logits: Any = llama_cpp.llama_get_logits_ith(self._context, idx)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocab_size,)).argmax())

    def _decode(self, rows: Iterable[_Row]) -> None:
        listed = list(rows)
        batch: Any = llama_cpp.llama_batch_init(len(listed), 0, 1)
        for idx, (token, position, sequence, has_logits) in enumerate(listed):
            batch.token[idx], batch.pos[idx], batch.logits[idx] = token, position, has_logits
            batch.n_seq_id[idx], batch.seq_id[idx][0] = 1, sequence
        batch.n_tokens = len(listed)
        code = llama_cpp.llama_decode(self._context, batch)
        llama_cpp.llama_batch_free(batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        llama_cpp.llama_synchronize(self._context)

    def _forget(self) -> None:
        llama_cpp.llama_memory_clear(self._memory, False)
        self._held = None


def _say_nothing(_level: int, _text: bytes, _data: object) -> None:
    """For each line of its log."""
