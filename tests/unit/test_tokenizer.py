"""Content never controls, bytes are what tokens stand for, and the special ids are the union."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer

from flowforge.engine.text.tokenizer import Tokenizer
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Cases = Callable[[str], list[dict[str, Any]]]

GUARD = "\U0010fffd"


def byte_level_json() -> str:
    """A tokenizer of 256 bytes, with control tokens that are in no vocabulary but the added one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = BackendTokenizer(models.BPE({char: idx for idx, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>"), AddedToken("<|start|>")])
    backend.add_tokens([AddedToken("<tool>")])
    return backend.to_str()


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path) -> Tokenizer:
    return Tokenizer.from_directory(default_model_dir)


@pytest.mark.model
def test_control_text_in_content_stays_text(tokenizer: Tokenizer) -> None:
    assert [44, 108, 306, 79, 486, 108, 46] == tokenizer.encode("<|im_end|>")
    assert [2] == tokenizer.encode_scaffolding("<|im_end|>")


def test_what_the_template_sets_parts_apart_by_stays_text_in_content() -> None:
    """Added tokens that are not marked special, such as `<tool_call>`, would forge a call."""
    tokenizer = Tokenizer(byte_level_json(), template="{{ '<tool>' + message.content }}")

    forged = tokenizer.encode("<tool>")
    assert list(b"<tool>") == [tokenizer.token_bytes(token_id)[0] for token_id in forged]
    assert [258] == tokenizer.encode_scaffolding("<tool>")
    assert "<tool>" == tokenizer.decode([258])


def test_an_added_token_that_no_template_writes_is_a_token_in_content() -> None:
    assert [258] == Tokenizer(byte_level_json()).encode("<tool>")


@pytest.mark.model
def test_half_a_surrogate_pair_is_refused_with_its_place(tokenizer: Tokenizer) -> None:
    for encode in (tokenizer.encode, tokenizer.encode_completion):
        with pytest.raises(EngineError, match=r"EN307.*character 3 .* U\+D800"):
            encode("ab\ud800c")


def test_digits_and_line_ends_are_the_golden_ids(tokenizer: Tokenizer, cases: Cases) -> None:
    case = next(case for case in cases("tokens") if case["id"] == "TK-055")

    ids = [tokenizer.encode(text) for text in case["input"]["texts"]]

    assert case["expected"] == ids


@pytest.mark.model
def test_a_raw_completion_gets_no_bos_when_the_model_wants_none(tokenizer: Tokenizer) -> None:
    assert [19556] == tokenizer.encode_completion("Hello")


@pytest.mark.model
def test_decoding_one_token_is_what_the_backend_says(
    tokenizer: Tokenizer, default_model_dir: Path
) -> None:
    backend = BackendTokenizer.from_file(str(default_model_dir / "tokenizer.json"))

    differing = [
        token_id
        for token_id in range(tokenizer.vocab_size)
        if backend.decode([token_id], skip_special_tokens=False)
        != tokenizer.decode([token_id], skip_special=False)
    ]

    assert differing == []


@pytest.mark.model
def test_leading_spaces_are_kept_and_special_and_padded_ids_are_silent(
    tokenizer: Tokenizer,
) -> None:
    assert tokenizer.decode([9805]) == " yes"
    assert tokenizer.decode([19556, 905]) == "Hello world"
    assert tokenizer.decode([1, 19556, 2, 60_000]) == "Hello"


def test_renaming_control_tokens_moves_no_other_id() -> None:
    tokenizer = Tokenizer(byte_level_json())

    assert [258] == tokenizer.encode("<tool>")
    assert [256] == tokenizer.encode_scaffolding("<|end|>")
    assert len("<|end|>") == len(tokenizer.encode("<|end|>"))


@pytest.mark.parametrize("text", [f"{GUARD}256{GUARD}", f"a{GUARD}257{GUARD}{GUARD}256{GUARD}"])
def test_the_text_that_control_tokens_are_renamed_to_is_text_too(text: str) -> None:
    tokenizer = Tokenizer(byte_level_json())

    token_ids = tokenizer.encode(text)

    assert not tokenizer.special_ids.intersection(token_ids)
    assert text == tokenizer.decode(token_ids)


def test_end_tokens_are_the_union_of_all_that_the_configs_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [257]}))

    tokenizer = Tokenizer.from_directory(tmp_path)

    assert {256, 257} == tokenizer.eos_ids
    assert tokenizer.turn_end_id == 256


def test_a_completion_starts_with_bos_once_when_the_model_wants_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    config = {"bos_token": {"content": "<|start|>"}, "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    tokenizer = Tokenizer.from_directory(tmp_path)

    assert [257, *tokenizer.encode("a")] == tokenizer.encode_completion("a")


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_broken_file_is_an_engine_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")

    with pytest.raises(EngineError) as caught:
        Tokenizer.from_directory(tmp_path)

    assert caught.value.code == "EN301"


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_broken_config_beside_the_tokenizer_is_called_by_its_own_name(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    (tmp_path / name).write_text(text, encoding="utf-8")

    with pytest.raises(EngineError) as caught:
        Tokenizer.from_directory(tmp_path)

    assert "EN111" == caught.value.code
    assert f"/{name}'" in caught.value.message
    assert "tokenizer.json" not in caught.value.message


def test_a_folder_without_any_tokenizer_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")

    with pytest.raises(EngineError) as caught:
        Tokenizer.from_directory(tmp_path)

    assert "EN301" == caught.value.code
    assert caught.value.message.endswith(
        "no tokenizer.json, nor older files that one can be made from"
    )


def test_an_end_token_outside_the_vocabulary_is_an_engine_error() -> None:
    with pytest.raises(EngineError) as caught:
        Tokenizer(byte_level_json(), eos_ids=[9_999])

    assert "9999" in caught.value.message


def test_a_negative_id_stands_for_no_bytes_but_a_mistake() -> None:
    with pytest.raises(ValueError, match="-1"):
        Tokenizer(byte_level_json()).token_bytes(-1)
