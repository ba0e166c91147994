"""FlowForge's engine as a contestant: its core, stepped on one thread."""

from __future__ import annotations

import random
from itertools import count
from typing import TYPE_CHECKING

from flowforge.bench.scenes import Stopwatch, some_tokens
from flowforge.engine.config import EngineConfig
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.loading import load_core
from flowforge.engine.models.config import read_model_config
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest, SequenceId

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.bench.scenes import Scene, Spent
    from flowforge.engine.config import Dtype
    from flowforge.engine.sequence import Update


class EngineContestant:
    """Contexts are held, so that a stream is a fork: decoding begins with the first new token."""

    def __init__(self, directory: Path, dtype: Dtype, num_pages: int) -> None:
        vocab_size = read_model_config(directory).vocab_size
        config = EngineConfig(dtype=dtype, num_pages=num_pages, max_running=256)
        self._core = load_core(directory, vocab_size=vocab_size, config=config)
        self._ids = map(SequenceId, count())
        self._random = random.Random(1)
        self._contexts: dict[tuple[str, int], list[SequenceId]] = {}

    def play(self, scene: Scene) -> Spent:
        """See `Contestant.play`."""
        if scene.kind in ("decode", "shared"):
            contexts = self._held(scene)
            watch = Stopwatch()
            self._write(contexts, scene.num_steps)
            return watch.spent()
        prompt = self._opened(scene.prompt_len)
        watch = Stopwatch()
        self._compute(prompt)
        if scene.kind == "fan_out":
            self._write([prompt] * scene.num_streams, scene.num_steps)
        spent = watch.spent()
        self._core.close(prompt)
        return spent

    def _held(self, scene: Scene) -> list[SequenceId]:
        """A context for each stream, all the same one where they share it."""
        is_shared = scene.kind == "shared"
        held = self._contexts.setdefault((scene.kind, scene.prompt_len), [])
        for _ in range((1 if is_shared else scene.num_streams) - len(held)):
            held.append(self._opened(scene.prompt_len))
            self._compute(held[-1])
        return held * scene.num_streams if is_shared else held[: scene.num_streams]

    def _opened(self, num_tokens: int) -> SequenceId:
        sequence = next(self._ids)
        self._core.open(sequence, Namespace())
        self._core.append(sequence, some_tokens(self._random, num_tokens))
        return sequence

    def _compute(self, sequence: SequenceId) -> None:
        self._core.prefill(sequence, _Forgetful())
        self._run()

    def _write(self, contexts: list[SequenceId], num_steps: int) -> None:
        request = GenerationRequest(SamplingParams(max_tokens=num_steps, ignore_eos=True))
        forks = [next(self._ids) for _ in contexts]
        for idx, (context, fork) in enumerate(zip(contexts, forks, strict=True)):
            self._core.fork(context, fork)
            self._core.append(fork, [100 + idx])
            self._core.generate(fork, request, _Forgetful())
        self._run()
        for fork in forks:
            self._core.close(fork)

    def _run(self) -> None:
        while self._core.has_work:
            self._core.step()


class _Forgetful:
    """Takes updates and forgets them."""

    def put(self, update: Update) -> None:
        """Nobody reads them."""
