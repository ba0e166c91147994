"""What the pages say is what happens: each is walked as its reader walks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pages import DOCS, ROOT, RUN_BY_TESTS, blocks_of, is_made, name_of, walk

if TYPE_CHECKING:
    from pathlib import Path

ON_THE_MODEL = ["README.md", "docs/examples.md", "docs/start.md", "docs/tutorials/serving.md"]
"""Pages whose commands run on the default model."""


def is_walked_on_answers(page: Path) -> bool:
    """Whether there is something to walk, and no model is needed for it."""
    if is_made(page) or name_of(page) in {*ON_THE_MODEL, *RUN_BY_TESTS}:
        return False
    blocks = [block for block in blocks_of(page) if block.language != "mermaid"]
    return any(block.mark != "not run" for block in blocks)


ON_ANSWERS = [page for page in DOCS if is_walked_on_answers(page)]


# Many commands, each a process: what is a second here may be ten where others work.
pytestmark = pytest.mark.timeout(400, func_only=True)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a page are listed alone."""
    monkeypatch.setenv("FLOWFORGE_JOURNAL", str(tmp_path / "state" / "runs.db"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the reader stands: nothing is there but the examples."""
    folder = tmp_path / "reader"
    folder.mkdir()
    (folder / "workflows").symlink_to(ROOT / "workflows")
    return folder


@pytest.mark.model
@pytest.mark.usefixtures("default_model_dir")
@pytest.mark.parametrize("page", ON_THE_MODEL)
def test_a_page_is_walked_on_the_default_model(page: str, folder: Path) -> None:
    walk(ROOT / page, folder)


@pytest.mark.parametrize("page", ON_ANSWERS, ids=name_of)
def test_a_page_is_walked_on_given_answers(page: Path, folder: Path) -> None:
    walk(page, folder)
