"""`flowforge schema`: the workflow file as a JSON Schema, for editors."""

from __future__ import annotations

import json

import click

from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded


@click.command
@guarded
def schema() -> ExitCode:
    """Print the JSON Schema of workflow files.

    Save it as flowforge.schema.json, and begin a workflow with
    '# yaml-language-server: $schema=flowforge.schema.json'.
    """
    from flowforge.language.editor_schema import editor_schema

    click.echo(json.dumps(editor_schema(), ensure_ascii=False, indent=2))
    return ExitCode.DONE
