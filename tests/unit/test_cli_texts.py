from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.backends.protocol import Usage
from flowforge.cli.exit_codes import ExitCode, exit_code_of, exit_code_of_run
from flowforge.errors import EngineError, InternalError, ToolError, WorkflowError
from flowforge.runtime.events import Accounting, StepFinished
from flowforge.view.texts import accounting_line, finished_text, outputs_text

if TYPE_CHECKING:
    from flowforge.language.program import JsonValue


def test_the_accounting_line_groups_thousands_and_sets_unique_beside_prefilled() -> None:
    line = accounting_line(Accounting(412, 1318, 1904, 412, 97, 1024, 31.24))

    assert (
        "prefilled 412 tokens (412 unique), reused 1,318, generated 1,904, "
        "pages at peak 97 of 1,024, 31.2 s"
    ) == line


def test_the_accounting_line_leaves_out_what_a_backend_cannot_know() -> None:
    assert "prefilled 1 token, reused 0, generated 2, 0.5 s" == accounting_line(
        Accounting(1, 0, 2, None, 0, 0, 0.5)
    )


def test_the_accounting_line_says_how_much_of_it_was_cut() -> None:
    line = accounting_line(Accounting(1, 0, 20, None, 0, 0, 0.5, cut_tokens=8))

    assert "prefilled 1 token, reused 0, generated 20 (8 of them cut), 0.5 s" == line


def test_a_finished_generation_tells_its_tokens_and_its_decoding_rate() -> None:
    usage = Usage(generated_tokens=41, ttft_s=1.0, total_s=5.0)

    assert "done, 41 tokens, 10.0 tok/s" == finished_text(StepFinished("a", "x", "stop", usage))


def test_tokens_that_came_at_once_have_no_rate() -> None:
    usage = Usage(generated_tokens=23, forced_tokens=22, ttft_s=0.5, total_s=0.5001)

    assert "done, 23 tokens" == finished_text(StepFinished("a", "x", "stop", usage))


def test_a_text_that_was_cut_off_says_so() -> None:
    usage = Usage(generated_tokens=1)

    assert "done, 1 token, cut off at max_tokens" == finished_text(
        StepFinished("a", "x", "length", usage)
    )


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ({}, ""),
        ({"report": "text"}, "text\n"),
        ({"report": "text\n"}, "text\n"),
        ({"angles": ["a", "ü"]}, '[\n  "a",\n  "ü"\n]\n'),
        ({"a": "one", "b": None}, "a:\none\n\nb:\nnull\n"),
    ],
)
def test_outputs_are_printed_as_text_or_json(outputs: dict[str, object], text: str) -> None:
    assert text == outputs_text(outputs)  # type: ignore[arg-type] # JSON values, all of them


def test_exit_codes_say_who_must_act() -> None:
    assert ExitCode.ENGINE == exit_code_of(EngineError("EN1", "…"))
    assert ExitCode.INTERNAL == exit_code_of(InternalError("IN1", "…"))
    assert ExitCode.USAGE == exit_code_of(WorkflowError("WF301", "…"))


def test_the_gravest_cause_decides_the_exit_code_of_a_run() -> None:
    author, tool = WorkflowError("WF501", "…"), ToolError("TL1", "…")
    engine, ours = EngineError("EN1", "…"), InternalError("IN1", "…")

    assert ExitCode.RUN_FAILED == exit_code_of_run((author, tool))
    assert ExitCode.ENGINE == exit_code_of_run((author, engine))
    assert ExitCode.INTERNAL == exit_code_of_run((author, engine, ours))


@pytest.mark.parametrize(("items", "text"), [([1], "done, 1 item"), ([], "done, 0 items")])
def test_items_of_a_list_are_counted_in_words_that_fit(items: list[JsonValue], text: str) -> None:
    assert text == finished_text(StepFinished("a", items))
