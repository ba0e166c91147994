"""transformers as a contestant: its model and cache in a bare loop, and its continuous batching."""

from __future__ import annotations

import inspect
import random
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig

from flowforge.bench.scenes import Spent, Stopwatch, some_tokens

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.bench.scenes import Scene

_PAGE_SIZE = 256  # its default


class TransformersContestant:
    """What its generate does, and less: no lists of processors and criteria at each token.

    Streams that share a context have copies of its cache: it knows no other way.
    """

    def __init__(self, directory: Path, dtype: str, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        self._model = _model(directory, dtype)
        # Renamed in version 5.
        names = inspect.signature(self._model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._random = random.Random(1)
        self._contexts: dict[int, Any] = {}

    @torch.inference_mode()
    def play(self, scene: Scene) -> Spent:
        """See `Contestant.play`; contexts of streams are copies of one, which costs the same."""
        if scene.kind in ("decode", "shared"):
            if scene.prompt_len not in self._contexts:
                self._contexts[scene.prompt_len] = self._computed(scene.prompt_len)
            cache = _copies(self._contexts[scene.prompt_len], scene.num_streams)
            watch = Stopwatch()
            self._write(cache, scene)
            return watch.spent()
        watch = Stopwatch()
        computed = self._computed(scene.prompt_len)
        if scene.kind == "fan_out":
            self._write(_copies(computed, scene.num_streams), scene)
        return watch.spent()

    def _computed(self, num_tokens: int) -> Any:
        cache = DynamicCache()
        self._run(torch.tensor([some_tokens(self._random, num_tokens)]), cache)
        return cache

    def _run(self, ids: torch.Tensor, cache: Any) -> Any:
        return self._model(ids, use_cache=True, logits_to_keep=1, **{self._cache_name: cache})

    def _write(self, cache: Any, scene: Scene) -> None:
        ids = torch.full((scene.num_streams, 1), 1000)
        for _ in range(scene.num_steps):
            ids = self._run(ids, cache).logits[:, -1:].argmax(-1)


class BatchingContestant:
    """Its continuous batching, timed by its own stamps: from the last first token to the end."""

    def __init__(self, directory: Path, dtype: str, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        self._model = _model(directory, dtype)
        self._random = random.Random(1)

    def play(self, scene: Scene) -> Spent | None:
        """See `Contestant.play`; decoding only. Processor time is that of the prompts, too."""
        if scene.kind not in ("decode", "shared"):
            return None
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        shared = some_tokens(self._random, scene.prompt_len)
        prompts = [
            [*shared, 100 + idx] if scene.kind == "shared" else self._own(scene.prompt_len)
            for idx in range(scene.num_streams)
        ]
        pages_each = -(-(scene.prompt_len + scene.num_steps + 2) // _PAGE_SIZE)
        watch = Stopwatch()
        outputs = self._model.generate_batch(
            prompts,
            generation_config=GenerationConfig(
                # The first one's time is the prompt's.
                max_new_tokens=scene.num_steps + 1,
                do_sample=False,
                eos_token_id=-1,
                pad_token_id=0,
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=_PAGE_SIZE,
                num_blocks=(pages_each + 1) * scene.num_streams,
                max_batch_tokens=512,
            ),
            record_timestamps=True,
            warmup=False,
        )
        stamps = [output.timestamps for output in outputs.values()]
        wall_s = max(one[-1] for one in stamps) - max(one[0] for one in stamps)
        return Spent(float(wall_s), watch.spent().cpu_s)

    def _own(self, num_tokens: int) -> list[int]:
        return some_tokens(self._random, num_tokens + 1)


def _model(directory: Path, dtype: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()


def _copies(computed: Any, num_streams: int) -> Any:
    cache = DynamicCache()
    for idx, layer in enumerate(computed.layers):
        copies = (num_streams, 1, 1, 1)
        cache.update(layer.keys.repeat(copies), layer.values.repeat(copies), idx)
    return cache
