"""From files to a decoder. Where the cases of the bank's area model_loading are tested:

ML-001, ML-019 (golden logits and ids): test_default_model. ML-003, ML-013, ML-017, ML-018: here.
ML-004, ML-005, ML-007, ML-008, ML-012 (config.json): test_model_config. ML-011 (padded ids):
test_padded_vocabulary, test_tokenizer and test_json_constraint. ML-015 (hostile template):
test_chat_template. None is left out.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from flowforge.engine.attention.reference import DenseAttention
from flowforge.engine.models.weights import load_decoder
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flowforge.engine.models.decoder import Decoder

_SHAPE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return _save_model(tmp_path / "model")


def _save_model(directory: Path, **settings: Any) -> Path:
    torch.manual_seed(3)
    shard_size = settings.pop("max_shard_size", "1GB")
    model = LlamaForCausalLM(LlamaConfig(**(_SHAPE | settings)))
    model.save_pretrained(directory, max_shard_size=shard_size)
    return directory


def _logits(decoder: Decoder) -> torch.Tensor:
    with torch.inference_mode():
        hidden = decoder.forward(torch.arange(9), torch.arange(9), DenseAttention([9]))
        return decoder.logits(hidden)


def _edit_config(directory: Path, **settings: Any) -> None:
    path = directory / "config.json"
    content = json.loads(path.read_text(encoding="utf-8")) | settings
    path.write_text(json.dumps(content), encoding="utf-8")


def _edit_tensors(directory: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    edit(tensors)
    save_file(tensors, path)


def test_float32_weights_are_views_of_the_file(model_dir: Path) -> None:
    decoder = load_decoder(model_dir)

    assert decoder.dtype == torch.float32
    path = model_dir / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(-4 * 32, 2)  # model.norm.weight is last in the file
        file.write(bytes(4 * 32))
    # The map is private but untouched, so it shows the file as it is now.
    assert _logits(decoder).abs().max().item() == 0


def test_sharded_and_single_file_models_give_the_same_logits(
    model_dir: Path, tmp_path: Path
) -> None:
    sharded = _save_model(tmp_path / "sharded", max_shard_size="20KB")

    assert (sharded / "model.safetensors.index.json").is_file()
    assert torch.equal(_logits(load_decoder(model_dir)), _logits(load_decoder(sharded)))


def test_extra_head_of_a_tied_model_is_ignored_with_a_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tied = _save_model(tmp_path / "tied", tie_word_embeddings=True)
    expected = _logits(load_decoder(tied)).clone()
    _edit_tensors(tied, lambda tensors: tensors.update({"lm_head.weight": torch.ones(50, 32)}))

    with caplog.at_level(logging.WARNING):
        found = _logits(load_decoder(tied))

    assert torch.equal(expected, found)
    assert [True] == ["lm_head.weight" in record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("stored", "expected"), [(torch.float32, torch.float32), (torch.float64, torch.float32)]
)
def test_wide_weights_run_in_float32(
    model_dir: Path, stored: torch.dtype, expected: torch.dtype
) -> None:
    def widen(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({name: tensor.to(stored) for name, tensor in tensors.items()})

    _edit_tensors(model_dir, widen)

    assert load_decoder(model_dir).dtype == expected


# --- ML-013: truncated or odd files --------------------------------------------------------------


def _with_header(content: bytes, edit: Callable[[dict[str, Any]], None]) -> bytes:
    num_bytes = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + num_bytes])
    edit(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + num_bytes :]


def _as_float16(header: dict[str, Any]) -> None:
    header["model.norm.weight"]["dtype"] = "F16"


def _overlap(header: dict[str, Any]) -> None:
    first, second = [name for name in header if name != "__metadata__"][:2]
    header[second]["data_offsets"] = header[first]["data_offsets"]


_DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "last byte cut": lambda content: content[:-1],
    "only 20 bytes": lambda content: content[:20],
    "empty": lambda _: b"",
    "2 extra bytes at the end": lambda content: content + b"\0\0",
    "Git LFS pointer text": lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "header length 10**12": lambda content: (10**12).to_bytes(8, "little") + content[8:],
    "dtype changed to F16": lambda content: _with_header(content, _as_float16),
    "overlapping offsets": lambda content: _with_header(content, _overlap),
}


@pytest.mark.parametrize("damage", _DAMAGE)
def test_damaged_weight_file_is_a_load_error_naming_it(model_dir: Path, damage: str) -> None:
    path = model_dir / "model.safetensors"
    path.write_bytes(_DAMAGE[damage](path.read_bytes()))

    with pytest.raises(EngineError, match=r"model\.safetensors") as caught:
        load_decoder(model_dir)

    assert caught.value.code == "EN122"
    assert ("pointer file" in caught.value.message) == ("pointer" in damage)


# --- ML-017: the index does not fit the files ----------------------------------------------------


@pytest.fixture
def sharded_dir(tmp_path: Path) -> Path:
    return _save_model(tmp_path / "sharded", max_shard_size="20KB")


def _edit_index(directory: Path, edit: Callable[[dict[str, str]], None]) -> None:
    path = directory / "model.safetensors.index.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content["weight_map"])
    path.write_text(json.dumps(content), encoding="utf-8")


def test_missing_shard_is_named(sharded_dir: Path) -> None:
    shard = sorted(sharded_dir.glob("*.safetensors"))[1]
    shard.unlink()

    with pytest.raises(EngineError, match=shard.name) as caught:
        load_decoder(sharded_dir)

    assert caught.value.code == "EN121"


def test_tensor_absent_from_its_shard_is_named(sharded_dir: Path) -> None:
    shard = sorted(sharded_dir.glob("*.safetensors"))[0].name
    _edit_index(sharded_dir, lambda weight_map: weight_map.update({"model.b": shard}))

    with pytest.raises(EngineError, match=r"model\.b") as caught:
        load_decoder(sharded_dir)

    assert caught.value.code == "EN121"


def test_tensor_that_the_index_does_not_list_is_logged(
    sharded_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shard = sorted(sharded_dir.glob("*.safetensors"))[0]
    tensors = load_file(shard)
    save_file(tensors | {"unlisted": torch.zeros(1)}, shard)

    with caplog.at_level(logging.WARNING):
        load_decoder(sharded_dir)

    assert [True] == [shard.name in record.getMessage() for record in caplog.records]


def test_shard_outside_the_model_folder_is_refused(sharded_dir: Path) -> None:
    outside = "../../x.safetensors"
    _edit_index(sharded_dir, lambda weight_map: weight_map.update({"model.b": outside}))

    with pytest.raises(EngineError, match="outside the model folder") as caught:
        load_decoder(sharded_dir)

    assert caught.value.code == "EN121"


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": {"a": 1}}'])
def test_unreadable_index_is_named(sharded_dir: Path, content: str) -> None:
    (sharded_dir / "model.safetensors.index.json").write_text(content, encoding="utf-8")

    with pytest.raises(EngineError, match=r"index\.json") as caught:
        load_decoder(sharded_dir)

    assert caught.value.code == "EN122"


# --- ML-018: the configuration does not fit the tensors ------------------------------------------


@pytest.mark.parametrize(
    ("settings", "key", "numbers"),
    [
        ({"num_hidden_layers": 3}, "num_hidden_layers", ("3", "2")),
        ({"num_hidden_layers": 1}, "num_hidden_layers", ("1", "more")),
        ({"num_key_value_heads": 4}, "num_key_value_heads", ("[32, 32]", "[16, 32]")),
        ({"vocab_size": 60}, "vocab_size", ("[60, 32]", "[50, 32]")),
        ({"hidden_size": 36}, "hidden_size", ("[50, 36]", "[50, 32]")),
        ({"intermediate_size": 50}, "intermediate_size", ("[50, 32]", "[48, 32]")),
        ({"head_dim": 16}, "head_dim", ("[64, 32]", "[32, 32]")),
    ],
)
def test_config_that_does_not_fit_names_key_expected_and_found(
    model_dir: Path, settings: dict[str, Any], key: str, numbers: tuple[str, str]
) -> None:
    _edit_config(model_dir, **settings)

    with pytest.raises(EngineError, match=key) as caught:
        load_decoder(model_dir)

    assert caught.value.code == "EN113"
    assert all(number in caught.value.message for number in numbers)


def test_bias_that_the_config_does_not_know_is_not_dropped(tmp_path: Path) -> None:
    directory = _save_model(tmp_path / "biased", attention_bias=True)
    _edit_config(directory, attention_bias=False)

    with pytest.raises(EngineError, match="bias") as caught:
        load_decoder(directory)

    assert caught.value.code == "EN113"


def test_missing_tensor_is_named(model_dir: Path) -> None:
    _edit_tensors(model_dir, lambda tensors: tensors.__delitem__("model.norm.weight"))

    with pytest.raises(EngineError, match=r"model\.norm\.weight") as caught:
        load_decoder(model_dir)

    assert caught.value.code == "EN123"


def test_integer_weights_are_refused(model_dir: Path) -> None:
    def quantise(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)

    _edit_tensors(model_dir, quantise)

    with pytest.raises(EngineError, match="I8") as caught:
        load_decoder(model_dir)

    assert caught.value.code == "EN112"


def test_pickled_weights_are_refused_unopened(model_dir: Path) -> None:
    (model_dir / "model.safetensors").unlink()
    (model_dir / "pytorch_model.bin").write_bytes(b"not even a pickle")

    with pytest.raises(EngineError, match=r"pytorch_model\.bin") as caught:
        load_decoder(model_dir)

    assert caught.value.code == "EN124"


def test_directory_without_weights_says_so(model_dir: Path) -> None:
    (model_dir / "model.safetensors").unlink()

    with pytest.raises(EngineError, match="no weights") as caught:
        load_decoder(model_dir)

    assert caught.value.code == "EN120"
