"""`python -m flowforge.tui`: the viewer's process, as `flowforge tui` and `watch` start it."""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flowforge import environment
from flowforge.errors import FlowForgeError
from flowforge.journal.journal import Journal
from flowforge.journal.location import existing_journal

if TYPE_CHECKING:
    from flowforge.tui.app import ViewerApp

_FAILED = 4
_DEFECT = 5
_TERMINATED = 143


def main(arguments: list[str] | None = None) -> int:
    """Show runs until the user leaves; returns an exit code. Errors are told on stderr."""
    options = _parser().parse_args(arguments)
    try:
        return _view(options)
    except FlowForgeError as error:
        sys.stderr.write(f"{error}\n")
        return _FAILED


def _view(options: argparse.Namespace) -> int:
    # textual is imported once it is known that there is something to show.
    keymap_file = options.keymap or _config_folder() / "keys.json"
    if options.events is not None:
        from flowforge.view.sources import FileSource

        source = FileSource(options.events)
        from flowforge.tui.app import ViewerApp, read_keymap
        from flowforge.tui.opened_run import OpenedRun

        app = ViewerApp(
            run=OpenedRun(options.events.name, source),
            is_ascii=options.ascii,
            keymap=read_keymap(keymap_file),
        )
        return _run(app, has_mouse=not options.no_mouse)
    with Journal(existing_journal(options.journal)) as journal:
        from flowforge.tui.app import ViewerApp, open_journal_run, read_keymap

        run = None if options.run is None else open_journal_run(journal, options.run)
        app = ViewerApp(journal, run=run, is_ascii=options.ascii, keymap=read_keymap(keymap_file))
        return _run(app, has_mouse=not options.no_mouse)


def _run(app: ViewerApp, *, has_mouse: bool) -> int:
    # What was imported stays, and is not to be walked while keys wait.
    gc.freeze()
    app.run(mouse=has_mouse)
    if app.has_lost_parent:
        sys.stderr.write("the process that began the viewer has ended, and the viewer with it\n")
    if app.ended_by is not None:
        return _TERMINATED
    return _DEFECT if app.return_code else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flowforge.tui", allow_abbrev=False)
    parser.add_argument("run", nargs="?")
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--events", type=Path)
    parser.add_argument("--keymap", type=Path)
    parser.add_argument("--ascii", action="store_true")
    parser.add_argument("--no-mouse", action="store_true")
    return parser


def _config_folder() -> Path:
    return Path(environment.CONFIG_HOME.text() or Path.home() / ".config") / "flowforge"


if __name__ == "__main__":
    raise SystemExit(main())
