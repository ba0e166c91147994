"""Steps: a name and exactly one verb. The verb is decided first, then that verb's keys are checked.

A verb is one entry of `VERBS` and the file behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from flowforge.language import (
    ask_step,
    call_step,
    for_step,
    gen_step,
    if_step,
    loop_step,
    parallel_step,
    run_step,
    set_step,
    switch_step,
)
from flowforge.language.common_keys import COMMON_KEYS, parse_common
from flowforge.language.diagnostics import near_miss
from flowforge.language.drafts import StepDraft, VerbParser
from flowforge.language.fields import TAKEN_NAMES, check_keys, is_safe_name, mapping_of
from flowforge.language.ordering import cycles_of, order_of
from flowforge.language.program import Gen, Step, WrittenTurn
from flowforge.language.relaxation import relaxed_retry
from flowforge.language.scope import Binding
from flowforge.language.types import ANY, NULL, join_types

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.drafts import Context
    from flowforge.language.program import Retry, Verb
    from flowforge.language.scope import Names
    from flowforge.language.source import Span
    from flowforge.language.yaml_nodes import Entry, MappingNode


@dataclass(frozen=True, slots=True)
class VerbRule:
    """One verb: its keys on the step beside the common ones, and its reader."""

    keys: tuple[str, ...]
    parse: VerbParser


VERBS: Mapping[str, VerbRule] = {
    "gen": VerbRule((*gen_step.STEP_KEYS, "cache"), gen_step.parse_gen),
    "call": VerbRule((*call_step.STEP_KEYS, "cache"), call_step.parse_call),
    "for": VerbRule(for_step.STEP_KEYS, for_step.parse_for),
    "loop": VerbRule(loop_step.STEP_KEYS, loop_step.parse_loop),
    "if": VerbRule(if_step.STEP_KEYS, if_step.parse_if),
    "switch": VerbRule(switch_step.STEP_KEYS, switch_step.parse_switch),
    "parallel": VerbRule(parallel_step.STEP_KEYS, parallel_step.parse_parallel),
    "run": VerbRule(run_step.STEP_KEYS, run_step.parse_run),
    "ask": VerbRule(ask_step.STEP_KEYS, ask_step.parse_ask),
    "set": VerbRule(set_step.STEP_KEYS, set_step.parse_set),
}


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
        drafts[step.key] = parse_step(step, context)
    return drafts


def parse_step(entry: Entry, context: Context) -> StepDraft:
    """Read one step; what is broken is reported and left without a verb."""
    help = "a step has a verb, for example 'gen:', and the keys that go with it"
    mapping = mapping_of(entry, context.report, help)
    verb = None if mapping is None else _verb_of(entry, mapping, context)
    if mapping is None or verb is None:
        return StepDraft(entry.key, entry.key_span, None, None)
    rule = VERBS[verb]
    keys = (*rule.keys, *COMMON_KEYS)
    owner = _owner(verb)
    check_keys(mapping, keys, (), owner, context.report, _keys_of_others(verb))
    common = parse_common(entry.key, mapping, verb, context)
    return StepDraft(entry.key, entry.key_span, rule.parse(entry.key, mapping, context), common)


def resolve_steps(
    drafts: Mapping[str, StepDraft], names: Names, context: Context
) -> dict[str, Step]:
    """Resolve the steps of one block; `names` gets a binding for each.

    Broken steps are left out and have type `any`, so that nothing else is said of them.
    """
    for name, draft in drafts.items():
        is_hiding = names.outer is not None and names.outer.find(name) is not None
        if is_hiding and name not in TAKEN_NAMES:
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
            names.own[name].may_lack_conversation = _may_lack_conversation(step, names)
            names.own[name].model = step.verb.model if isinstance(step.verb, Gen) else None
    return {name: resolved[name] for name in drafts if name in resolved}


def _retry_of(verb: Verb, retry: Retry | None) -> Retry | None:
    """The retry that is asked for, and for answers that may break their schema another try."""
    turns = verb.turns if isinstance(verb, Gen) and isinstance(verb.turns, tuple) else ()
    options = [turn.options for turn in turns if isinstance(turn, WrittenTurn)]
    if isinstance(verb, Gen):
        options.append(verb.options)
    is_strict = all(one.on_unsupported == "error" for one in options)
    return retry if is_strict else relaxed_retry(retry)


def _resolve_step(
    draft: StepDraft, needs: frozenset[str], names: Names, context: Context
) -> Step | None:
    verb = None if draft.verb is None else draft.verb.resolve(names, context)
    if draft.common is None:
        return None
    common = draft.common.resolve(ANY if verb is None else verb[1], names, context)
    if verb is None:
        return None
    cache = draft.common.cache
    return Step(
        name=draft.name,
        verb=verb[0],
        needs=needs,
        type=common.type if common.when is None else join_types((common.type, NULL)),
        location=context.source.location(draft.name_span.start),
        when=common.when,
        after=frozenset(name for name, _ in draft.common.after),
        timeout_s=draft.common.timeout_s,
        retry=_retry_of(verb[0], draft.common.retry),
        catch=common.catch,
        finally_block=common.finally_block,
        priority=draft.common.priority,
        cache_s=None if cache is None else cache.checked(verb[0], context),
    )


def _may_lack_conversation(step: Step, names: Names) -> bool:
    if step.when is not None or step.catch is not None:
        return True
    source = step.verb.from_step if isinstance(step.verb, Gen) else None
    binding = None if source is None else names.find(source)
    return binding is not None and binding.may_lack_conversation


def _verb_of(entry: Entry, step: MappingNode, context: Context) -> str | None:
    """The step's one verb, when it is built."""
    report = context.report
    found = [one for one in step.entries if one.key in VERBS]
    if len(found) == 1:
        return found[0].key
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
        miss = near_miss(one.key, VERBS)
        if miss is not None and one.key not in prompts:
            return one.key_span, f"did you mean {miss!r}?"
    if any(one.key in prompts for one in step.entries):
        return entry.key_span, "add 'gen:' for the model to answer"
    return entry.key_span, f"a step has exactly one of: {', '.join(VERBS)}"


def _owner(verb: str) -> str:
    return f"{'an' if verb[0] in 'aeiou' else 'a'} {verb!r} step"


@cache
def _keys_of_others(verb: str) -> dict[str, str]:
    return {
        key: _owner(other) for other, rule in VERBS.items() if other != verb for key in rule.keys
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
