"""Steps: a name and exactly one verb. The verb is decided first, then that verb's keys are checked.

A verb is one entry of `VERBS` and the file behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language import for_step, gen_step
from flowforge.language.diagnostics import near_miss
from flowforge.language.drafts import StepDraft, VerbParser
from flowforge.language.fields import check_keys, is_safe_name, mapping_of
from flowforge.language.ordering import cycles_of, order_of
from flowforge.language.program import Step
from flowforge.language.scope import Binding
from flowforge.language.types import ANY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.drafts import Context, VerbDraft
    from flowforge.language.scope import Names
    from flowforge.language.source import Span
    from flowforge.language.yaml_nodes import Entry, MappingNode


@dataclass(frozen=True, slots=True)
class VerbRule:
    """One verb: its keys on the step, those still to be built, and its reader."""

    keys: tuple[str, ...]
    unbuilt_keys: tuple[str, ...]
    parse: VerbParser


VERBS: Mapping[str, VerbRule] = {
    "gen": VerbRule(gen_step.STEP_KEYS, gen_step.UNBUILT_STEP_KEYS, gen_step.parse_gen),
    "for": VerbRule(for_step.STEP_KEYS, for_step.UNBUILT_STEP_KEYS, for_step.parse_for),
}
UNBUILT_VERBS = ("call", "loop", "if", "switch", "parallel", "run", "ask", "set")
UNBUILT_COMMON_KEYS = (
    "when", "after", "timeout", "retry", "catch", "finally", "cache", "priority", "model",
)  # fmt: skip


def parse_steps(entry: Entry, context: Context) -> dict[str, StepDraft]:
    """Read a mapping of steps by name; what is broken is reported and left without a verb."""
    help = "steps are written by name: 'draft: { user: …, gen: }'"
    mapping = mapping_of(entry, context.report, help)
    if mapping is None:
        return {}
    if not mapping.entries:
        context.report.error("WF107", f"{entry.key!r} holds no steps", entry.key_span, help)
    drafts: dict[str, StepDraft] = {}
    for step in mapping.entries:
        is_safe_name(step.key, step.key_span, "step", context.report)
        drafts[step.key] = StepDraft(step.key, step.key_span, _parse_step(step, context))
    return drafts


def resolve_steps(
    drafts: Mapping[str, StepDraft], names: Names, context: Context
) -> dict[str, Step]:
    """Resolve the steps of one block; `names` gets a binding for each.

    Broken steps are left out and have type `any`, so that nothing else is said of them.
    """
    for name, draft in drafts.items():
        if names.outer is not None and names.outer.find(name) is not None:
            message = f"step {name!r} hides a name of the same spelling around it"
            context.report.error("WF106", message, draft.name_span, "choose another name")
        has_conversation = draft.verb is None or draft.verb.has_conversation
        names.own[name] = Binding("step", ANY, has_conversation)
    references = {name: list(draft.references()) for name, draft in drafts.items()}
    needs = {
        name: frozenset(other for other, _ in used if other in drafts)
        for name, used in references.items()
    }
    for cycle in cycles_of(needs):
        _report_cycle(cycle, references, context)
    ordered, stuck = order_of(needs)
    resolved: dict[str, Step] = {}
    for name in [*ordered, *stuck]:
        step = _resolve_step(drafts[name], needs[name], names, context)
        if step is not None:
            resolved[name] = step
            names.own[name].type = ANY if name in stuck else step.type
    return {name: resolved[name] for name in drafts if name in resolved}


def _resolve_step(
    draft: StepDraft, needs: frozenset[str], names: Names, context: Context
) -> Step | None:
    verb = None if draft.verb is None else draft.verb.resolve(names, context)
    if verb is None:
        return None
    location = context.source.location(draft.name_span.start)
    return Step(draft.name, verb[0], needs, verb[1], location)


def _parse_step(entry: Entry, context: Context) -> VerbDraft | None:
    help = "a step has a verb, for example 'gen:', and the keys that go with it"
    mapping = mapping_of(entry, context.report, help)
    verb = None if mapping is None else _verb_of(entry, mapping, context)
    if mapping is None or verb is None:
        return None
    rule = VERBS[verb]
    owner = f"a {verb!r} step"
    check_keys(
        mapping,
        rule.keys,
        (*rule.unbuilt_keys, *UNBUILT_COMMON_KEYS),
        owner,
        context.report,
        _keys_of_others(verb),
    )
    return rule.parse(entry.key, mapping, context)


def _verb_of(entry: Entry, step: MappingNode, context: Context) -> str | None:
    """The step's one verb, when it is built."""
    report = context.report
    found = [one for one in step.entries if one.key in VERBS or one.key in UNBUILT_VERBS]
    if len(found) == 1:
        if found[0].key in VERBS:
            return found[0].key
        message = f"verb {found[0].key!r} is not built yet"
        report.error("WF102", message, found[0].key_span, f"built are: {', '.join(VERBS)}")
        return None
    if found:
        verbs = " and ".join(repr(one.key) for one in found)
        message = f"step {entry.key!r} has several verbs: {verbs}"
        report.error("WF110", message, found[1].key_span, "make one step of each")
        return None
    report.error("WF109", f"step {entry.key!r} has no verb", *_missing_verb(entry, step))
    return None


def _missing_verb(entry: Entry, step: MappingNode) -> tuple[Span, str]:
    prompts = ("from", "system", "user", "turns", "prefill")
    for one in step.entries:
        miss = near_miss(one.key, [*VERBS, *UNBUILT_VERBS])
        if miss is not None and one.key not in prompts:
            return one.key_span, f"did you mean {miss!r}?"
    if any(one.key in prompts for one in step.entries):
        return entry.key_span, "add 'gen:' for the model to answer"
    return entry.key_span, f"a step has exactly one of: {', '.join([*VERBS, *UNBUILT_VERBS])}"


def _keys_of_others(verb: str) -> dict[str, str]:
    return {
        key: f"a {other!r} step"
        for other, rule in VERBS.items()
        if other != verb
        for key in (*rule.keys, *rule.unbuilt_keys)
    }


def _report_cycle(
    cycle: list[str], references: Mapping[str, list[tuple[str, Span]]], context: Context
) -> None:
    first, second = cycle[0], cycle[1 % len(cycle)]
    span = next(span for name, span in references[first] if name == second)
    path = " → ".join([*cycle, first])
    if len(cycle) == 1:
        message = f"step {first!r} needs itself: {path}"
    else:
        message = f"steps wait for each other: {path}"
    help = "a step can use only what is there before it starts; take one of these references out"
    context.report.error("WF115", message, span, help)
