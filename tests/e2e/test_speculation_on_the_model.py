"""Guesses on the default model: the same tokens, sampled and constrained ones too."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

from flowforge.engine.config import EngineConfig
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.loading import load_core
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest, SequenceId, TokensArrived
from flowforge.engine.text.tokenizer import Tokenizer
from flowforge.errors import EngineError
from flowforge.grammars import compile_json_schema
from flowforge.grammars.vocabulary import Vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.engine.constraint import TokenConstraint
    from flowforge.engine.core import EngineCore
    from flowforge.engine.sequence import Update

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]

PROMPT = "one two three four five, one two three four five, one two three four"
SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {"enum": ["a lamp that shines", "a lamp that does not"]},
    "minItems": 4,
    "maxItems": 4,
}


class Tokens(list[int]):
    """A sink that keeps the tokens."""

    def put(self, update: Update) -> None:
        """See `UpdateSink`."""
        if isinstance(update, TokensArrived):
            self.extend(update.token_ids)


def core_of(directory: Path, tokenizer: Tokenizer, **settings: Any) -> EngineCore:
    config = EngineConfig(num_pages=64, **settings)
    return load_core(directory, vocab_size=tokenizer.vocab_size, config=config)


def say(core: EngineCore, prompt: list[int], request: GenerationRequest) -> list[int]:
    said, this = Tokens(), SequenceId(time.monotonic_ns())
    core.open(this, Namespace("", ""))
    core.append(this, prompt)
    core.generate(this, request, said)
    while core.has_work:
        core.step()
    core.close(this)
    return said


def test_what_is_said_does_not_depend_on_guesses(default_model_dir: Path) -> None:
    tokenizer = Tokenizer.from_directory(default_model_dir)
    vocabulary = Vocabulary(
        tokenizer.tokenizer_json, eos_ids=tokenizer.eos_ids, vocab_size=tokenizer.vocab_size
    )
    prompt = tokenizer.encode(PROMPT)
    plain = core_of(default_model_dir, tokenizer, speculation="off")
    guessing = core_of(default_model_dir, tokenizer)

    def constraint() -> TokenConstraint:
        return compile_json_schema(SCHEMA, vocabulary).start()

    for temperature in (0.0, 0.7):
        for is_constrained in (False, True):
            params = SamplingParams(max_tokens=24, temperature=temperature, seed=5)
            one, other = (
                say(
                    core,
                    prompt,
                    GenerationRequest(params, constraint() if is_constrained else None),
                )
                for core in (plain, guessing)
            )
            assert one == other

    counted = guessing.statistics().speculation
    assert 0 < counted.accepted
    assert 0 == plain.statistics().speculation.drafted


def test_a_model_of_the_same_tokens_guesses(default_model_dir: Path) -> None:
    tokenizer = Tokenizer.from_directory(default_model_dir)
    request = GenerationRequest(SamplingParams(max_tokens=12, temperature=0))
    prompt = tokenizer.encode("The sea is")
    plain = core_of(default_model_dir, tokenizer, speculation="off")
    guessing = core_of(default_model_dir, tokenizer, draft_model=str(default_model_dir))

    assert say(plain, prompt, request) == say(guessing, prompt, request)
    counted = guessing.statistics()
    # It is the same model, so it guesses right.
    assert counted.speculation.accepted >= 0.9 * counted.speculation.drafted > 0
    assert counted.num_steps < 8


def test_a_model_of_other_tokens_is_refused(default_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    shutil.copy(default_model_dir / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    tokenizer = Tokenizer.from_directory(default_model_dir)

    with pytest.raises(EngineError, match="other tokens") as refused:
        core_of(default_model_dir, tokenizer, draft_model=str(tmp_path))

    assert "EN230" == refused.value.code
