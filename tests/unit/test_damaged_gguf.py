"""GGUF files in which single bytes are wrong: converted, or refused by code; never a raw error."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from gguf_files import TOKENS, GgufSettings, write_gguf
from transformers import LlamaConfig, LlamaForCausalLM

from flowforge.engine.models.gguf_conversion import convert_gguf
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    path = tmp_path_factory.mktemp("whole") / "tiny.gguf"
    write_gguf(path, LlamaForCausalLM(config), GgufSettings())
    return path.read_bytes()


def changed(content: bytes, place: int, new: bytes) -> bytes:
    return content[:place] + new + content[place + len(new) :]


def convert(content: bytes, folder: Path) -> None:
    file = folder / "damaged.gguf"
    file.write_bytes(content)
    convert_gguf(file, folder / "converted")


def test_a_text_that_is_no_utf_8_is_refused_by_its_key(content: bytes, tmp_path: Path) -> None:
    damaged = changed(content, content.index(b"smollm"), b"\xfb")

    with pytest.raises(EngineError, match=r"EN131.*'tokenizer.ggml.pre' is damaged"):
        convert(damaged, tmp_path)


def test_heads_that_do_not_fit_a_tensor_are_refused_by_its_name(
    content: bytes, tmp_path: Path
) -> None:
    key = b"llama.attention.head_count"
    value = content.index(key) + len(key) + 4  # behind the key: its type, then a uint32
    assert 2 == int.from_bytes(content[value : value + 4], "little")

    with pytest.raises(EngineError, match=r"EN131.*'blk.0.attn_q.weight' of shape .* of 3 heads"):
        convert(changed(content, value, b"\x03"), tmp_path)


def test_a_merge_of_no_token_is_refused(content: bytes, tmp_path: Path) -> None:
    damaged = changed(content, content.index(b"a b"), b"a?b")

    with pytest.raises(EngineError, match=r"EN131.*its tokenizer is damaged"):
        convert(damaged, tmp_path)


def test_no_wrong_byte_gives_a_raw_error(content: bytes, tmp_path: Path) -> None:
    chance = random.Random(5)
    codes: list[str] = []
    for _ in range(150):
        place = chance.randrange(min(len(content), 4000))
        try:
            convert(changed(content, place, chance.randbytes(1)), tmp_path)
        except EngineError as error:
            codes.append(error.code)

    assert {"EN131", "EN132"} >= set(codes)
    assert len(codes) > 20, "wrong bytes were found"
