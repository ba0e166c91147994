"""`flowforge grammar`: what a Lark grammar allows, without a model."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from flowforge.cli import options
from flowforge.cli.exit_codes import ExitCode
from flowforge.cli.failures import guarded, print_json_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.grammars.lark.grammar import LarkGrammar
    from flowforge.grammars.lark.source import LarkSource
    from flowforge.language.answer_grammars import GrammarProblem

Command = TypeVar("Command", bound="Callable[..., object]")

_NOT_IN_GRAMMAR = ExitCode.RUN_FAILED
# Of a long line, on either side of where a text stops.
_SHOWN_CHARS = 40


def _grammar_options(command: Command) -> Command:
    """FILE, and how it is read."""
    decorators = (
        click.argument("file", metavar="FILE"),
        click.option("--start", default="start", metavar="RULE", help="The rule of a whole text."),
        click.option(
            "--parser",
            type=click.Choice(["earley", "lalr"]),
            default="earley",
            help="Which parser of lark judges texts.",
        ),
        click.option(
            "--approximate",
            "is_approximate",
            is_flag=True,
            help="Leave out of the mask what it cannot do exactly.",
        ),
        options.as_json,
        options.traceback,
    )
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


@click.group(no_args_is_help=True)
def grammar() -> None:
    """Look into Lark grammars. FILE is a .lark file, or a shipped one such as flowforge/json."""


@grammar.command("list")
@options.as_json
@options.traceback
@guarded
def list_shipped(*, as_json: bool, traceback: bool) -> ExitCode:
    """List the grammars that FlowForge ships."""
    from flowforge.grammars.lark.shipped import PREFIX, shipped_names, shipped_source

    for name in shipped_names():
        first = shipped_source(name).text.splitlines()[0].removeprefix("//").strip()
        if as_json:
            print_json_line({"name": PREFIX + name, "summary": first})
        else:
            click.echo(f"{PREFIX + name:26}{first}")
    return ExitCode.DONE


@grammar.command
@_grammar_options
@guarded
def check(
    file: str, *, start: str, parser: str, is_approximate: bool, as_json: bool, traceback: bool
) -> ExitCode:
    """Say whether a grammar can be masked, and how exactly."""
    from flowforge.backends.answer_grammars import check_grammar
    from flowforge.language.answer_specs import GrammarSpec

    source = _source(file)
    spec = GrammarSpec(
        source.text,
        source.file,
        None if source.folder is None else str(source.folder),
        start=start,
        parser="lalr" if parser == "lalr" else "earley",
        is_approximate=is_approximate,
    )
    problems = check_grammar(spec)
    has_errors = any(problem.severity == "error" for problem in problems)
    found = None if has_errors else _load(file, start, parser, is_approximate)
    if as_json:
        print_json_line(_report(found, problems))
    else:
        _print_report(file, found, problems)
    return ExitCode.WORKFLOW if has_errors else ExitCode.DONE


@grammar.command
@_grammar_options
@click.argument("text", metavar="[TEXT]", required=False)
@click.option("--text-file", type=options.PATH, metavar="PATH", help="Take the text from a file.")
@guarded
def test(
    file: str,
    text: str | None,
    *,
    text_file: Path | None,
    start: str,
    parser: str,
    is_approximate: bool,
    as_json: bool,
    traceback: bool,
) -> ExitCode:
    """Say whether a text is in a grammar, where it stops, and what could follow there.

    Without TEXT and --text-file the text is read from stdin.
    """
    from flowforge.errors import WorkflowError
    from flowforge.grammars.lark.following import describe_following, reach_of

    judged = _text_of(text, text_file)
    found = _load(file, start, parser, is_approximate)
    reach = reach_of(found.byte_matcher(), judged)
    refusal = None
    if reach.is_accepted:
        try:
            found.parse(judged)
        except WorkflowError as error:
            refusal = error.message
    is_in = reach.is_accepted and refusal is None
    if as_json:
        fields = {"num_chars": reach.num_chars, "following": describe_following(reach)}
        print_json_line({"is_accepted": is_in, **fields, "refusal": refusal})
    elif is_in:
        click.echo("the text is in the grammar")
    elif refusal is not None:
        click.echo(f"the mask allows the text, and lark's {parser} parser refuses it: {refusal}")
    else:
        _print_stop(judged, reach.num_chars, describe_following(reach))
    return ExitCode.DONE if is_in else _NOT_IN_GRAMMAR


@grammar.command
@_grammar_options
@click.option("--number", "-n", default=5, type=click.IntRange(1, 10_000), help="How many.")
@click.option("--seed", default=0, help="The same seed gives the same sentences.")
@guarded
def sample(
    file: str,
    *,
    number: int,
    seed: int,
    start: str,
    parser: str,
    is_approximate: bool,
    as_json: bool,
    traceback: bool,
) -> ExitCode:
    """Print random sentences of a grammar, one a line, with line ends in them escaped."""
    from flowforge.grammars.lark.sampling import Sampler

    sampler = Sampler(_load(file, start, parser, is_approximate), random.Random(seed))
    for _ in range(number):
        sentence = sampler.sentence()
        if sentence is None:
            click.echo("no sentence was found in 40 tries: terminals run into each other", err=True)
            return _NOT_IN_GRAMMAR
        if as_json:
            print_json_line(sentence)
        else:
            click.echo(sentence.encode("unicode_escape").decode() if "\n" in sentence else sentence)
    return ExitCode.DONE


def _text_of(text: str | None, text_file: Path | None) -> str:
    from flowforge.errors import WorkflowError

    what = "on stdin" if text_file is None else repr(str(text_file))
    what = what if text is None else "in TEXT"
    try:
        if text is not None:
            judged = text
        elif text_file is not None:
            judged = text_file.read_text("utf-8")
        else:
            judged = sys.stdin.read()
        # Arguments and stdin that are not UTF-8 come as surrogates.
        judged.encode()
    except UnicodeError as error:
        raise WorkflowError("WF430", f"the text {what} is not UTF-8") from error
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise WorkflowError("WF430", f"the text {what} cannot be read: {reason}") from error
    return judged


def _source(file: str) -> LarkSource:
    from flowforge.grammars.lark.shipped import PREFIX, shipped_source
    from flowforge.grammars.lark.source import LarkSource

    if file.startswith(PREFIX) and not Path(file).exists():
        return shipped_source(file)
    return LarkSource.of_file(file)


def _load(file: str, start: str, parser: str, is_approximate: bool) -> LarkGrammar:
    from flowforge.grammars.lark.grammar import load_lark

    return load_lark(
        _source(file),
        start=start,
        parser="lalr" if parser == "lalr" else "earley",
        approximate=is_approximate,
    )


def _report(found: LarkGrammar | None, problems: list[GrammarProblem]) -> dict[str, object]:
    translation = None if found is None else found.translation
    return {
        "exactness": _exactness(found),
        "rules": None if translation is None else len(translation.rules.alternatives),
        "terminals": None if translation is None else len(translation.terminals),
        "rewritten": [] if translation is None else [*translation.rewritten],
        "restricted": [] if translation is None else [*translation.restricted],
        "problems": [
            {
                "code": problem.code,
                "severity": problem.severity,
                "message": problem.message,
                "file": None if problem.place is None else problem.place.file,
                "line": None if problem.place is None else problem.place.line,
                "column": None if problem.place is None else problem.place.column,
                "help": problem.help,
            }
            for problem in problems
        ],
    }


def _print_report(file: str, found: LarkGrammar | None, problems: list[GrammarProblem]) -> None:
    for problem in problems:
        click.echo(f"{problem.severity}[{problem.code}]: {problem.message}")
        if problem.place is not None:
            click.echo(f"  --> {problem.place}")
        if problem.help is not None:
            click.echo(f"help: {problem.help}")
    if found is None:
        click.echo(f"{file}: cannot be masked")
        return
    translation = found.translation
    counts = f"{len(translation.rules.alternatives)} rules, {len(translation.terminals)} terminals"
    click.echo(f"{file}: {_exactness(found)}, {counts}")
    for names, what in (
        (translation.rewritten, "look-around or the order of trying worked in"),
        (translation.restricted, "without what lark's lexer takes for other terminals"),
    ):
        if names:
            click.echo(f"  {what}: {', '.join(names)}")


def _exactness(found: LarkGrammar | None) -> str:
    if found is None:
        return "impossible"
    return "exact" if found.translation.is_exact else "approximate"


def _print_stop(text: str, num_chars: int, following: str) -> None:
    """The line where a text stops, or what of it lies around, with a caret below."""
    from rich.cells import cell_len

    from flowforge.view.printable import printable

    start = text.rfind("\n", 0, num_chars) + 1
    line = text[start:].split("\n", 1)[0]
    stop = num_chars - start
    first = max(0, stop - _SHOWN_CHARS)
    last = stop + _SHOWN_CHARS
    before = ("…" if first else "") + printable(line[first:stop])
    behind = printable(line[stop:last]) + ("…" if last < len(line) else "")
    number = str(text.count("\n", 0, num_chars) + 1)
    click.echo(f"the text stops being in the grammar after {num_chars} characters")
    click.echo(f"{number} | {before}{behind}")
    margin = " " * cell_len(before)
    click.echo(f"{' ' * len(number)} | {margin}^ here could follow: {following}")
