"""The `flowforge` command. Importing this imports no command, no engine and no terminal library."""

from __future__ import annotations


def main() -> None:
    """Run the command line; ends the process with a code of `exit_codes`."""
    from flowforge.cli.app import app

    app(prog_name="flowforge")
