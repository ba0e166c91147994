"""GGUF files as models: from --model FILE.gguf to a directory in the store."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from gguf_files import TOKENS, GgufSettings, write_gguf
from transformers import LlamaConfig, LlamaForCausalLM

from flowforge.engine.model_store import list_models, path, resolve_model
from flowforge.engine.models.weights import load_decoder
from flowforge.engine.text.tokenizer import Tokenizer
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path


def _write_model(file: Path, settings: GgufSettings | None = None) -> Path:
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    write_gguf(file, LlamaForCausalLM(config), settings or GgufSettings())
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return _write_model(tmp_path / "tiny-q8.gguf")


def test_file_becomes_a_model_that_loads(file: Path, tmp_path: Path) -> None:
    model = resolve_model(str(file), root=tmp_path)

    assert ("tiny-q8", "gguf") == (model.name, model.source)
    assert [model] == list_models(root=tmp_path)
    assert load_decoder(model.directory).config.vocab_size == len(TOKENS)
    assert Tokenizer.from_directory(model.directory).decode([3, 4]) == "abc"


def test_file_is_converted_once_wherever_it_lies(file: Path, tmp_path: Path) -> None:
    model = resolve_model(file, root=tmp_path)
    marker = model.directory / "marker"
    marker.touch()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    shutil.move(file, moved)

    assert resolve_model(moved / file.name, root=tmp_path) == model
    assert marker.exists()


def test_another_file_of_the_same_name_is_another_model(file: Path, tmp_path: Path) -> None:
    first = resolve_model(file, root=tmp_path)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # a bit of the last weight
    file.write_bytes(content)

    assert resolve_model(file, root=tmp_path).revision != first.revision


def test_folder_with_one_file_is_that_file(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(file, folder)

    assert resolve_model(folder, root=tmp_path) == resolve_model(file, root=tmp_path)


def test_folder_with_several_files_asks_for_one(file: Path, tmp_path: Path) -> None:
    shutil.copy(file, tmp_path / "tiny-q4.gguf")

    with pytest.raises(EngineError, match="2 GGUF files") as caught:
        resolve_model(tmp_path, root=tmp_path)

    assert caught.value.code == "EN101"
    assert "tiny-q4.gguf" in str(caught.value.help)


def test_folder_of_a_hugging_face_model_stays_one(file: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()

    assert resolve_model(tmp_path, root=tmp_path / "store").directory == tmp_path


def test_path_never_converts(file: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="not on this machine"):
        path(file, root=tmp_path)

    model = resolve_model(file, root=tmp_path)

    assert path(file, root=tmp_path) == model


def test_file_that_cannot_be_converted_leaves_nothing(file: Path, tmp_path: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])

    with pytest.raises(EngineError, match=r"tiny-q8\.gguf") as caught:
        resolve_model(file, root=tmp_path)

    assert caught.value.code == "EN131"
    assert list_models(root=tmp_path) == []
