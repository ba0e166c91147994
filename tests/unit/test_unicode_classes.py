r"""Classes of Unicode in a regex, as `\p{L}`: masks know them, and Python's `re` does not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from flowforge.grammars import check_schema
from flowforge.grammars.json_patterns import finds
from flowforge.grammars.text_forms import matches_regex, why_refused
from flowforge.language.answer_bounds import width_of_regex
from flowforge.language.loader import load_text
from flowforge.patterns import for_python
from flowforge.planning.answer_size import bytes_of_regex
from flowforge.runtime.checking import load_file

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "flowforge: 1\nname: t\nsteps:\n"
CLASSES = [
    (r"\p{L}+", "Ünïκ", "a1"),
    (r"\pL\pN", "é7", "7é"),
    (r"\P{Lu}", "ä", "Ä"),
    (r"[\p{Greek}_]{2}", "α_", "a_"),
    (r"[^\p{L}]", "1", "é"),
    (r"\p{Script=Cyrillic}", "ж", "z"),
]


def checked(regex: str, tmp_path: Path, options: str = ", max_tokens: 9") -> list[tuple[str, str]]:
    path = tmp_path / "t.yaml"
    step = (
        f"  a: {{ user: hi, gen: {{ regex: '{regex}'{options} }} }}\noutputs: {{ a: '${{ a }}' }}\n"
    )
    path.write_text(HEAD + step, encoding="utf-8")
    return [(one.code, one.message) for one in load_file(path).diagnostics]


@pytest.mark.parametrize(("regex", "fits", "fails"), CLASSES)
def test_check_mask_and_judge_agree_on_a_class(
    regex: str, fits: str, fails: str, tmp_path: Path
) -> None:
    assert [] == checked(regex, tmp_path)
    assert (True, False) == (matches_regex(regex, fits), matches_regex(regex, fails))
    assert [] == check_schema({"type": "string", "pattern": f"^{regex}$"})
    assert (True, False) == (finds(f"^{regex}$", fits), finds(f"^{regex}$", fails))


@pytest.mark.parametrize(("regex", "fits", "fails"), CLASSES)
def test_without_a_mask_to_ask_a_class_is_no_mistake(regex: str, fits: str, fails: str) -> None:
    step = f"  a: {{ user: hi, gen: {{ regex: '{regex}', max_tokens: 9 }} }}\n"

    assert "WF134" not in [one.code for one in load_text(HEAD + step).diagnostics]


@pytest.mark.parametrize("regex", [r"\p{Lettre}", r"\p{L", r"a\p", r"\<a", "a{2", r"\q"])
def test_what_the_mask_refuses_is_told_at_check(regex: str, tmp_path: Path) -> None:
    refused = why_refused(regex)
    assert refused is not None

    assert [("WF134", f"'regex' cannot be used: {refused.reason}")] == checked(regex, tmp_path)


def test_a_class_that_nobody_knows_is_told_with_those_that_there_are() -> None:
    refused = why_refused(r"a\p{Lettre}")

    assert refused is not None
    assert r"'\\p{Lettre}' at position 1 is no class of Unicode" == refused.reason
    assert r"\p{Lu}" in refused.help


def test_a_class_that_nobody_knows_is_told_of_schemas_alike() -> None:
    (problem,) = check_schema({"type": "string", "pattern": r"^\p{^L}$"})

    assert r"'\\p{^L}' at position 1 is no class of Unicode" in problem.message
    assert r"\p{Lu}" in (problem.help or "")


@pytest.mark.parametrize(
    ("regex", "read"),
    [(r"\p{L}x", r"\wx"), (r"[^\pN\\]", r"[^\w\\]"), (r"\\p{L}", r"\\p{L}"), (r"\\\p{L}", r"\\\w")],
)
def test_python_reads_a_word_character_for_a_class(regex: str, read: str) -> None:
    re.compile(read)

    assert read == for_python(regex)


def test_the_length_of_what_has_classes_is_known(tmp_path: Path) -> None:
    assert (2, 5) == width_of_regex(r"\p{Lu}\p{L}{1,4}")
    assert (2, None) == width_of_regex(r"\p{Lu}\p{L}+")
    # A letter has up to four bytes, so more than one is planned for each.
    assert bytes_of_regex(r"\p{L}{4}").most == bytes_of_regex(r"\w{4}").most
    assert ["WF157"] == [code for code, _ in checked(r"\p{L}+", tmp_path, options="")]
