"""Schemas from the world, each with instances: valid ones pass token by token, others do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from json_schema_suite import compile_without_model, ordered
from vocabularies import default_tokenizer, default_vocabulary

from flowforge.errors import WorkflowError
from flowforge.grammars import JsonOptions, check_schema, compile_json_schema, validate_json

if TYPE_CHECKING:
    from flowforge.engine.text.tokenizer import Tokenizer
    from flowforge.grammars import CompiledConstraint, Vocabulary

pytestmark = pytest.mark.model

CASES = sorted((Path(__file__).parent.parent / "cases" / "json_schemas").glob("*.json"))
# Refused, with words of the refusal; all others compile as they stand.
REFUSED = {
    "JsonSchemaStore__chrome-manifest": "'uniqueItems'",
    "JsonSchemaStore__minecraft-biome": "'uniqueItems'",
    "JsonSchemaStore__statamic.blueprint.schema": "'uniqueItems'",
    "JsonSchemaStore__tson": "schema too large",
    "JsonSchemaStore__utam-page-object": "circular references with sibling keys",
}
OPEN = JsonOptions(closes_objects=False)
RELAX = JsonOptions(on_unsupported="relax", closes_objects=False)


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path) -> Tokenizer:
    return default_tokenizer(default_model_dir)


@pytest.fixture(scope="module")
def vocabulary(default_model_dir: Path) -> Vocabulary:
    return default_vocabulary(default_model_dir)


def read(path: Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return case


def passes(compiled: CompiledConstraint, tokenizer: Tokenizer, text: str) -> bool:
    """Whether the mask allows a text's tokens one after another, and then the end."""
    state = compiled.start()
    mask = np.zeros(compiled.vocabulary.num_mask_words, dtype=np.uint32)
    for token_id in tokenizer.encode(text):
        state.fill_mask(mask)
        if not mask[token_id // 32] >> token_id % 32 & 1:
            return False
        state.advance(token_id)
    return state.is_accepting


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_schema_takes_what_is_valid_and_nothing_else(
    path: Path, tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    case = read(path)
    options = RELAX if path.stem in REFUSED else OPEN
    compiled = compile_json_schema(case["schema"], vocabulary, options)
    matcher = compile_without_model(case["schema"], options)
    assert matcher is not None

    for given in case["valid"]:
        instance = ordered(given, matcher)
        text = json.dumps(instance, ensure_ascii=False, separators=(",", ":"))
        assert passes(compiled, tokenizer, text)
        assert instance == validate_json(text, case["schema"])
    for invalid in case["invalid"]:
        text = json.dumps(invalid["instance"], ensure_ascii=False, separators=(",", ":"))
        if options is OPEN:
            assert not passes(compiled, tokenizer, text)
        with pytest.raises(WorkflowError):
            validate_json(text, case["schema"])


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_is_refused_hears_what_is_in_the_way(name: str) -> None:
    (path,) = (path for path in CASES if path.stem == name)

    problems = check_schema(read(path)["schema"])
    errors = [problem for problem in problems if problem.severity == "error"]

    assert any(REFUSED[name] in problem.message for problem in errors)
    assert all("relax" in (problem.help or "") for problem in errors)
