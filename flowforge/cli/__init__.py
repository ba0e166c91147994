"""The `flowforge` command. Importing this imports no command, no engine and no terminal library."""

from __future__ import annotations

import gc


def main() -> None:
    """Run the command line; ends the process with a code of `exit_codes`."""
    # Start-up makes objects and hardly any garbage; at the default of 700 new objects the collector
    # walks them again and again. The process is the command's own, so the setting may be too.
    gc.set_threshold(50_000)
    from flowforge.cli.app import app
    from flowforge.cli.standard_streams import escape_what_has_no_bytes, open_closed_streams

    open_closed_streams()
    escape_what_has_no_bytes()
    app(prog_name="flowforge")
