"""`flowforge schema`: the workflow file as a JSON Schema, for editors."""

from __future__ import annotations

import json

import click

from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded


def schema_text() -> str:
    """The schema as a file."""
    from flowforge.language.editor_schema import editor_schema

    return json.dumps(editor_schema(), ensure_ascii=False, indent=2) + "\n"


@click.command
@guarded
def schema() -> ExitCode:
    """Print the JSON Schema of workflow files, by which editors complete and check them.

    Save it as flowforge.schema.json, and begin a workflow with
    '# yaml-language-server: $schema=flowforge.schema.json'. 'flowforge init' does both.
    """
    click.echo(schema_text(), nl=False)
    return ExitCode.DONE
