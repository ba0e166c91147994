"""`flowforge completion`: what a shell needs to complete commands, files, runs and steps."""

from __future__ import annotations

import click

from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded


@click.command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@guarded
def completion(shell: str) -> ExitCode:
    """Print a script that completes commands, options, files, runs and steps by TAB.

    bash: put 'eval "$(flowforge completion bash)"' into ~/.bashrc. zsh: the same with zsh, into
    ~/.zshrc behind compinit. fish: write the script to ~/.config/fish/completions/flowforge.fish.
    """
    from click.shell_completion import get_completion_class

    from flowforge.cli.app import app

    found = get_completion_class(shell)
    assert found is not None
    script = found(app, {}, "flowforge", "_FLOWFORGE_COMPLETE").source()
    # fish is told "plain,WORD<TAB>HELP", and click's script cuts the help at its first comma.
    click.echo(script.replace('string split ","', 'string split --max 1 ","'))
    return ExitCode.DONE
