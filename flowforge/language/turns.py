"""The key `turns`: what is said in a `gen` step before its own prompt and answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from flowforge.language.fields import check_keys, is_safe_name, mapping_of, template_of, text_of
from flowforge.language.gen_options import AnswerForm, form_of, options_of, sampling_of
from flowforge.language.program import SaidTurn, WrittenTurn
from flowforge.language.scope import Binding, Names
from flowforge.language.types import (
    ANY,
    Array,
    Object,
    display_type,
    may_be,
    may_be_null,
)
from flowforge.language.value_drafts import expression_of, outside
from flowforge.language.yaml_nodes import Entry, MappingNode, SequenceNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.answer_specs import SamplingSpec
    from flowforge.language.drafts import Context
    from flowforge.language.expressions import Expression
    from flowforge.language.program import Turn
    from flowforge.language.source import Span
    from flowforge.language.template_parser import TemplateDraft
    from flowforge.language.value_drafts import ValueDraft

_KEYS = ("user", "assistant", "gen", "as")
_FORM = "write turns: [{ user: …, assistant: … }, { user: …, gen: }]"
_MESSAGES = Array(Object((), ANY))


@dataclass(frozen=True, slots=True)
class SaidDraft:
    """A given turn before names are resolved."""

    role: Literal["user", "assistant"]
    text: TemplateDraft


@dataclass(frozen=True, slots=True)
class WrittenDraft:
    """A turn of the model's."""

    name: str | None
    name_span: Span
    sampling: SamplingSpec
    form: AnswerForm


@dataclass(frozen=True, slots=True)
class TurnsDraft:
    """All turns of a step: listed, or computed as a list."""

    listed: tuple[SaidDraft | WrittenDraft, ...]
    computed: ValueDraft | None = None

    @property
    def asks(self) -> bool:
        """Whether the last turn wants an answer, as far as that is known."""
        last = self.listed[-1] if self.listed else None
        return self.computed is not None or (isinstance(last, SaidDraft) and last.role == "user")

    @property
    def names(self) -> frozenset[str]:
        """The names that the turns give to what the model writes."""
        drafts = (draft for draft in self.listed if isinstance(draft, WrittenDraft))
        return frozenset(draft.name for draft in drafts if draft.name is not None)

    def references(self) -> Iterator[tuple[str, Span]]:
        """Names from outside."""
        if self.computed is not None:
            yield from self.computed.names()
        for draft in self.listed:
            if isinstance(draft, SaidDraft):
                yield from outside(draft.text.names(), self.names)

    def resolve(
        self, names: Names, context: Context
    ) -> tuple[tuple[Turn, ...] | Expression, Names]:
        """The turns, and the names that what follows them may read."""
        if self.computed is not None:
            return self._computed(self.computed, names, context), names
        inside = Names({}, names)
        return tuple(_resolved(draft, inside, context) for draft in self.listed), inside

    def _computed(self, draft: ValueDraft, names: Names, context: Context) -> Expression:
        turns = draft.typed(names, context.report)
        items = turns.type.item if isinstance(turns.type, Array) else ANY
        is_fit = may_be(turns.type, _MESSAGES) and may_be(items, _MESSAGES.item)
        if not is_fit or may_be_null(turns.type):
            message = f"'turns' takes a list of {{user, assistant}}, got {display_type(turns.type)}"
            help = "a turn is made with set: { user: …, assistant: … }"
            context.report.error("WF206", message, draft.span, help)
        return turns


NO_TURNS = TurnsDraft(())
_Turn: TypeAlias = "SaidDraft | WrittenDraft"


def parse_turns(entry: Entry | None, context: Context) -> TurnsDraft:
    """Read `turns:`; what is broken is reported and left out."""
    if entry is None:
        return NO_TURNS
    node = entry.value
    if not isinstance(node, SequenceNode):
        computed = expression_of(entry, context, "${ history }")
        return TurnsDraft((), computed)
    listed: list[_Turn] = []
    for item in node.items:
        turn = mapping_of(Entry("turns", item.span, item), context.report, _FORM)
        if turn is not None:
            listed += _parse_turn(turn, context)
    return TurnsDraft(tuple(listed))


def _parse_turn(node: MappingNode, context: Context) -> list[_Turn]:
    report = context.report
    check_keys(node, _KEYS, (), "a turn", report)
    user, assistant, gen = node.entry("user"), node.entry("assistant"), node.entry("gen")
    if assistant is not None and gen is not None:
        message = "a turn has both 'assistant' and 'gen'"
        report.error("WF107", message, gen.key_span, "the answer is either given or written")
    turns: list[_Turn] = []
    said: tuple[tuple[Entry | None, Literal["user", "assistant"]], ...]
    said = ((user, "user"), (assistant, "assistant"))
    for entry, role in said:
        text = template_of(entry, context)
        if text is not None:
            turns.append(SaidDraft(role, text))
    name = node.entry("as")
    if gen is not None:
        turns.append(_parse_written(gen, name, context))
    elif name is not None:
        message = "'as' names what the model writes, and this turn has no 'gen'"
        report.error("WF107", message, name.key_span, None)
    return turns


def _parse_written(gen: Entry, name: Entry | None, context: Context) -> WrittenDraft:
    options = options_of(gen, (), context)
    text = None if name is None else text_of(name, context.report)
    span = gen.key_span if name is None else name.value.span
    if text is not None and not is_safe_name(text, span, "turn", context.report):
        text = None
    sampling = sampling_of(options, context.report)
    return WrittenDraft(text, span, sampling, form_of(options, context))


def _resolved(draft: _Turn, names: Names, context: Context) -> Turn:
    if isinstance(draft, SaidDraft):
        return SaidTurn(draft.role, draft.text.typed(names, context.report))
    if draft.name is not None:
        if names.find(draft.name) is not None:
            message = f"turn {draft.name!r} hides a name of the same spelling"
            context.report.error("WF106", message, draft.name_span, "choose another name")
        names.own[draft.name] = Binding("variable", draft.form.type)
    form = draft.form
    return WrittenTurn(
        draft.name,
        draft.sampling,
        form.json_schema,
        form.choice,
        form.regex,
        form.grammar,
        form.options,
    )
