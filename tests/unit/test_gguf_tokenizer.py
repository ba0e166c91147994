"""Tokenizers out of GGUF metadata: how they cut, merge and decode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import gguf
import pytest
from gguf_files import finish
from tokenizers import Tokenizer as BackendTokenizer

from flowforge.engine.models.gguf_file import GgufFile
from flowforge.engine.models.gguf_tokenizer import gguf_tokenizer, gguf_tokenizer_config
from flowforge.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# Scores as SentencePiece's trainer gives them: the earlier a piece, the better.
_PIECES = ["▁h", "el", "lo", "hel", "▁hel", "▁hello", "▁▁", "h", "e", "l", "o", "▁", "a", "b"]


@dataclass(frozen=True, slots=True)
class _Kinds:
    normal: int = 1
    unknown: int = 2
    control: int = 3
    user_defined: int = 4
    byte: int = 6


_KIND = _Kinds()


def _sentencepiece(path: Path, **flags: bool) -> Tokenizer:
    tokens = ["<unk>", "<s>", "</s>", *_BYTES, *_PIECES, "<start_of_turn>"]
    types = [_KIND.unknown, _KIND.control, _KIND.control, *[_KIND.byte] * 256]
    types += [_KIND.normal] * len(_PIECES) + [_KIND.control]
    types[tokens.index("▁▁")] = _KIND.user_defined
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_scores([-float(idx) for idx in range(len(tokens))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
    finish(writer)
    file = GgufFile(path)
    configs = {"tokenizer_config.json": gguf_tokenizer_config(file, 64)}
    return Tokenizer(gguf_tokenizer(file), configs=configs)


def _pieces(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    return [tokenizer.token_bytes(token_id).decode() for token_id in token_ids]


def test_sentencepiece_merges_the_best_piece_first(tmp_path: Path) -> None:
    tokenizer = _sentencepiece(tmp_path / "t.gguf")

    assert _pieces(tokenizer, tokenizer.encode_completion("hello")) == ["<s>", " hello"]
    assert _pieces(tokenizer, tokenizer.encode("hello")) == ["hel", "lo"]
    # "el" goes before "lo" would make "ello" of it, and "▁h" before "hel".
    assert _pieces(tokenizer, tokenizer.encode_completion("helo")) == ["<s>", " hel", "o"]


def test_sentencepiece_says_unknown_characters_in_bytes(tmp_path: Path) -> None:
    tokenizer = _sentencepiece(tmp_path / "t.gguf")

    token_ids = tokenizer.encode("é")

    assert [tokenizer.token_bytes(token_id) for token_id in token_ids] == [b"\xc3", b"\xa9"]


@pytest.mark.parametrize("add_space_prefix", [True, False])
def test_sentencepiece_gives_back_the_text(tmp_path: Path, add_space_prefix: bool) -> None:
    tokenizer = _sentencepiece(tmp_path / "t.gguf", add_space_prefix=add_space_prefix)

    token_ids = tokenizer.encode_completion("a é  b")

    assert tokenizer.decode(token_ids) == "a é  b"
    # The user-defined piece of two spaces is found, and read as spaces.
    assert b"  " in [tokenizer.token_bytes(token_id) for token_id in token_ids]


def test_control_token_in_content_is_text(tmp_path: Path) -> None:
    tokenizer = _sentencepiece(tmp_path / "t.gguf")

    assert len(tokenizer.encode_scaffolding("<start_of_turn>")) == 1
    assert not tokenizer.special_ids & set(tokenizer.encode("<start_of_turn>"))


@pytest.mark.parametrize(
    ("flags", "adds_bos", "first"),
    [
        ({}, True, "<s>"),
        ({"add_bos_token": False}, False, " "),
        ({"add_bos_token": True, "add_space_prefix": False}, True, "<s>"),
    ],
)
def test_bos_is_added_as_the_file_says(
    tmp_path: Path, flags: dict[str, bool], adds_bos: bool, first: str
) -> None:
    tokenizer = _sentencepiece(tmp_path / "t.gguf", **flags)

    assert tokenizer.adds_bos is adds_bos
    assert _pieces(tokenizer, tokenizer.encode_completion("a"))[0] == first


def test_space_prefix_is_left_out_when_the_file_says_so(tmp_path: Path) -> None:
    tokenizer = _sentencepiece(tmp_path / "t.gguf", add_space_prefix=False)

    assert _pieces(tokenizer, tokenizer.encode_completion("ab")) == ["<s>", "a", "b"]
    assert tokenizer.decode(tokenizer.encode(" a")) == " a"


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["I", "'ll", "Ġbe", "Ġ12345", "!!", "ĊĊ"]),
        ("smollm", ["I", "'ll", "Ġbe", "Ġ", "1", "2", "3", "4", "5", "!!", "ĊĊ"]),
        ("qwen2", ["I", "'ll", "Ġbe", "Ġ", "1", "2", "3", "4", "5", "!!ĊĊ"]),
        ("llama-bpe", ["I", "'ll", "Ġbe", "Ġ", "123", "45", "!!ĊĊ"]),
    ],
)
def test_byte_level_tokenizers_cut_as_their_models_do(
    tmp_path: Path, pre: str, expected: list[str]
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["<|end|>", "a", "b", "ab"])
    writer.add_token_types([_KIND.control, *[_KIND.normal] * 3])
    writer.add_token_merges(["a b"])
    finish(writer)

    cutter = BackendTokenizer.from_str(gguf_tokenizer(GgufFile(tmp_path / "t.gguf"))).pre_tokenizer
    assert cutter is not None
    assert [piece for piece, _ in cutter.pre_tokenize_str("I'll be 12345!!\n\n")] == expected
