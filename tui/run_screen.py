"""One run: its steps, what they write, the cache, the speed and the events, live or as it was."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.reactive import Reactive
from textual.screen import Screen
from textual.widgets import Static

from flowforge.collector import resting_collector
from flowforge.errors import FlowForgeError
from flowforge.tui.acting import Acting
from flowforge.tui.key_line import KeyLine
from flowforge.tui.kv_panels import kv_lines
from flowforge.tui.lines import LineList
from flowforge.tui.looking import Looking
from flowforge.tui.panels import header_line, log_lines, speed_lines, tree_lines
from flowforge.tui.slots import StreamSlots
from flowforge.tui.stream_pane import StreamPane
from flowforge.tui.terminal_app import FRAME_S, TerminalApp
from flowforge.view.step_tree import tree_rows
from flowforge.view.timeline import Timeline

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.widget import Widget

    from flowforge.runtime.picture import StepStatus
    from flowforge.tui.opened_run import OpenedRun
    from flowforge.view.run_view import RunView
    from flowforge.view.sources import Link

POLL_BUDGET_S = 0.015
"""How long events are taken in at a time: a key passes through several turns of the loop."""

_STATE_S = 0.5
"""How often numbers that change with each text are drawn: texts are drawn at each frame."""

_BEHIND_DRAW_S = 0.5
"""How often anything is drawn while there is a backlog."""

_PANE_WIDTH = 40
_MAX_PANES = 6
_NARROW, _TINY, _LOW = 100, 60, 18
_FILTERS: tuple[tuple[StepStatus, ...], ...] = ((), ("failed",), ("running", "asking"), ("done",))


class RunScreen(Looking, Acting, Screen[None]):
    """Shows one run. Drawing happens in `_frame` alone, some times a second."""

    # As Textual has it, the whole screen is drawn again when another panel gets the keys.
    focused: Reactive[Widget | None] = Reactive(None, repaint=False)

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "help", "Help", id="run.help"),
        Binding("space", "pause", "Pause", id="run.pause"),
        Binding("a", "answer", "Answer", id="run.answer"),
        Binding("c", "cancel", "Cancel", tooltip="Cancel the chosen step", id="step.cancel"),
        Binding("C", "cancel_run", "Cancel all", show=False, id="run.cancel"),
        Binding("exclamation_mark", "next_failure", "Failure", id="run.failure"),
        Binding("slash", "search", "Search", id="run.search"),
        Binding("K", "kv", "KV", id="run.kv"),
        Binding("z", "zoom", "Zoom", id="run.zoom"),
        Binding("comma", "step_time(-1)", "Back in time", show=False, id="time.back"),
        Binding("full_stop", "step_time(1)", "On in time", show=False, id="time.on"),
        Binding(
            "less_than_sign", "change_time(-1)", "Earlier change", show=False, id="time.earlier"
        ),
        Binding("greater_than_sign", "change_time(1)", "Later", show=False, id="time.later"),
        Binding("t", "go_to_time", "Time", id="time.go"),
        Binding("l", "live", "Now", show=False, id="time.now"),
        Binding("left_square_bracket", "page_streams(-1)", "Branch", show=False, id="run.previous"),
        Binding("right_square_bracket", "page_streams(1)", "Branch", show=False, id="run.next"),
        Binding("backslash", "filter", "Filter", show=False, id="run.filter"),
        Binding("o", "fold", "Fold", show=False, id="run.fold"),
        Binding("y", "copy", "Copy", show=False, id="run.copy"),
        Binding("x", "export", "Export", show=False, id="run.export"),
        Binding("L", "limits", "Limits", show=False, id="run.limits"),
        Binding("r", "retry", "Run again", show=False, id="run.retry"),
        Binding("1", "go_to_panel('steps')", "Steps", show=False, id="panel.steps"),
        Binding("2", "go_to_panel('streams')", "Texts", show=False, id="panel.streams"),
        Binding("3", "go_to_panel('kv')", "KV cache", show=False, id="panel.kv"),
        Binding("4", "go_to_panel('speed')", "Speed", show=False, id="panel.speed"),
        Binding("5", "go_to_panel('events')", "Events", show=False, id="panel.events"),
        Binding("escape", "leave", "Runs", show=False, id="run.leave"),
        Binding("q", "app.quit", "Quit", id="run.quit"),
    ]

    def __init__(self, opened: OpenedRun, *, is_ascii: bool) -> None:
        """opened: closed with the screen."""
        super().__init__()
        self.opened = opened
        self.is_ascii = is_ascii
        self.timeline = Timeline()
        self.view: RunView = self.timeline.view_at(0)
        self.place: int | None = None
        self.link: Link = "live"
        self.opened_paths: set[str] = set()
        self.closed_paths: set[str] = set()
        self._filter = 0
        self._slots = StreamSlots()
        self._drawn: object = None
        self._drawn_revision = -1
        self._state_drawn_s = 0.0
        self._log_drawn: object = None
        self._tree_drawn_s = 0.0
        self._event_at_s = time.monotonic()
        self._num_asked = 0
        self._has_caught_up = False
        self._is_behind = False
        self._drawn_at_s = 0.0

    def compose(self) -> ComposeResult:
        """The panels."""
        yield Static(id="header")
        with Horizontal(id="main"):
            yield LineList(has_cursor=True, id="steps")
            with Horizontal(id="streams"):
                for idx in range(_MAX_PANES):
                    yield StreamPane(id=f"stream-{idx}")
        with Horizontal(id="lower"):
            yield LineList(id="kv")
            yield LineList(id="speed")
        yield LineList(has_cursor=True, follows=True, id="events")
        yield KeyLine()

    def on_mount(self) -> None:
        """Name the panels and begin to draw."""
        for panel, title in (
            ("steps", "1 Steps"),
            ("kv", "3 KV cache"),
            ("speed", "4 Speed"),
            ("events", "5 Events"),
        ):
            self.query_one(f"#{panel}").border_title = title
        self.query_one("#steps").focus()
        self.set_interval(FRAME_S, self._frame)
        self.call_after_refresh(self._frame)

    def on_unmount(self) -> None:
        """Let go of the run; it goes on."""
        self.opened.close()

    def on_resize(self) -> None:
        """Choose the layout for the size."""
        width, height = self.size
        self.set_class(width < _NARROW, "-narrow")
        self.set_class(width < _TINY, "-tiny")
        self.set_class(height < _LOW, "-low")
        self._drawn = None

    # -- frames ------------------------------------------------------------------------------------

    def _frame(self) -> None:
        # What a run tells stays: the collector would walk it again and again, and keys wait.
        with resting_collector():
            self._take_and_draw()

    def _take_and_draw(self) -> None:
        is_behind = self._take()
        now = time.monotonic()
        app = self.app
        assert isinstance(app, TerminalApp)
        wait_s = max(_BEHIND_DRAW_S if is_behind else 0.0, app.frame_s - FRAME_S / 2)
        if not self.is_current or app.is_held or now - self._drawn_at_s < wait_s:
            return
        self._drawn_at_s = now
        view = self.view
        state = (view.steps_revision, int(self.now_s), self.link, self.place, self._filter)
        drawn = (view, state, self.size)
        is_new = drawn != self._drawn
        if not is_new and view.revision == self._drawn_revision:
            return
        has_state = is_new or now - self._state_drawn_s >= _STATE_S
        self._drawn, self._drawn_revision = drawn, view.revision
        with self.app.batch_update():
            if has_state:
                self._state_drawn_s = now
                self._draw_state(view)
            self._draw_streams(view, has_titles=has_state)

    def _take(self) -> bool:
        """Take in what came; whether there is more."""
        if self.link == "lost":
            return False
        try:
            batch = self.opened.source.poll(POLL_BUDGET_S)
        except FlowForgeError as error:
            self.link = "lost"
            self.notify(str(error), severity="error", timeout=20, markup=False)
            return False
        if batch.is_new:
            self.timeline, self.place = Timeline(), None
            self._has_caught_up = False
        seen = None if self.place is None else self.timeline.seq_at(self.place)
        for event in batch.events:
            self.timeline.take(event)
        if seen is not None:
            self.place = self.timeline.place_behind(seen)
        self.link = batch.link
        if self.place is None:
            self.view = self.timeline.view_at(len(self.timeline))
            if batch.statistics is not None:
                self.view.take_statistics(batch.statistics)
            if batch.elapsed_s is not None and not self.view.is_over:
                self.view.take_time(batch.elapsed_s)
            self._take_time(has_events=bool(batch.events), has_more=batch.has_more)
            if not batch.has_more:
                self._call_for_answers()
        if batch.has_more:
            self.call_later(self._frame)
        if self._is_behind and not batch.has_more:
            # What was shown of the backlog is not what is of interest at its end.
            self._slots, self._tree_drawn_s = StreamSlots(), 0.0
        self._is_behind = batch.has_more
        return batch.has_more

    def _take_time(self, *, has_events: bool, has_more: bool) -> None:
        """Rates and durations go on while a run that lives tells nothing."""
        now_s = self.now_s
        if self._has_caught_up and not has_events:
            self.view.take_time(now_s)
        elif has_events and not has_more and not self._has_caught_up:
            self._has_caught_up = True
            begun_at = self.opened.begun_at
            if begun_at is not None and self.link == "live" and not self.view.is_over:
                # Its last event may be long ago.
                self.view.take_time(time.time() - begun_at)
        self._event_at_s = time.monotonic()

    def _call_for_answers(self) -> None:
        """Ring once for each question that came."""
        num_asked = len(self.view.questions)
        if num_asked > self._num_asked and self.link == "live":
            self.app.bell()
        self._num_asked = num_asked

    @property
    def now_s(self) -> float:
        """Seconds since the run's start: of the place that is looked at, or by the clock."""
        is_moving = self.place is None and self.link == "live" and not self.view.is_over
        return self.view.time_s + (time.monotonic() - self._event_at_s if is_moving else 0.0)

    def _draw_state(self, view: RunView) -> None:
        """All but the texts."""
        header = header_line(
            view,
            self.opened.name,
            self.link,
            self.now_s,
            is_ascii=self.is_ascii,
            place=self._place_text(),
        )
        words = Text.assemble(*header.pieces, no_wrap=True)
        self.query_one("#header", Static).update(words, layout=False)
        self._draw_tree(view)
        kv, speed, events = (
            self.query_one(f"#{name}", LineList) for name in ("kv", "speed", "events")
        )
        if kv.size.height:
            kv.show(kv_lines(view, kv.size.width, is_ascii=self.is_ascii))
            speed.show(speed_lines(view, speed.size.width, is_ascii=self.is_ascii))
        logged = (view, view.steps_revision)
        if events.size.height and logged != self._log_drawn:
            self._log_drawn = logged
            events.show(log_lines(view, 1_000))

    def _place_text(self) -> str:
        if self.place is None:
            return "" if not self._is_paused else "paused"
        return f"as it was: event {self.place:,} of {len(self.timeline):,}  , . < > t, l for now"

    def _draw_tree(self, view: RunView) -> None:
        """The tree of a large run is drawn less often: it is made as a whole."""
        now = time.monotonic()
        if now - self._tree_drawn_s < len(view.picture.steps) / 2_000 and self.place is None:
            return
        self._tree_drawn_s = now
        steps = self.query_one("#steps", LineList)
        filtered = ", ".join(_FILTERS[self._filter])
        if filtered != (steps.border_subtitle or ""):
            steps.border_subtitle = filtered
        steps.show(
            tree_lines(
                view,
                opened=self.opened_paths,
                closed=self.closed_paths,
                statuses=_FILTERS[self._filter],
                is_ascii=self.is_ascii,
            )
        )

    def _draw_streams(self, view: RunView, *, has_titles: bool) -> None:
        streams = self.query_one("#streams")
        panes = [*self.query(StreamPane)]
        num_panes = max(1, min(_MAX_PANES, streams.size.width // _PANE_WIDTH))
        if self.has_class("-narrow"):
            num_panes = 1
        chosen = self.query_one("#steps", LineList).key
        shown = self._slots.paths(view, num_panes, chosen)
        for idx, pane in enumerate(panes):
            pane.display = idx < max(1, len(shown))
            if idx < len(shown):
                pane.show(view, shown[idx])
                if has_titles:
                    pane.set_title(self._slots.title(view, shown[idx]))
            elif idx == 0:
                pane.show(view, "")
                pane.set_title("no step has written yet")

    # -- panels ------------------------------------------------------------------------------------

    def on_line_list_opened(self, event: LineList.Opened) -> None:
        """Open the step of a line in detail, or what is folded."""
        self.open_step(event.key)

    def on_line_list_chosen(self, event: LineList.Chosen) -> None:
        """Show what the chosen step writes."""
        if event.lines.id == "steps":
            self._slots.look_at(event.key)
            self._drawn = None

    def action_page_streams(self, num: int) -> None:
        """Show the next or the previous texts."""
        self._slots.turn(num)
        self._drawn = None

    def action_filter(self) -> None:
        """Show steps of another status alone."""
        self._filter = (self._filter + 1) % len(_FILTERS)
        self._tree_drawn_s = 0.0

    def action_fold(self) -> None:
        """Open or close what the chosen step holds."""
        path = self.query_one("#steps", LineList).key
        rows = tree_rows(self.view.picture, opened=self.opened_paths, closed=self.closed_paths)
        row = next((row for row in rows if row.path == path), None)
        if row is None or row.is_open is None:
            return
        (self.closed_paths.add if row.is_open else self.opened_paths.add)(path)
        (self.opened_paths.discard if row.is_open else self.closed_paths.discard)(path)
        self._tree_drawn_s, self._drawn = 0.0, None

    def action_go_to_panel(self, name: str) -> None:
        """Give a panel the keys, and show it where it is hidden."""
        self.set_class(name in {"kv", "speed"}, "-shows-lower")
        target = "stream-0" if name == "streams" else name
        self.query_one(f"#{target}").focus()
        self._drawn = None

    def action_zoom(self) -> None:
        """Give the panel with the keys the whole screen, or back."""
        if self.maximized is not None:
            self.minimize()
        elif self.focused is not None:
            self.maximize(self.focused)
        self._drawn = None

    def action_leave(self) -> None:
        """Back to the runs, where the viewer came from there."""
        if self.maximized is not None:
            self.minimize()
        elif self.place is not None:
            self.action_live()
        elif len(self.app.screen_stack) > 2:
            self.dismiss(None)
