"""KV rows in float8: how far they are from exact ones, and that no way loses anything of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from core_client import Client
from decoder_runs import dense_logits, ranges_of, slot_of
from history_model import Updates
from kernel_heads import on_the_cpu
from model_core import model_core
from random_models import tiny_llama, tiny_model

from flowforge.engine.attention.backends import choose_backend
from flowforge.engine.attention.kernel_attention import kernel_backend
from flowforge.engine.attention.reads import Span
from flowforge.engine.config import EngineConfig
from flowforge.engine.float8 import FLOAT8, from_float8, to_float8
from flowforge.engine.kv.host_tier import HostSlot, Offload, Restore
from flowforge.engine.kv.moves import RowCopy
from flowforge.engine.kv.pool import PageId
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.kv.store import KvStore
from flowforge.engine.loading import load_core
from flowforge.engine.models.weights import load_decoder
from flowforge.engine.prefix_files import PrefixFolder
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import (
    GenerationFinished,
    GenerationRequest,
    SequenceId,
    TokensArrived,
)
from flowforge.errors import EngineError, InternalError

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.models.decoder import Decoder
    from flowforge.engine.prefix_rows import KvPrefix

PAGE_SIZE = 4
LENGTH = 61
# ‖Δ‖ / ‖logits‖ of a random model of two layers: a number with 3 bits behind the point is off by up
# to 1/16 of itself, evenly spread; what attention adds up of such numbers is off by less.
MOST_OFF = 0.06
# The same by two ways: numbers that rounding puts next to each other in one of them.
SAME = 0.003


def test_rows_come_back_within_a_sixteenth_of_each_number() -> None:
    rows = torch.randn((3, 50, 64), generator=torch.Generator().manual_seed(1))
    rows[0] *= 1e-6
    rows[1, 3] = 0

    values, scales = to_float8(rows)
    found = from_float8(values, scales, torch.float32)

    # Below the least normal number of a row what is off no longer shrinks with the number.
    least = scales[..., None] * 2.0**-6
    assert ((found - rows).abs() <= rows.abs().clamp(min=least) / 16).all()
    assert (FLOAT8, torch.float32) == (values.dtype, scales.dtype)
    assert torch.equal(found[1, 3], rows[1, 3])


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tiny_llama(num_attention_heads=4, num_key_value_heads=2, head_dim=32).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def decoder(model_dir: Path) -> Decoder:
    return load_decoder(model_dir, dtype=torch.float32)


def new_store(decoder: Decoder, num_host_slots: int = 0) -> KvStore:
    config = decoder.config
    return KvStore(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        num_pages=64,
        page_size=PAGE_SIZE,
        dtype=torch.float32,
        device=torch.device("cpu"),
        is_float8=True,
        num_host_slots=num_host_slots,
        verifies=True,
    )


@torch.inference_mode()
def logits_by(decoder: Decoder, way: str, chunk_len: int) -> torch.Tensor:
    """Of one text on two runs of pages, through float8 rows that are NaN until they are written."""
    store = new_store(decoder)
    store.poison([PageId(page) for page in range(64)])
    num_heads = decoder.config.num_heads
    backend = choose_backend(store) if way == "torch" else kernel_backend(store, num_heads)
    token_ids, parts = torch.arange(3, 3 + LENGTH), list[torch.Tensor]()
    for start in range(0, LENGTH, chunk_len):
        stop = min(LENGTH, start + chunk_len)
        slots = torch.tensor([slot_of(position) for position in range(start, stop)])
        step = backend.step(slots, (Span(0, stop - start, ranges_of(stop)),), ())
        positions = torch.arange(start, stop)
        parts.append(decoder.logits(decoder.forward(token_ids[start:stop], positions, step)))
    return torch.cat(parts)


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_logits_are_close_to_those_of_transformers_and_not_the_same(
    model_dir: Path, decoder: Decoder
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(torch.arange(3, 3 + LENGTH)[None]).logits[0]

    found = logits_by(decoder, "torch", 9)

    assert SAME < off(found, expected) < MOST_OFF


@pytest.mark.parametrize("way", ["torch", pytest.param("kernels", marks=on_the_cpu, id="kernels")])
def test_logits_do_not_depend_on_chunks_nor_on_who_computes(way: str, decoder: Decoder) -> None:
    expected = logits_by(decoder, "torch", LENGTH)

    # The interpreter takes its time.
    for chunk_len in (1, 17) if way == "torch" else (30,):
        assert off(logits_by(decoder, way, chunk_len), expected) < SAME


def test_a_window_and_a_cap_are_those_of_exact_rows(tmp_path: Path) -> None:
    tiny_model("Gemma2", head_dim=16, sliding_window=9, query_pre_attn_scalar=16).save_pretrained(
        tmp_path
    )
    windowed = load_decoder(tmp_path, dtype=torch.float32)
    # Dense attention knows windows and caps and keeps no rows.
    expected = dense_logits(windowed, torch.arange(3, 3 + LENGTH))

    assert off(logits_by(windowed, "torch", 13), expected) < MOST_OFF


def filled(decoder: Decoder, num_host_slots: int = 0) -> KvStore:
    """Every row and every scale is another one."""
    store = new_store(decoder, num_host_slots)
    assert store.scales is not None
    generator = torch.Generator().manual_seed(4)
    numbers = torch.randint(0, 127, store.rows.shape, dtype=torch.uint8, generator=generator)
    store.rows.copy_(numbers.view(FLOAT8))
    store.scales.copy_(torch.rand(store.scales.shape, generator=generator))
    return store


def test_forks_copy_rows_with_their_scales(decoder: Decoder) -> None:
    store = filled(decoder)
    assert store.scales is not None
    source = store.take_out(range(3 * PAGE_SIZE, 3 * PAGE_SIZE + 3))
    behind = store.take_out([7 * PAGE_SIZE + 3])

    store.move_rows([RowCopy(PageId(3), PageId(7), 3)])

    for part, expected in zip(
        store.take_out(range(7 * PAGE_SIZE, 7 * PAGE_SIZE + 3)), source, strict=True
    ):
        assert same_bits(part, expected)
    for part, expected in zip(store.take_out([7 * PAGE_SIZE + 3]), behind, strict=True):
        assert same_bits(part, expected)


def same_bits(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    assert one is not None
    assert other is not None
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def test_pages_come_back_from_the_host_with_every_bit_and_changed_ones_are_told(
    decoder: Decoder,
) -> None:
    store = filled(decoder, num_host_slots=3)
    slots = range(5 * PAGE_SIZE, 6 * PAGE_SIZE)
    before = store.take_out(slots)
    store.move_rows([Offload(PageId(5), HostSlot(1))])
    store.poison([PageId(5)])
    assert store.take_out(slots)[1].isnan().all()  # type: ignore[union-attr]  # they have scales

    store.move_rows([Restore(HostSlot(1), PageId(5))])

    for part, expected in zip(store.take_out(slots), before, strict=True):
        assert same_bits(part, expected)
    _, scales = vars(vars(store)["_host"])["_slots"]
    scales[1, 0, 0, 0, 0] += 1
    with pytest.raises(InternalError, match="came back from slot 1 of the host as other ones"):
        store.move_rows([Restore(HostSlot(1), PageId(9))])


# --- in the engine -------------------------------------------------------------------------------


def logprobs(decoder: Decoder) -> list[float]:
    """Of prompts that push each other out of twelve pages, each asked twice, and of two forks."""
    core, kv = model_core(decoder, num_pages=12, num_host_slots=64, is_float8=True)
    client = Client(core)
    found: list[float] = []
    for first in (3, 4, 5, 3, 4, 5):
        root = client.open([first, *range(20, 50)])
        answers = [begin(client, root)]
        client.run()
        answers.append(begin(client, client.fork(root)))
        client.run()
        for updates in answers:
            assert isinstance(updates[-1], GenerationFinished)
            arrived = [one for one in updates if isinstance(one, TokensArrived)]
            found += [one.logprob for update in arrived for one in update.logprobs]
    core.check_invariants()
    assert kv.statistics().host.restored_pages > 0
    return found


def begin(client: Client, sequence: SequenceId) -> Updates:
    updates = Updates()
    params = SamplingParams(max_tokens=4, num_logprobs=0)
    client.core.generate(sequence, GenerationRequest(params), updates)
    return updates


def test_answers_stay_the_same_through_forks_evictions_and_the_host(decoder: Decoder) -> None:
    """Debug mode checks every row that is read, and every checksum."""
    found = logprobs(decoder)

    assert found[: len(found) // 2] == pytest.approx(found[len(found) // 2 :], abs=0.02)


def test_an_engine_has_more_pages_in_the_same_memory_and_says_so(model_dir: Path) -> None:
    exact, core = (
        load_core(
            model_dir,
            vocab_size=120,
            config=EngineConfig(device="cpu", kv_bytes=100_000, dtype="auto", kv_dtype=kv_dtype),
        ).statistics()
        for kv_dtype in ("auto", "float8")
    )

    assert ("float32", "float8") == (exact.compute.kv_dtype, core.compute.kv_dtype)
    # Of two layers K and V of two heads: 32 numbers of four bytes, or of one and a scale.
    assert 2 * 2 * 2 * 32 * 4 == exact.memory.kv_bytes_per_token
    assert 2 * 2 * 2 * (32 + 4) == core.memory.kv_bytes_per_token
    assert 100_000 // (16 * 1024) == exact.kv.pages_total
    assert 100_000 // (16 * 288) == core.kv.pages_total
    assert core.memory.kv_bytes <= 100_000
    assert not core.compute.is_deterministic


def test_float8_rows_are_not_deterministic() -> None:
    with pytest.raises(EngineError, match="kv_dtype is 'float8'") as caught:
        EngineConfig(kv_dtype="float8", is_deterministic=True)
    assert "EN234" == caught.value.code

    with pytest.raises(EngineError, match="kv_dtype must be one of") as caught:
        EngineConfig(kv_dtype="int8")  # type: ignore[arg-type]  # what is refused
    assert "EN230" == caught.value.code


# --- on disk -------------------------------------------------------------------------------------


def kept_prefix(decoder: Decoder, tokens: list[int], *, is_float8: bool) -> KvPrefix:
    core, _ = model_core(decoder, is_float8=is_float8)
    client = Client(core)
    sequence = client.open(tokens)
    begin(client, sequence)
    client.run()
    prefix = core.take_out(sequence)
    assert prefix is not None
    return prefix


def test_kept_prefixes_have_their_scales_and_are_hit_again(
    decoder: Decoder, tmp_path: Path
) -> None:
    prompt = [*range(5, 28)]
    prefix = kept_prefix(decoder, prompt, is_float8=True)
    folder = PrefixFolder(tmp_path, "model")
    folder.keep(prefix)
    kept = folder.longest(Namespace(), prefix.tokens)
    assert kept is not None

    read = folder.read(kept)

    assert read is not None
    assert same_bits(read.rows, prefix.rows)
    assert same_bits(read.scales, prefix.scales)
    core, _ = model_core(decoder, is_float8=True)
    assert len(prefix.tokens) == core.put_in(read)
    client = Client(core)
    begin(client, client.open([*prefix.tokens, 7, 8]))
    client.run()
    assert 2 == core.statistics().prefilled_tokens


def test_prefixes_of_another_type_or_format_are_refused_with_both_types(
    decoder: Decoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exact = kept_prefix(decoder, [*range(5, 28)], is_float8=False)
    core, _ = model_core(decoder, is_float8=True)
    count = len(exact.tokens)

    with pytest.raises(ValueError, match="expected rows") as caught:
        core.put_in(exact)

    shape = f"(2, 2, 2, {count}"
    expected = f"rows {shape}, 32) of float8_e4m3fn with scales {shape})"
    assert f"expected {expected}, got rows {shape}, 32) of float32" == str(caught.value)
    folder = PrefixFolder(tmp_path, "model")
    folder.keep(exact)
    kept = folder.longest(Namespace(), exact.tokens)
    assert kept is not None
    content = kept.path.read_bytes()
    assert content.count(b'"format":"2"') == 1
    kept.path.write_bytes(content.replace(b'"format":"2"', b'"format":"1"'))

    assert folder.read(kept) is None

    assert "its format is '1', expected '2'" in caplog.text
    assert not kept.path.exists()
