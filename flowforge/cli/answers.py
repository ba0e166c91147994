"""Who answers `ask` on the command line: a file of answers, a person at the terminal, or nobody."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import anyio

from flowforge.backends.labels import matching_key
from flowforge.cli.printing import print_note
from flowforge.errors import WorkflowError
from flowforge.language.program import Ask, Loop, Parallel, Run
from flowforge.runtime.people import PreparedAnswers, nobody
from flowforge.view.texts import reason_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from flowforge.cli.progress import Progress
    from flowforge.language.program import Program, Step
    from flowforge.runtime.commands import StartQuestion
    from flowforge.runtime.people import Asker


def asker_for(answers: Mapping[str, str], progress: Progress) -> Asker:
    """The file first, then whoever sits at the terminal."""
    return PreparedAnswers(answers, asker_at(progress))


def asker_at(progress: Progress) -> Asker:
    """Whoever sits at the terminal, if it is one."""
    return TerminalAsker(progress) if sys.stdin.isatty() else nobody


def read_answers(file: Path | None) -> dict[str, str]:
    """Answers by step path from a YAML or JSON file. Raises WorkflowError WF526."""
    if file is None:
        return {}
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        answers = YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, YAMLError) as error:
        raise _unusable(file, f"cannot be read: {reason_text(error)}") from error
    if not isinstance(answers, dict):
        raise _unusable(file, f"must hold a mapping, got {type(answers).__name__}")
    for path, answer in answers.items():
        if not isinstance(path, str) or not isinstance(answer, str):
            raise _unusable(file, f"must map step paths to texts, and {path!r} is none: quote it")
    return answers


def require_answers(program: Program, answers: Mapping[str, str]) -> None:
    """Refuse a run that is sure to ask what nobody can answer, before it costs anything.

    Questions that a condition or an empty list may leave out are met when they are asked.
    Raises WorkflowError WF530.
    """
    if sys.stdin.isatty():
        return
    for path, ask in _certain_questions(program.steps, ""):
        if ask.on_timeout is None and matching_key(answers, path) is None:
            raise WorkflowError(
                "WF530",
                f"step {path!r} asks a person, and nobody is there to answer",
                help=f"run it on a terminal, give --answers a file that says '{path}: …', or "
                "let it wait for 'flowforge answer': --wait-for-answers, or --detach",
            )


class TerminalAsker:
    """Asks on stderr and reads lines from stdin, one question at a time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = anyio.Lock()

    async def __call__(self, question: StartQuestion) -> str:
        """The answer. Raises WorkflowError WF530 at the end of the input."""
        async with self._lock:
            with self._progress.suspended():
                print_note(f"\n{question.path}: {question.prompt}")
                if question.show is not None:
                    from flowforge.view.texts import value_text

                    print_note(value_text(question.show))
                return await self._read(question)

    async def _read(self, question: StartQuestion) -> str:
        while True:
            for number, choice in enumerate(question.choices, 1):
                print_note(f"  {number}  {choice}")
            sys.stderr.write("> ")
            sys.stderr.flush()
            try:
                # Not in a thread: an abandoned one would take the line meant for the next question.
                await anyio.wait_readable(sys.stdin)
            except anyio.get_cancelled_exc_class():
                # What is told next would stand behind the prompt.
                print_note("")
                raise
            line = sys.stdin.readline()
            if not line:
                return await nobody(question)
            answer = chosen(line.strip(), question.choices)
            if answer is not None:
                return answer
            print_note("please answer with one of these, or with its number")


def chosen(line: str, choices: tuple[str, ...]) -> str | None:
    """What a line means: itself, or a choice by its text or number; None when it is none."""
    if not choices or line in choices:
        return line
    if line.isascii() and line.isdigit() and 1 <= int(line) <= len(choices):
        return choices[int(line) - 1]
    return None


def _certain_questions(steps: Mapping[str, Step], prefix: str) -> Iterator[tuple[str, Ask]]:
    for name, step in steps.items():
        path = f"{prefix}{name}"
        verb = step.verb
        if step.when is not None or step.catch is not None:
            continue
        if isinstance(verb, Ask):
            yield path, verb
        elif isinstance(verb, Run):
            yield from _certain_questions(verb.program.steps, f"{path}/")
        elif isinstance(verb, Loop) and verb.while_condition is None:
            yield from _certain_questions(verb.body.steps, f"{path}[0]/")
        elif isinstance(verb, Parallel):
            for branch, block in verb.branches.items():
                within = f"{path}/" if list(block.steps) == [branch] else f"{path}/{branch}/"
                yield from _certain_questions(block.steps, within)


def _unusable(file: Path, reason: str) -> WorkflowError:
    return WorkflowError(
        "WF526",
        f"the answers file {str(file)!r} {reason}",
        help="it maps step paths to texts, for example 'gate/approval: approve'",
    )
