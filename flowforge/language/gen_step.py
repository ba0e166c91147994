"""The verb `gen`: the model writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from flowforge.language.diagnostics import did_you_mean
from flowforge.language.fields import (
    check_keys,
    integer_of,
    place_of,
    template_of,
    text_of,
    texts_of,
)
from flowforge.language.foreign_words import may_mean
from flowforge.language.gen_options import AnswerForm, form_of, options_of, sampling_of
from flowforge.language.join_policies import All, Likeliest, Vote
from flowforge.language.joins import BestDraft, names_of_join
from flowforge.language.models import model_of_entry
from flowforge.language.program import Gen
from flowforge.language.tool_use import TOOL_KEYS, tool_use_of
from flowforge.language.turns import TurnsDraft, parse_turns
from flowforge.language.types import NULL, Array, join_types
from flowforge.language.value_drafts import expression_of, outside
from flowforge.language.yaml_nodes import MappingNode, ScalarNode, kind_of_node

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flowforge.language.answer_specs import SamplingSpec
    from flowforge.language.drafts import Context
    from flowforge.language.join_policies import Pick
    from flowforge.language.program import ToolUse
    from flowforge.language.scope import Names, Report
    from flowforge.language.source import Span
    from flowforge.language.template_parser import TemplateDraft
    from flowforge.language.types import Type
    from flowforge.language.yaml_nodes import Entry

STEP_KEYS = ("gen", "from", "system", "user", "turns", "prefill", "model", "tags")
_PROMPTS = ("user", "turns", "from")
_SAMPLE_KEYS = ("n", "pick")
_MAX_SAMPLES = 1_000
_WORD_TO_PICK: Mapping[str | None, All | Likeliest | Vote] = {
    "all": All(), "best": Likeliest(), "majority": Vote(),
}  # fmt: skip
_PICKS = "write pick: majority, best, all, or { best: '${ value | len }' }"

PickDraft: TypeAlias = "All | Likeliest | Vote | BestDraft"


@dataclass(frozen=True, slots=True)
class GenDraft:
    """A `gen` step before names are resolved."""

    name: str
    from_step: tuple[str, Span] | None
    system: TemplateDraft | None
    turns: TurnsDraft
    user: TemplateDraft | None
    prefill: TemplateDraft | None
    sampling: SamplingSpec
    form: AnswerForm
    n: int
    pick: PickDraft
    model: tuple[str, Span] | None
    tool_use: ToolUse | None
    tags: tuple[str, ...]

    @property
    def has_conversation(self) -> bool:
        """Whether one conversation is left at the end."""
        return self.n == 1 or not isinstance(self.pick, All)

    def references(self) -> Iterator[tuple[str, Span]]:
        """The step it continues, and what its prompts read."""
        if self.from_step is not None:
            yield self.from_step
        yield from self.turns.references()
        for template in (self.system, self.user, self.prefill):
            if template is not None:
                yield from outside(template.names(), self.turns.names)
        if isinstance(self.pick, BestDraft):
            yield from names_of_join(self.pick)

    def resolve(self, names: Names, context: Context) -> tuple[Gen, Type] | None:
        """The verb, and the type of its answer."""
        report = context.report
        may_be_skipped = False
        if self.from_step is not None:
            may_be_skipped = _check_from(self.name, *self.from_step, names, context)
        system = None if self.system is None else self.system.typed(names, report)
        turns, inside = self.turns.resolve(names, context)
        user = None if self.user is None else self.user.typed(inside, report)
        prefill = None if self.prefill is None else self.prefill.typed(inside, report)
        type_ = self.form.type
        verb = Gen(
            from_step=None if self.from_step is None else self.from_step[0],
            system=system,
            user=user,
            sampling=self.sampling,
            json_schema=self.form.json_schema,
            choice=self.form.choice,
            regex=self.form.regex,
            grammar=self.form.grammar,
            options=self.form.options,
            turns=turns,
            prefill=prefill,
            n=self.n,
            pick=_resolve_pick(self.pick, type_, names, context),
            model=self._model(names, context),
            tool_use=self.tool_use,
            tags=self.tags,
        )
        if self.n > 1 and isinstance(self.pick, All):
            type_ = Array(type_)
        return verb, join_types((type_, NULL)) if may_be_skipped else type_

    def _model(self, names: Names, context: Context) -> str | None:
        """The model it runs on: that of the conversation it continues, if it continues one."""
        source = None if self.from_step is None else names.find(self.from_step[0])
        if source is None or not source.has_conversation:
            return context.model_of_silent_steps if self.model is None else self.model[0]
        if self.model is not None and self.model[0] != source.model:
            assert self.from_step is not None
            runs_on = "the run's own model" if source.model is None else repr(source.model)
            message = (
                f"step {self.name!r} continues {self.from_step[0]!r}, which runs on {runs_on}, "
                f"and asks for {self.model[0]!r}"
            )
            help = "a fork cannot change its model: leave 'model' out, or pass the text with ${ … }"
            context.report.error("WF139", message, self.model[1], help)
        return source.model


def parse_gen(name: str, step: MappingNode, context: Context) -> GenDraft:
    """Read a `gen` step."""
    report = context.report
    from_entry, system, gen = step.entry("from"), step.entry("system"), step.entry("gen")
    assert gen is not None
    if from_entry is not None and system is not None:
        message = f"step {name!r} has both 'from' and 'system'"
        help = "a fork cannot change its own prefix: put the instruction into 'user'"
        report.error("WF112", message, system.key_span, help)
    num_known = len(report.diagnostics)
    turns = parse_turns(step.entry("turns"), context)
    is_misread = (
        len(report.diagnostics) > num_known
        or (isinstance(gen.value, ScalarNode) and gen.value.value is not None)
        or any(may_mean(one.key, _PROMPTS) for one in step.entries if one.key not in STEP_KEYS)
    )
    has_prompt = from_entry is not None and not turns.listed
    if step.entry("user") is None and not has_prompt and not turns.asks and not is_misread:
        message = f"step {name!r} gives the model nothing to answer"
        report.error("WF113", message, gen.key_span, "add 'user', or continue a step with 'from'")
    options = options_of(gen, (*_SAMPLE_KEYS, *TOOL_KEYS), context)
    form = form_of(options, context)
    sampling = sampling_of(options, report)
    n, pick = _samples_of(options, sampling, context)
    tool_use = tool_use_of(options, form, context)
    prefill = step.entry("prefill")
    if prefill is not None and tool_use is not None:
        message = "'prefill' begins the answer, and a step with tools may begin with a call"
        report.error("WF133", message, prefill.key_span, "remove it")
    if prefill is not None and not form.is_free:
        message = "'prefill' begins free text, and this answer has a form"
        report.error("WF133", message, prefill.key_span, "remove it, or the form")
    if prefill is not None and form.options.think is not None:
        message = "'prefill' begins the answer, and this one begins with what the model thinks"
        report.error("WF133", message, prefill.key_span, "remove it, or 'think'")
    model_entry = step.entry("model")
    model = model_of_entry(model_entry, context.subflows.folder, report, context.models)
    tags = step.entry("tags")
    return GenDraft(
        name,
        None if from_entry is None else _from_of(from_entry, report),
        template_of(system, context),
        turns,
        template_of(step.entry("user"), context),
        template_of(prefill, context),
        sampling,
        form,
        n,
        pick,
        None if model is None or model_entry is None else (model, model_entry.value.span),
        tool_use,
        () if tags is None else tuple(word for word, _ in texts_of(tags, report, "words")),
    )


def _from_of(entry: Entry, report: Report) -> tuple[str, Span] | None:
    text = text_of(entry, report)
    if text is None:
        return None
    if "${" in text:
        inner = text.replace("${", "").replace("}", "").strip()
        message = "'from' takes a step's name, not an expression"
        report.error("WF107", message, entry.value.span, f"write from: {inner}")
        return None
    return text, entry.value.span


def _check_from(step: str, name: str, span: Span, names: Names, context: Context) -> bool:
    """Report a step that cannot be continued; say whether it may leave nothing to continue."""
    binding = names.find(name)
    visible = names.visible()
    if binding is None:
        steps = [other for other, one in visible.items() if one.has_conversation]
        around = context.enclosing.get(name)
        otherwise = "steps in scope: " + ", ".join(steps[:8]) if steps else None
        if around is not None:
            otherwise = f"it is inside {around!r}, and seen only there"
        help = otherwise if around is not None else did_you_mean(name, steps, otherwise)
        message = f"step {step!r} continues {name!r}, which is not in scope"
        context.report.error("WF104", message, span, help)
        return False
    if not binding.has_conversation:
        is_step = binding.kind == "step"
        reason = "only 'gen' steps that give one answer hold a conversation"
        message = f"step {step!r} continues {name!r}, which has no conversation"
        context.report.error("WF111", message, span, reason if is_step else "which is not a step")
    return binding.may_lack_conversation


def _samples_of(
    options: MappingNode, sampling: SamplingSpec, context: Context
) -> tuple[int, PickDraft]:
    entry, pick = options.entry("n"), options.entry("pick")
    n = integer_of(entry, context.report, 1, _MAX_SAMPLES) or 1
    if entry is not None and n > 1 and pick is None:
        message = f"{n} samples, and no word on which one counts"
        context.report.error("WF136", message, entry.key_span, _PICKS)
    if pick is not None and entry is None:
        message = "'pick' chooses among samples, and there is no 'n'"
        context.report.error("WF136", message, pick.key_span, "add n: 5")
    if entry is not None and n > 1 and sampling.temperature == 0:
        message = f"{n} samples at temperature 0 are all the same"
        context.report.warning("WF155", message, entry.key_span, "raise the temperature")
    return n, Vote() if pick is None else _pick_of(pick, context)


def _pick_of(entry: Entry, context: Context) -> PickDraft:
    node, report = entry.value, context.report
    if isinstance(node, MappingNode):
        check_keys(node, ("best",), (), "'pick'", report)
        score = expression_of(node.entry("best"), context, "${ value | len }")
        return Vote() if score is None else BestDraft(score)
    word = node.text if isinstance(node, ScalarNode) else None
    if word in _WORD_TO_PICK:
        return _WORD_TO_PICK[word]
    shown = kind_of_node(node) if word is None else repr(word[:40])
    report.error("WF107", f"unknown way to pick: {shown}", place_of(entry, report), _PICKS)
    return Vote()


def _resolve_pick(pick: PickDraft, value: Type, names: Names, context: Context) -> Pick:
    return pick.resolve(value, names, context) if isinstance(pick, BestDraft) else pick
