"""Schemas, patterns and outputs made to hang or to break: a clear error, or bounded work."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from vocabularies import default_vocabulary

from flowforge.errors import WorkflowError
from flowforge.grammars import (
    JsonOptions,
    check_schema,
    compile_json_schema,
    compile_regex,
    matches_regex,
    validate_json,
)
from flowforge.grammars.compilation import (
    CompileLimits,
    GrammarRefused,
    build_matcher,
    byte_tokenizer,
    compile_mask_grammar,
    within,
)

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.grammars import Vocabulary

pytestmark = [pytest.mark.model, pytest.mark.timeout(60)]


def doubling(depth: int, combine: str) -> Any:
    """A schema of a few lines that is 2^depth schemas when its references are followed."""
    inner = {
        f"a{idx}": {combine: [{"$ref": f"#/$defs/a{idx + 1}"}, {"$ref": f"#/$defs/a{idx + 1}"}]}
        for idx in range(depth)
    }
    last: dict[str, Any] = {"properties": {"x": {"type": "integer"}}}
    return {"$ref": "#/$defs/a0", "$defs": {**inner, f"a{depth}": last}}


BOMBS: dict[str, Any] = {
    "allOf that doubles": doubling(50, "allOf"),
    "anyOf that doubles": doubling(50, "anyOf"),
    "oneOf that doubles": doubling(50, "oneOf"),
    "not that doubles": {"not": doubling(50, "allOf"), "$defs": doubling(50, "allOf")["$defs"]},
    "a product of choices": {
        "allOf": [
            {"anyOf": [{"properties": {f"p{i}{j}": {"const": j}}} for j in range(6)]}
            for i in range(12)
        ]
    },
    "dependencies of all on all": {
        "properties": {f"p{i}": {} for i in range(200)},
        "dependentRequired": {f"p{i}": [f"p{j}" for j in range(200)] for i in range(200)},
    },
    "a reference to itself": {"$ref": "#"},
    "branches that refer to the whole": {"anyOf": [{"$ref": "#"}, {"not": {"$ref": "#"}}]},
    "many properties": {"properties": {f"p{i}": {"type": "string"} for i in range(2_000)}},
    "a million items": {"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000},
    "a long text": {"type": "string", "maxLength": 10**9, "pattern": "^(a|b)*c{1,10000}$"},
    "all orders": {
        "type": "array",
        "items": {"enum": list(range(300))},
        "uniqueItems": True,
    },
    "branches by the hundred": {
        "oneOf": [{"properties": {f"p{i}": {"minimum": i}}} for i in range(300)]
    },
}


@pytest.fixture(scope="module")
def vocabulary(default_model_dir: Path) -> Vocabulary:
    return default_vocabulary(default_model_dir)


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("policy", ["error", "relax"])
def test_a_schema_bomb_is_compiled_or_refused_in_words(
    vocabulary: Vocabulary, name: str, policy: Any
) -> None:
    options = JsonOptions(on_unsupported=policy)

    problems = check_schema(BOMBS[name], options)

    if any(problem.severity == "error" for problem in problems):
        with pytest.raises(WorkflowError) as caught:
            compile_json_schema(BOMBS[name], vocabulary, options)
        assert "WF411" == caught.value.code
    else:
        state = compile_json_schema(BOMBS[name], vocabulary, options).start()
        state.fill_mask(np.zeros(vocabulary.num_mask_words, dtype=np.uint32))


def test_an_enum_of_a_megabyte_is_refused_by_its_size_and_a_smaller_one_works(
    vocabulary: Vocabulary,
) -> None:
    texts = [f"value-{idx:06}" for idx in range(50_000)]

    compiled = compile_json_schema({"enum": texts}, vocabulary)
    state = compiled.start()
    state.fill_mask(np.zeros(vocabulary.num_mask_words, dtype=np.uint32))

    assert len(json.dumps(texts)) > 700_000
    with pytest.raises(WorkflowError, match="expected at most 1,000,000"):
        compile_json_schema(
            {"enum": texts + [f"more-{idx:06}" for idx in range(50_000)]}, vocabulary
        )


@pytest.mark.parametrize(
    "pattern",
    [
        "(a|aa)+b",
        "[ab]*a[ab]{200}",
        "(x.{0,1000}){0,1000}",
        "((a{0,99}){0,99}){0,99}b",
        "(.*a){20}.*",
    ],
)
def test_a_pattern_that_blows_up_elsewhere_is_bounded(vocabulary: Vocabulary, pattern: str) -> None:
    """Each mask costs little, or the output ends in words; nothing else can come of it."""
    state = compile_regex(pattern, vocabulary).start()
    words = np.zeros(vocabulary.num_mask_words, dtype=np.uint32)

    try:
        for _ in range(60):
            state.fill_mask(words)
            allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
            state.advance(int(allowed[-1]))
    except WorkflowError as error:
        assert "WF418" == error.code


def test_a_regex_that_backtracks_elsewhere_is_matched_in_linear_time() -> None:
    assert not matches_regex("(a|aa)+b", "a" * 5_000)


def test_the_judge_of_patterns_takes_linear_time() -> None:
    schema = {"type": "string", "pattern": "^(a|aa)+$"}

    with pytest.raises(WorkflowError, match="breaks 'pattern'"):
        validate_json(json.dumps("a" * 5_000 + "b"), schema)


def test_an_output_of_twenty_thousand_brackets_is_written_and_judged(
    vocabulary: Vocabulary,
) -> None:
    schema: Any = {
        "$ref": "#/$defs/l",
        "$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}}},
    }
    state = compile_json_schema(schema, vocabulary).start()
    words = np.zeros(vocabulary.num_mask_words, dtype=np.uint32)
    (bracket,) = vocabulary.backend.tokenize_str("[")

    for _ in range(20_000):
        state.advance(bracket)
    state.fill_mask(words)
    fork = state.fork()

    assert not fork.is_accepting
    with pytest.raises(WorkflowError) as caught:
        validate_json("[" * 20_000 + "]" * 20_000, schema)
    assert "WF412" == caught.value.code
    assert "nested too deep" in caught.value.message


def test_a_grammar_that_reads_everything_in_many_ways_ends_in_words(vocabulary: Vocabulary) -> None:
    limits = CompileLimits(step_items=200)
    compiled = compile_mask_grammar('start: e\ne: e e | "a" | e "a" e |', vocabulary, limits)
    state = compiled.start()
    words = np.zeros(vocabulary.num_mask_words, dtype=np.uint32)
    (token_id,) = vocabulary.backend.tokenize_str("a")

    with pytest.raises(WorkflowError) as caught:
        for _ in range(500):
            state.fill_mask(words)
            state.advance(token_id)

    assert "WF418" == caught.value.code


def test_a_rule_of_more_ways_than_a_step_can_read_ends_in_words(vocabulary: Vocabulary) -> None:
    ways = " | ".join(f'"c{idx}"' for idx in range(5_000))
    state = compile_mask_grammar(f"start: {ways}", vocabulary).start()
    (token_id,) = vocabulary.backend.tokenize_str("c")

    with pytest.raises(WorkflowError) as caught:
        state.advance(token_id)

    assert "WF418" == caught.value.code


def test_compiling_that_takes_too_long_is_given_up() -> None:
    may_end = threading.Event()

    with pytest.raises(GrammarRefused, match=r"longer than 0\.05 s"):
        within(0.05, lambda: may_end.wait(30))

    may_end.set()


def test_a_grammar_past_its_size_is_refused() -> None:
    with pytest.raises(GrammarRefused, match="expected at most 10"):
        build_matcher(byte_tokenizer(), "x" * 11, CompileLimits(max_chars=10))
