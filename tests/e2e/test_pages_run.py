"""What the pages say is what happens: each is walked as its reader walks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pages import ROOT, name_of, walk

if TYPE_CHECKING:
    from pathlib import Path

ON_THE_MODEL = ["docs/start.md"]
"""Pages whose commands run on the default model."""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a page are listed alone."""
    monkeypatch.setenv("FLOWFORGE_JOURNAL", str(tmp_path / "state" / "runs.db"))


@pytest.mark.model
@pytest.mark.usefixtures("default_model_dir")
@pytest.mark.parametrize("page", ON_THE_MODEL)
def test_a_page_is_walked_on_the_default_model(page: str, tmp_path: Path) -> None:
    walk(ROOT / page, tmp_path)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "tutorials").glob("*.md")), ids=name_of)
def test_a_tutorial_is_walked_on_given_answers(page: Path, tmp_path: Path) -> None:
    walk(page, tmp_path)
