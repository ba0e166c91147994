"""The verb `gen`: the model writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.diagnostics import did_you_mean
from flowforge.language.fields import (
    check_keys,
    integer_of,
    number_of,
    template_of,
    text_of,
)
from flowforge.language.program import Gen, SamplingSpec
from flowforge.language.schema_nodes import problems_in_schema, schema_of_node
from flowforge.language.types import STRING, type_of_schema
from flowforge.language.yaml_nodes import (
    MappingNode,
    ScalarNode,
    SequenceNode,
    kind_of_node,
    node_at,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.drafts import Context
    from flowforge.language.program import JsonValue
    from flowforge.language.scope import Names, Report
    from flowforge.language.source import Span
    from flowforge.language.template_parser import TemplateDraft
    from flowforge.language.types import Type
    from flowforge.language.yaml_nodes import Entry

STEP_KEYS = ("gen", "from", "system", "user")
UNBUILT_STEP_KEYS = ("turns", "prefill")
_OPTION_KEYS = ("json", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop")
_UNBUILT_OPTION_KEYS = (
    "grammar", "regex", "choice", "tools", "rounds", "n", "pick", "min_p", "min_tokens",
    "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs",
)  # fmt: skip
_MAX_INTEGER = 2**31 - 1
_MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class GenDraft:
    """A `gen` step before names are resolved."""

    name: str
    from_step: tuple[str, Span] | None
    system: TemplateDraft | None
    user: TemplateDraft | None
    sampling: SamplingSpec
    json_schema: dict[str, JsonValue] | None
    has_conversation: bool = True

    def references(self) -> Iterator[tuple[str, Span]]:
        """The step it continues, and what its prompts read."""
        if self.from_step is not None:
            yield self.from_step
        for template in (self.system, self.user):
            if template is not None:
                yield from template.names()

    def resolve(self, names: Names, context: Context) -> tuple[Gen, Type] | None:
        """The verb, and text or what the JSON Schema says."""
        if self.from_step is not None:
            _check_from(self.name, *self.from_step, names, context)
        report = context.report
        system = None if self.system is None else self.system.typed(names, report)
        user = None if self.user is None else self.user.typed(names, report)
        name = None if self.from_step is None else self.from_step[0]
        type_ = STRING if self.json_schema is None else type_of_schema(self.json_schema)
        return Gen(name, system, user, self.sampling, self.json_schema), type_


def parse_gen(name: str, step: MappingNode, context: Context) -> GenDraft:
    """Read a `gen` step."""
    report = context.report
    from_entry, system = step.entry("from"), step.entry("system")
    user, gen = step.entry("user"), step.entry("gen")
    assert gen is not None
    if from_entry is not None and system is not None:
        message = f"step {name!r} has both 'from' and 'system'"
        help = "a fork cannot change its own prefix: put the instruction into 'user'"
        report.error("WF112", message, system.key_span, help)
    if from_entry is None and user is None:
        message = f"step {name!r} gives the model nothing to answer"
        report.error("WF113", message, gen.key_span, "add 'user', or continue a step with 'from'")
    options = _options_of(gen, report)
    schema = None if options is None else _json_schema_of(options.entry("json"), context)
    return GenDraft(
        name,
        None if from_entry is None else _from_of(from_entry, report),
        template_of(system, context),
        template_of(user, context),
        SamplingSpec() if options is None else _sampling_of(options, report),
        schema,
    )


def _options_of(gen: Entry, report: Report) -> MappingNode | None:
    node = gen.value
    if isinstance(node, MappingNode):
        check_keys(node, _OPTION_KEYS, _UNBUILT_OPTION_KEYS, "'gen'", report)
        return node
    if not (isinstance(node, ScalarNode) and node.value is None):
        help = "write 'gen:' alone for free text, or 'gen: { max_tokens: 400 }'"
        message = f"'gen' must be a mapping of options, got {kind_of_node(node)}"
        report.error("WF107", message, gen.key_span, help)
    return None


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


def _check_from(step: str, name: str, span: Span, names: Names, context: Context) -> None:
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
    elif not binding.has_conversation:
        is_step = binding.kind == "step"
        reason = "only 'gen' steps hold a conversation" if is_step else "which is not a step"
        message = f"step {step!r} continues {name!r}, which has no conversation"
        context.report.error("WF111", message, span, reason)


def _json_schema_of(entry: Entry | None, context: Context) -> dict[str, JsonValue] | None:
    if entry is None:
        return None
    node, report = entry.value, context.report
    if not isinstance(node, MappingNode):
        help = "for example json: { type: array, items: { type: string } }"
        if isinstance(node, ScalarNode) and isinstance(node.value, str) and node.value:
            help = f"write json: {{ type: {node.value} }}; named types are not built yet"
        message = f"'json' must be a JSON Schema as a mapping, got {kind_of_node(node)}"
        report.error("WF107", message, entry.key_span, help)
        return None
    schema = schema_of_node(node)
    problems = problems_in_schema(schema) if context.schema_checker is None else []
    for problem in problems or (context.schema_checker(schema) if context.schema_checker else ()):
        span = node_at(node, problem.pointer)
        add = report.error if problem.severity == "error" else report.warning
        add("WF119", problem.message, span, problem.help)
    return schema


def _sampling_of(node: MappingNode, report: Report) -> SamplingSpec:
    top_p = number_of(node.entry("top_p"), report, 0.0, 1.0)
    entry = node.entry("top_p")
    if top_p == 0.0 and entry is not None:
        report.error("WF108", "'top_p' must be above 0, got 0", entry.value.span)
    return SamplingSpec(
        max_tokens=integer_of(node.entry("max_tokens"), report, 1, _MAX_INTEGER),
        temperature=number_of(node.entry("temperature"), report, 0.0, 2.0),
        top_p=top_p,
        top_k=integer_of(node.entry("top_k"), report, 1, _MAX_INTEGER),
        seed=integer_of(node.entry("seed"), report, 0, _MAX_SEED),
        stop=_stop_of(node.entry("stop"), report),
    )


def _stop_of(entry: Entry | None, report: Report) -> tuple[str, ...]:
    if entry is None:
        return ()
    nodes = entry.value.items if isinstance(entry.value, SequenceNode) else (entry.value,)
    texts: list[str] = []
    for node in nodes:
        # White space is a fair place to stop, so only nothing at all is refused.
        if isinstance(node, ScalarNode) and node.text and node.value is not None:
            texts.append(node.text)
        else:
            message = f"'stop' must be a text or a list of texts, got {kind_of_node(node)}"
            if isinstance(node, ScalarNode) and node.style != "plain":
                message = "'stop' holds an empty text, at which every answer would end at once"
            report.error("WF107", message, entry.key_span, 'for example stop: ["END"]')
    return tuple(texts)
