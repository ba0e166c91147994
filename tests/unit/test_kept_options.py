"""What a run is gone on with is what it was begun with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from flowforge.cli.journals import kept_options, options_of
from flowforge.engine.config import EngineConfig
from flowforge.engine.policy import SchedulingPolicy
from flowforge.journal.records import RunBegun, RunRow

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue


def row_with(options: dict[str, JsonValue]) -> RunRow:
    kept = json.loads(json.dumps(options))
    begun = RunBegun("w", "w.yaml", {}, 1, {}, options=kept, created_at=0.0)
    return RunRow("r", begun, "failed", ended_at=None, num_resumes=0, outcome=None)


def test_a_run_is_gone_on_with_under_the_engine_it_was_begun_with() -> None:
    config = EngineConfig(num_pages=7, policy=SchedulingPolicy(eviction="lru"))
    row = row_with(kept_options("engine", None, {}, config))

    assert config == options_of(row, answers={}).engine


def test_a_run_of_before_there_were_policies_is_gone_on_with() -> None:
    options = kept_options("engine", None, {}, EngineConfig(num_pages=7))
    assert isinstance(options["engine"], dict)
    del options["engine"]["policy"]

    assert EngineConfig(num_pages=7) == options_of(row_with(options), answers={}).engine
