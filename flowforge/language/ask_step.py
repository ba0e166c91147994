"""The verb `ask`: a person answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.diagnostics import did_you_mean
from flowforge.language.durations import duration_of
from flowforge.language.fields import template_of, text_of, texts_of
from flowforge.language.program import Ask
from flowforge.language.types import STRING, Choice
from flowforge.language.value_drafts import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.drafts import Context
    from flowforge.language.scope import Names
    from flowforge.language.source import Span
    from flowforge.language.template_parser import TemplateDraft
    from flowforge.language.types import Type
    from flowforge.language.value_drafts import ValueDraft
    from flowforge.language.yaml_nodes import MappingNode

STEP_KEYS = ("ask", "choices", "show", "on_timeout")


@dataclass(frozen=True, slots=True)
class AskDraft:
    """An `ask` step before names are resolved."""

    prompt: TemplateDraft
    choices: tuple[str, ...]
    show: ValueDraft | None
    timeout_s: float | None
    on_timeout: str | None
    has_conversation: bool = False

    def references(self) -> Iterator[tuple[str, Span]]:
        """What the question and what is shown read."""
        yield from self.prompt.names()
        if self.show is not None:
            yield from self.show.names()

    def resolve(self, names: Names, context: Context) -> tuple[Ask, Type] | None:
        """The verb, and a text, which is one of the choices if there are any."""
        prompt = self.prompt.typed(names, context.report)
        show = None if self.show is None else self.show.typed(names, context.report)
        verb = Ask(prompt, self.choices, show, self.timeout_s, self.on_timeout)
        return verb, Choice(self.choices) if self.choices else STRING


def parse_ask(name: str, step: MappingNode, context: Context) -> AskDraft | None:
    """Read an `ask` step."""
    del name
    report = context.report
    prompt = template_of(step.entry("ask"), context)
    entry = step.entry("choices")
    choices = () if entry is None else tuple(text for text, _ in texts_of(entry, report, "texts"))
    show = value_of(step.entry("show"), context)
    timeout_s = duration_of(step.entry("timeout"), report)
    late = step.entry("on_timeout")
    on_timeout = None if late is None else text_of(late, report)
    if late is not None and on_timeout is not None:
        if step.entry("timeout") is None:
            message = "'on_timeout' without 'timeout'"
            report.error("WF138", message, late.key_span, "add timeout: 2h")
        elif choices and on_timeout not in choices:
            help = did_you_mean(on_timeout, choices, f"choices: {', '.join(choices)}")
            message = f"'on_timeout' is {on_timeout[:40]!r}, which is none of the choices"
            report.error("WF138", message, late.value.span, help)
    return None if prompt is None else AskDraft(prompt, choices, show, timeout_s, on_timeout)
