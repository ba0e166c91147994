"""The official JSON Schema test suite, run through masks and the judge; prints the table of docs.

`PYTHONPATH=tests/support python -m json_schema_suite` prints it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowforge.errors import WorkflowError
from flowforge.grammars import JsonOptions, check_schema, validate_json
from flowforge.grammars.compilation import (
    GrammarRefused,
    build_matcher,
    byte_tokenizer,
    matches,
)
from flowforge.grammars.json_grammar import json_grammars

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llguidance import LLMatcher

SUITE_DIR = Path(__file__).parent.parent / "cases" / "json_schema_suite"
DRAFTS = {
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
ERROR = JsonOptions(on_unsupported="error", closes_objects=False)
RELAX = JsonOptions(on_unsupported="relax", closes_objects=False)

_HEADS = (
    "keyword",
    "schemas",
    "`error`: refused",
    "wrongly accepted",
    "wrongly rejected",
    "`relax`: refused",
    "judged only",
    "wrongly accepted, mask → judged",
    "wrongly rejected",
)


@dataclass(slots=True)
class KeywordCounts:
    """What became of one file of the suite under one policy.

    groups: schemas. refused: of those, not used at all. relaxed: of those, used with keywords left
    to the judge. tests: instances of the used ones. false_accepts, judged_false_accepts: invalid
    ones that the mask allowed, and that the judge let pass too. false_rejects: valid ones that the
    mask or the judge refused.
    """

    groups: int = 0
    refused: int = 0
    relaxed: int = 0
    tests: int = 0
    false_accepts: int = 0
    judged_false_accepts: int = 0
    false_rejects: int = 0


def groups_of(draft: str) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    """Every required group: the name of its file, its schema, its tests."""
    for path in sorted((SUITE_DIR / draft).glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            schema = group["schema"]
            if isinstance(schema, dict):
                schema = {"$schema": DRAFTS[draft], **schema}
            yield path.stem, schema, group["tests"]


def count(draft: str, options: JsonOptions) -> dict[str, KeywordCounts]:
    """The counts of each file of a draft."""
    counts: dict[str, KeywordCounts] = {}
    for name, schema, tests in groups_of(draft):
        of_file = counts.setdefault(name, KeywordCounts())
        of_file.groups += 1
        matcher = compile_without_model(schema, options)
        if matcher is None:
            of_file.refused += 1
            continue
        problems = check_schema(schema, options)
        of_file.relaxed += any("judges only" in problem.message for problem in problems)
        for test in tests:
            text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
            is_masked = matches(matcher.deep_copy(), text)
            is_accepted = is_masked and is_valid(text, schema)
            of_file.tests += 1
            of_file.false_accepts += is_masked and not test["valid"]
            of_file.judged_false_accepts += is_accepted and not test["valid"]
            of_file.false_rejects += test["valid"] and not is_accepted
    return counts


def compile_without_model(schema: Any, options: JsonOptions) -> LLMatcher | None:
    """A matcher of bytes, or None where the schema is refused."""
    if any(problem.severity == "error" for problem in check_schema(schema, options)):
        return None
    for grammar in json_grammars(schema, options):
        try:
            return build_matcher(byte_tokenizer(), grammar.text)
        except GrammarRefused:
            continue
    return None


def ordered(value: Any, matcher: LLMatcher) -> Any:
    """A value with its keys in the order in which a matcher of bytes, at its start, takes them.

    The value as it is where it takes it in no order.
    """
    written = _write(value, matcher.deep_copy())
    return value if written is None else written[0]


def _write(value: Any, matcher: LLMatcher) -> tuple[Any, LLMatcher] | None:
    if isinstance(value, dict):
        return _write_keys(value, {}, matcher) if _take(matcher, "{") else None
    if not isinstance(value, list):
        text = json.dumps(value, ensure_ascii=False)
        return (value, matcher) if _take(matcher, text) else None
    items: list[Any] = []
    is_open = _take(matcher, "[")
    for item in value:
        written = _write(item, matcher) if is_open and (not items or _take(matcher, ",")) else None
        if written is None:
            return None
        items.append(written[0])
        matcher = written[1]
    return (items, matcher) if _take(matcher, "]") else None


def _write_keys(
    left: dict[str, Any], done: dict[str, Any], matcher: LLMatcher
) -> tuple[Any, LLMatcher] | None:
    if not left:
        return (done, matcher) if _take(matcher, "}") else None
    for key, value in left.items():
        fork = matcher.deep_copy()
        name = ("," if done else "") + json.dumps(key, ensure_ascii=False) + ":"
        written = _write(value, fork) if _take(fork, name) else None
        if written is not None:
            rest = {other: inner for other, inner in left.items() if other != key}
            whole = _write_keys(rest, {**done, key: written[0]}, written[1])
            if whole is not None:
                return whole
    return None


def _take(matcher: LLMatcher, text: str) -> bool:
    token_ids = list(text.encode())
    if matcher.validate_tokens(token_ids) < len(token_ids):
        return False
    return bool(matcher.consume_tokens(token_ids))


def is_valid(text: str, schema: Any) -> bool:
    """Whether the judge lets a text pass."""
    try:
        validate_json(text, schema)
    except WorkflowError:
        return False
    return True


def table(draft: str) -> list[str]:
    """The lines of a Markdown table of one draft."""
    strict, relaxed = count(draft, ERROR), count(draft, RELAX)
    lines = [
        f"| {' | '.join(_HEADS)} |",
        "|---" * len(_HEADS) + "|",
    ]
    lines += [_row(f"`{name}`", strict[name], relaxed[name]) for name in strict]
    lines.append(_row("**all**", _sum(strict), _sum(relaxed)))
    return lines


def _row(name: str, strict: KeywordCounts, relaxed: KeywordCounts) -> str:
    cells = (
        name,
        strict.groups,
        strict.refused,
        strict.judged_false_accepts,
        strict.false_rejects,
        relaxed.refused,
        relaxed.relaxed,
        f"{relaxed.false_accepts} → {relaxed.judged_false_accepts}",
        relaxed.false_rejects,
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def _sum(counts: dict[str, KeywordCounts]) -> KeywordCounts:
    whole = KeywordCounts()
    for one in counts.values():
        for field in KeywordCounts.__slots__:
            setattr(whole, field, getattr(whole, field) + getattr(one, field))
    return whole


if __name__ == "__main__":
    for draft in DRAFTS:
        print(f"### {draft}\n")  # noqa: T201 - a script's output
        print("\n".join(table(draft)) + "\n")  # noqa: T201 - a script's output
