"""docs/engine.md: its code runs, and it tells of every field of the statistics."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from flowforge.engine.statistics import EngineStatistics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PAGE = Path(__file__).parents[2] / "docs" / "engine.md"


@pytest.mark.model
@pytest.mark.usefixtures("default_model_dir")
async def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    names: dict[str, object] = {"__name__": "engine_page"}

    exec(compile(code, str(PAGE), "exec"), names)
    await cast("Callable[[], Awaitable[None]]", names["main"])()

    *text, hit_rate = capsys.readouterr().out.strip().splitlines()
    assert text
    assert float(hit_rate) > 0


def test_every_field_of_the_statistics_is_told() -> None:
    told = set(re.findall(r"`(\w+)`", PAGE.read_text("utf-8")))

    assert {field.name for field in fields(EngineStatistics)} <= told
