"""KV that one engine computed and another one finds on disk."""

from __future__ import annotations

import os
import stat
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import torch
from random_models import tiny_llama

from flowforge.backends.engine import rows_name
from flowforge.backends.kept_prefixes import KeptPrefixes
from flowforge.engine.config import EngineConfig
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.loading import engine_for
from flowforge.engine.prefix_files import PrefixFolder
from flowforge.engine.prefix_rows import KvPrefix
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationFinished, GenerationRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from flowforge.engine.engine import Engine
    from flowforge.engine.sampling import TokenLogprobs

VOCAB = 120
PROMPT = [3 + (7 * idx) % 110 for idx in range(150)]
QUESTION = [5, 6, 7]
REQUEST = GenerationRequest(SamplingParams(max_tokens=8, ignore_eos=True, num_logprobs=3))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("model")
    tiny_llama(vocab_size=VOCAB, max_position_embeddings=512).save_pretrained(directory)
    return directory


@asynccontextmanager
async def engine_on(model_dir: Path, num_pages: int = 64) -> AsyncGenerator[Engine]:
    """In debug mode: every row that is read is checked."""
    config = EngineConfig(num_pages=num_pages, num_threads=1, is_debug=True)
    async with engine_for(model_dir, vocab_size=VOCAB, config=config) as engine:
        yield engine
        await engine.check_invariants()
        assert (await engine.settle()).kv.pages_held == 0


async def answer(
    engine: Engine, tokens: list[int], namespace: Namespace | None = None
) -> tuple[GenerationFinished, list[TokenLogprobs]]:
    sequence = engine.open(tokens, namespace=namespace)
    logprobs: list[TokenLogprobs] = []
    end: GenerationFinished | None = None
    async for update in sequence.generate(REQUEST):
        if isinstance(update, GenerationFinished):
            end = update
        else:
            logprobs += update.logprobs
    await sequence.close()
    assert end is not None
    return end, logprobs


async def keep_prompt(
    model_dir: Path, folder: PrefixFolder, tokens: list[int], namespace: Namespace | None = None
) -> None:
    async with engine_on(model_dir) as engine:
        sequence = engine.open(tokens, namespace=namespace)
        await sequence.prefill()
        await KeptPrefixes(engine, folder).keep([(namespace or Namespace(), sequence)])
        await sequence.close()


async def test_what_was_kept_is_not_computed_again_and_gives_the_same_logits(
    model_dir: Path, tmp_path: Path
) -> None:
    folder = PrefixFolder(tmp_path / "kv", "model 1")
    await keep_prompt(model_dir, folder, PROMPT)
    async with engine_on(model_dir) as engine:
        # The prompt by itself, as it was computed when it was kept: the same sums, the same bits.
        await answer(engine, PROMPT)
        cached, expected = await answer(engine, PROMPT + QUESTION)

    async with engine_on(model_dir) as engine:
        kept = KeptPrefixes(engine, folder)
        await kept.restore(Namespace(), PROMPT + QUESTION)
        restored, logprobs = await answer(engine, PROMPT + QUESTION)

    assert len(PROMPT) == kept.num_restored
    assert len(QUESTION) == cached.usage.prefilled_tokens == restored.usage.prefilled_tokens
    assert expected == logprobs


async def test_a_damaged_file_is_computed_again_with_a_warning(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = PrefixFolder(tmp_path / "kv", "model 1")
    for damage in ("bit", "cut"):
        await keep_prompt(model_dir, folder, PROMPT)
        (path,) = folder.folder.iterdir()
        body = bytearray(path.read_bytes())
        body[-100] ^= 1
        path.write_bytes(bytes(body) if damage == "bit" else bytes(body[:-50]))

        caplog.clear()
        async with engine_on(model_dir) as engine:
            kept = KeptPrefixes(engine, folder)
            await kept.restore(Namespace(), PROMPT + QUESTION)
            end, _ = await answer(engine, PROMPT + QUESTION)

        assert len(PROMPT + QUESTION) == end.usage.prefilled_tokens
        assert "computed again" in caplog.text
        assert not list(folder.folder.iterdir())


@pytest.mark.parametrize(
    ("revision", "namespace"),
    [("model 2", Namespace()), ("model 1", Namespace(salt="b")), ("model 1", Namespace("r"))],
)
async def test_another_model_or_tenant_finds_nothing(
    revision: str, namespace: Namespace, model_dir: Path, tmp_path: Path
) -> None:
    await keep_prompt(model_dir, PrefixFolder(tmp_path, "model 1"), PROMPT)

    async with engine_on(model_dir) as engine:
        kept = KeptPrefixes(engine, PrefixFolder(tmp_path, revision))
        await kept.restore(namespace, PROMPT)
        end, _ = await answer(engine, PROMPT, namespace)

    assert (0, len(PROMPT)) == (kept.num_restored, end.usage.prefilled_tokens)


async def test_what_does_not_fit_into_the_pool_is_computed(model_dir: Path, tmp_path: Path) -> None:
    folder = PrefixFolder(tmp_path / "kv", "model 1")
    await keep_prompt(model_dir, folder, PROMPT)

    async with engine_on(model_dir, num_pages=4) as engine:
        kept = KeptPrefixes(engine, folder)
        await kept.restore(Namespace(), PROMPT)

    assert 0 == kept.num_restored


async def test_the_longest_of_nested_prefixes_is_kept_and_found(
    model_dir: Path, tmp_path: Path
) -> None:
    folder = PrefixFolder(tmp_path / "kv", "model 1")
    async with engine_on(model_dir) as engine:
        parent = engine.open(PROMPT)
        await parent.prefill()
        child = await parent.fork()
        child.append(QUESTION)
        await child.prefill()
        held = [(Namespace(), parent), (Namespace(), child)]
        await KeptPrefixes(engine, folder).keep(held)
        await parent.close()
        await child.close()

    (path,) = folder.folder.iterdir()
    assert path.name.endswith(f"-{len(PROMPT + QUESTION)}.kv.safetensors")


# -- the folder ------------------------------------------------------------------------------------


def prefix(first: int, num_tokens: int = 32) -> KvPrefix:
    rows = torch.full((2, 2, 1, num_tokens, 8), float(first))
    return KvPrefix(Namespace(), tuple(range(first, first + num_tokens)), rows)


def test_the_oldest_go_when_there_is_no_room(tmp_path: Path) -> None:
    PrefixFolder(tmp_path / "one", "m").keep(prefix(0))
    (one,) = (tmp_path / "one").iterdir()
    folder = PrefixFolder(tmp_path / "kv", "m", max_bytes=3 * one.stat().st_size)
    for idx in range(5):
        folder.keep(prefix(idx))
        for path in folder.folder.iterdir():
            # What was there before is older, whatever the clock's grain.
            os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns - 10**9))

    found = [folder.longest(Namespace(), prefix(idx).tokens) is not None for idx in range(5)]

    assert [False, False, True, True, True] == found


def test_what_is_larger_than_the_folder_may_be_is_not_kept(tmp_path: Path) -> None:
    folder = PrefixFolder(tmp_path / "kv", "m", max_bytes=100)

    assert not folder.keep(prefix(0))
    assert folder.longest(Namespace(), prefix(0).tokens) is None


def test_what_a_killed_process_left_half_written_goes(tmp_path: Path) -> None:
    folder = PrefixFolder(tmp_path, "m")
    old, new = tmp_path / "a-32.kv.1.part", tmp_path / "b-32.kv.2.part"
    old.touch()
    new.touch()
    os.utime(old, (0.0, 0.0))

    folder.keep(prefix(0))

    assert (False, True) == (old.exists(), new.exists())


def test_only_the_owner_can_read_what_is_kept(tmp_path: Path) -> None:
    folder = PrefixFolder(tmp_path / "kv", "m")
    folder.keep(prefix(0))

    (path,) = folder.folder.iterdir()
    assert (0o700, 0o600) == (
        stat.S_IMODE(folder.folder.stat().st_mode),
        stat.S_IMODE(path.stat().st_mode),
    )


@pytest.mark.parametrize(
    "other",
    [
        EngineConfig(context_len=64),
        EngineConfig(dtype="int4"),
        EngineConfig(is_deterministic=True),
        EngineConfig(kernel_rows=0),
        EngineConfig(kv_dtype="float8"),
        EngineConfig(tp=2),
    ],
    ids=["context", "dtype", "deterministic", "kernels", "rows", "ranks"],
)
def test_engines_that_compute_otherwise_share_no_rows(model_dir: Path, other: EngineConfig) -> None:
    name = rows_name(model_dir, EngineConfig(num_pages=8))

    assert rows_name(model_dir, None) == name
    assert rows_name(model_dir, other) != name
