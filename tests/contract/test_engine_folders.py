"""Folders that hold no model: told before anything of them is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.backends.engine import open_engine_backend
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path


async def opening_fails(folder: Path) -> EngineError:
    with pytest.raises(EngineError) as caught:
        async with open_engine_backend(folder):
            pass
    return caught.value


async def test_a_folder_that_is_no_model_lacks_its_config(tmp_path: Path) -> None:
    error = await opening_fails(tmp_path)

    assert ("EN110", f"no config.json in {str(tmp_path)!r}") == (error.code, error.message)


async def test_a_broken_config_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{", encoding="utf-8")

    error = await opening_fails(tmp_path)

    assert "EN111" == error.code
    assert "config.json' as JSON: " in error.message
