"""The decoder against transformers, on small random models of every family and setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from decoder_runs import dense_logits, greedy_ids, paged_logits
from family_models import DYNAMIC, FAMILIES, LONGROPE, MODELS, family_model, sized_model

from flowforge.engine.models.config import read_model_config
from flowforge.engine.models.weights import load_decoder

if TYPE_CHECKING:
    from pathlib import Path

# float32 sums in another order, over three layers and rows of at most 96.
TOLERANCE = 1e-4
# More than two windows and more than three pages of 16.
TEXT_LEN = 52


def _text(length: int = TEXT_LEN) -> torch.Tensor:
    return torch.randint(0, 120, (length,), generator=torch.Generator().manual_seed(1))


def _reference_logits(model: Any, token_ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return cast("torch.Tensor", model(token_ids[None]).logits[0])


def _distance(left: torch.Tensor, right: torch.Tensor) -> float:
    return (left - right).abs().max().item()


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = family_model(name)
    model.save_pretrained(tmp_path)
    expected = _reference_logits(model, _text())

    decoder = load_decoder(tmp_path, dtype=torch.float32)

    assert expected.std() > 0.1  # logits with something to tell apart
    assert _distance(expected, dense_logits(decoder, _text())) < TOLERANCE
    for chunk_len in (1, 7, 64):
        assert _distance(expected, paged_logits(decoder, _text(), chunk_len)) < TOLERANCE


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_ids_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = family_model(name)
    model.save_pretrained(tmp_path)
    prompt = _text(23)
    model.generation_config.eos_token_id = None
    expected = model.generate(
        prompt[None],
        attention_mask=torch.ones(1, len(prompt)),
        do_sample=False,
        max_new_tokens=16,
        eos_token_id=None,
    )

    found = greedy_ids(load_decoder(tmp_path, dtype=torch.float32), prompt, 16)

    assert expected[0, len(prompt) :].tolist() == found


@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith("window")])
def test_a_window_changes_only_what_is_behind_it(name: str, tmp_path: Path) -> None:
    family_model(name).save_pretrained(tmp_path / "windowed")
    family, settings = MODELS[name]
    window = settings["sliding_window"]
    decoder = load_decoder(tmp_path / "windowed", dtype=torch.float32)
    near, far = _text(), _text()
    far[0] = (far[0] + 1) % 120

    difference = (dense_logits(decoder, near) - dense_logits(decoder, far)).abs().amax(-1)

    assert difference[window - 1] > TOLERANCE  # the first token is the last that is seen
    if family in ("Mistral", "Phi3", "Mixtral", "Qwen3Moe"):  # where no layer sees everything
        hidden_behind = 3 * (window - 1) + 1
        assert difference[hidden_behind:].numel() == 0 or difference[hidden_behind:].max() == 0


def test_longrope_loaded_for_long_texts_equals_transformers_on_one(tmp_path: Path) -> None:
    settings = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}
    model = sized_model("Phi3", settings)
    model.save_pretrained(tmp_path)
    assert read_model_config(tmp_path).max_context_len == 32
    config = read_model_config(tmp_path, context_len=TEXT_LEN)

    decoder = load_decoder(tmp_path, config, dtype=torch.float32)

    expected = _reference_logits(model, _text())
    assert _distance(expected, paged_logits(decoder, _text(), 7)) < TOLERANCE


def test_dynamic_rope_equals_transformers_on_a_text_of_the_length_it_is_loaded_for(
    tmp_path: Path,
) -> None:
    model = sized_model("Llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 32})
    model.save_pretrained(tmp_path)
    config = read_model_config(tmp_path, context_len=TEXT_LEN)

    decoder = load_decoder(tmp_path, config, dtype=torch.float32)

    expected = _reference_logits(model, _text())
    assert _distance(expected, paged_logits(decoder, _text(), 7)) < TOLERANCE


@pytest.mark.parametrize("name", ["llama, grouped heads", "mixtral", "gemma2"])
def test_sequences_of_one_step_do_not_see_each_other(name: str, tmp_path: Path) -> None:
    family_model(name).save_pretrained(tmp_path)
    decoder = load_decoder(tmp_path, dtype=torch.float32)
    first, second = torch.arange(5), torch.arange(30, 37)
    alone = torch.cat([dense_logits(decoder, first), dense_logits(decoder, second)])

    together = dense_logits(decoder, first, second)

    assert _distance(alone, together) < TOLERANCE


@pytest.mark.parametrize("name", ["llama, grouped heads", "mixtral", "gemma3"])
def test_bfloat16_weights_give_float32_logits_near_those_of_float32(
    name: str, tmp_path: Path
) -> None:
    model = family_model(name)
    model.save_pretrained(tmp_path)
    exact = _reference_logits(model, _text(20))

    found = dense_logits(load_decoder(tmp_path, dtype=torch.bfloat16), _text(20))

    assert found.dtype == torch.float32
    # bfloat16 keeps 8 bits: a few percent of the logits' spread.
    assert _distance(exact, found) < 0.1 * exact.abs().max().item()


def test_repr_names_the_model_and_no_tensor(tmp_path: Path) -> None:
    family_model("qwen3").save_pretrained(tmp_path)

    shown = repr(load_decoder(tmp_path, dtype=torch.float32))

    assert shown == "Decoder(qwen3, 3 layers × 48, torch.float32, cpu)"
