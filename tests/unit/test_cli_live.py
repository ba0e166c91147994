from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from flowforge.backends.protocol import Usage
from flowforge.cli.live import LiveProgress
from flowforge.runtime.events import Event, Fact, StepFailed, StepFinished, StepStarted, StepText


def view(*facts: Fact, width: int = 80, height: int = 24) -> tuple[LiveProgress, Console]:
    console = Console(
        file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None
    )
    progress = LiveProgress(console)
    for seq, fact in enumerate(facts):
        progress.show(Event(seq, 0.0, fact))
    return progress, console


def lines(progress: LiveProgress, console: Console) -> list[str]:
    with console.capture() as capture:
        console.print(progress.render())
    return capture.get().rstrip("\n").split("\n")


def test_a_running_step_shows_its_tokens_its_rate_and_its_latest_words() -> None:
    progress, console = view(StepStarted("a", "gen"), StepStarted("b", "gen"))
    progress.show(Event(2, 0.0, StepText("a", "the ", 1)))
    progress.show(Event(3, 2.0, StepText("a", "latest words", 4)))

    shown = lines(progress, console)

    assert "a      5 tok    2.0 tok/s  the latest words" == shown[0]
    assert "b  reading the prompt" == shown[1]
    assert "  0 of 2 steps · 00:02" == shown[2]


def test_time_goes_on_and_rates_end_while_nothing_is_told() -> None:
    clock = iter([0.0, 0.0, 0.0, 60.0])
    console = Console(
        file=io.StringIO(), width=80, height=24, force_terminal=True, color_system=None
    )
    progress = LiveProgress(console, lambda: next(clock))
    progress.show(Event(0, 0.0, StepStarted("a", "gen")))
    progress.show(Event(1, 1.0, StepText("a", "word", 30)))

    progress.refresh()

    assert "  0 of 1 steps · 01:01" == lines(progress, console)[-1]


def test_a_step_alone_streams_its_last_lines() -> None:
    text = "\n".join(f"line {idx}" for idx in range(20))
    progress, console = view(StepStarted("a", "gen"), StepText("a", text, 40))

    assert [f"  line {idx}" for idx in range(14, 20)] == lines(progress, console)[1:-1]


def test_a_finished_step_becomes_a_line_of_its_own() -> None:
    usage = Usage(generated_tokens=3, ttft_s=0.5, total_s=1.5)
    progress, console = view(
        StepStarted("a", "gen"), StepText("a", "x", 3), StepFinished("a", "x", "stop", usage)
    )

    assert isinstance(console.file, io.StringIO)
    assert "✓ a: done, 3 tokens, 2.0 tok/s\n" == console.file.getvalue()
    assert [""] == lines(progress, console)


def test_a_failed_step_brings_its_help_line() -> None:
    _, console = view(StepStarted("a", "gen"), StepFailed("a", "WF1", "no\x1b[2J", "do this"))

    assert isinstance(console.file, io.StringIO)
    assert "✗ a: failed, no␛[2J [WF1]\n  help: do this\n" == console.file.getvalue()


def test_failures_of_one_kind_bring_their_help_once() -> None:
    told = [("all[0]/a", "do this"), ("all[1]/a", "do this"), ("b", "do that")]
    _, console = view(*(StepFailed(path, "WF1", "no", help) for path, help in told))

    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("help: do this") == 1
    assert console.file.getvalue().count("help: do that") == 1


def test_model_text_cannot_move_the_cursor() -> None:
    progress, console = view(StepStarted("a", "gen"), StepText("a", "x\x1b[2J\x07\ry", 1))

    assert not set("\x1b\x07\r") & set("".join(lines(progress, console)))


def test_more_branches_than_lines_are_counted() -> None:
    progress, console = view(*(StepStarted(f"s[{idx}]", "gen") for idx in range(50)))

    shown = lines(progress, console)

    assert 22 == len(shown)
    assert "… and 30 more" == shown[-2]


@given(
    st.lists(st.text(max_size=300), min_size=1, max_size=6),
    st.integers(20, 200),
    st.integers(4, 50),
)
def test_the_view_never_outgrows_the_terminal(texts: list[str], width: int, height: int) -> None:
    facts: list[Fact] = [StepStarted(f"explore[{idx}]/draft", "gen") for idx in range(len(texts))]
    facts += [StepText(f"explore[{idx}]/draft", text, 1) for idx, text in enumerate(texts)]
    progress, console = view(*facts, width=width, height=height)

    shown = lines(progress, console)

    assert len(shown) <= height - 1
    assert all(cell_len(line) <= width for line in shown)
