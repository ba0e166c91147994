"""tests/CASES.md: every case of the areas that it lists, and tests that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

TESTS = Path(__file__).parents[1]
TABLE = (TESTS / "CASES.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| ([A-Z]{2,3}-\d{3}) \| [^|]+ \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


AREAS = ("workflow", "reliability", "openai_api", "tokens", "kv_cache", "model_loading")


@pytest.mark.parametrize("area", AREAS)
def test_a_table_has_every_case_of_its_area_once_and_in_its_order(
    cases: Callable[[str], list[dict[str, Any]]], area: str
) -> None:
    table = TABLE.partition(f" (`{area}`)")[2].partition("## ")[0]

    assert [case["id"] for case in cases(area)] == [row[1] for row in ROW.finditer(table)]


def test_every_case_has_a_test() -> None:
    rows = {row[1]: row[2] for row in ROW.finditer(TABLE)}

    assert {} == {case: reason for case, reason in rows.items() if not TEST.search(reason)}


def test_every_test_of_the_table_is_there() -> None:
    sources = {file.name: file.read_text(encoding="utf-8") for file in TESTS.rglob("test_*.py")}

    named = TEST.findall(TABLE)

    assert [] == [
        f"{file}::{test}"
        for file, test in named
        if not re.search(
            rf"^((async )?def {test}\(|{test} = )", sources.get(file, ""), re.MULTILINE
        )
    ]
