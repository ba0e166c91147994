"""The keys that every step may have: when, after, timeout, retry, catch, finally, priority."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flowforge.language.blocks import parse_block, parse_inner_block, resolve_block
from flowforge.language.diagnostics import did_you_mean
from flowforge.language.durations import duration_of
from flowforge.language.fields import (
    check_keys,
    integer_of,
    is_safe_name,
    mapping_of,
    number_of,
    text_of,
    texts_of,
    word_of,
)
from flowforge.language.joins import ERROR_TYPE
from flowforge.language.program import Block, Call, Catch, Gen, Retry
from flowforge.language.scope import Binding, Names
from flowforge.language.types import join_types
from flowforge.language.value_drafts import ValueDraft, expression_of, outside, value_of
from flowforge.language.yaml_nodes import MappingNode, ScalarNode, SequenceNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.language.drafts import BlockDraft, Context
    from flowforge.language.expressions import Expression
    from flowforge.language.program import ToolSpec, Verb
    from flowforge.language.scope import Report
    from flowforge.language.source import Span
    from flowforge.language.types import Type
    from flowforge.language.yaml_nodes import Entry

COMMON_KEYS = ("when", "after", "timeout", "retry", "catch", "finally", "priority")
CACHED_VERBS = ("gen", "call")
_RETRY_KEYS = ("attempts", "backoff", "factor", "max", "jitter")
_CATCH_KEYS = ("as", "codes", "do", "yield", "else")
_CODE = re.compile(r"[A-Z]{2}[0-9]{0,3}")
_MAX_ATTEMPTS = 100
_MAX_PRIORITY = 1_000


@dataclass(frozen=True, slots=True)
class CatchDraft:
    """`catch` before names are resolved."""

    variable: str
    variable_span: Span
    codes: tuple[str, ...]
    body: BlockDraft | ValueDraft

    def references(self) -> Iterator[tuple[str, Span]]:
        """Names from outside."""
        if isinstance(self.body, ValueDraft):
            yield from outside(self.body.names(), (self.variable,))
        else:
            yield from self.body.references((self.variable,))

    def resolve(self, names: Names, context: Context) -> tuple[Catch, Type] | None:
        """The catch and the type of its value."""
        if names.find(self.variable) is not None:
            message = f"{self.variable!r}, the error that is caught, hides a name around it"
            help = "choose another name: catch: { as: …, … }"
            context.report.error("WF106", message, self.variable_span, help)
        inside = Names({self.variable: Binding("variable", ERROR_TYPE)}, names)
        body: Block | Expression | None
        if isinstance(self.body, ValueDraft):
            body = self.body.typed(inside, context.report)
        else:
            body = resolve_block(self.body, inside, context)
        if body is None:
            return None
        type_ = body.result.type if isinstance(body, Block) else body.type
        return Catch(self.variable, self.codes, body), type_


@dataclass(frozen=True, slots=True)
class CacheDraft:
    """`cache`. max_age_s: how old a result may be, infinite for any age."""

    max_age_s: float
    span: Span

    def checked(self, verb: Verb, context: Context) -> float:
        """The age, once no tool of the step writes."""
        tools: tuple[ToolSpec, ...] = ()
        if isinstance(verb, Call) and verb.tool in context.tools:
            tools = (context.tools[verb.tool],)
        elif isinstance(verb, Gen) and verb.tool_use is not None:
            tools = verb.tool_use.tools
        for tool in tools:
            if tool.effect == "write":
                message = f"tool {tool.name!r} writes, and a result from the cache writes nothing"
                help = "remove 'cache', or declare what the tool does: effect: read, or idempotent"
                context.report.error("WF140", message, self.span, help)
        return self.max_age_s


@dataclass(frozen=True, slots=True)
class Common:
    """A step's common keys, resolved. type: of the step's value with them taken into account."""

    type: Type
    when: Expression | None
    catch: Catch | None
    finally_block: Block | None


@dataclass(frozen=True, slots=True)
class CommonDraft:
    """A step's common keys before names are resolved."""

    when: ValueDraft | None
    after: tuple[tuple[str, Span], ...]
    timeout_s: float | None
    retry: Retry | None
    catch: CatchDraft | None
    finally_block: BlockDraft | None
    priority: int
    cache: CacheDraft | None = None

    def references(self) -> Iterator[tuple[str, Span]]:
        """Names from outside the step."""
        yield from self.after
        if self.when is not None:
            yield from self.when.names()
        if self.catch is not None:
            yield from self.catch.references()
        if self.finally_block is not None:
            yield from self.finally_block.references()

    def resolve(self, type_: Type, names: Names, context: Context) -> Common:
        """The keys. type_: of the verb's value."""
        for name, span in self.after:
            _check_after(name, span, names, context)
        when = None if self.when is None else self.when.condition(names, context.report)
        caught = None if self.catch is None else self.catch.resolve(names, context)
        block = self.finally_block
        finally_block = None if block is None else resolve_block(block, names, context)
        if caught is not None:
            type_ = join_types((type_, caught[1]))
        return Common(type_, when, None if caught is None else caught[0], finally_block)


def parse_common(name: str, step: MappingNode, verb: str, context: Context) -> CommonDraft:
    """Read the common keys of a step."""
    report = context.report
    # `ask` has its own timeout, which may have an answer of its own.
    has_timeout = verb != "ask"
    timeout_s = duration_of(step.entry("timeout"), report) if has_timeout else None
    is_expensive = verb in ("gen", "call", "run")
    retry = parse_retry(step.entry("retry"), report)
    if is_expensive and step.entry("timeout") is None:
        timeout_s = context.defaults.timeout_s
    if is_expensive and step.entry("retry") is None:
        retry = context.defaults.retry
    last = step.entry("finally")
    return CommonDraft(
        expression_of(step.entry("when"), context, "${ draft != null }"),
        _parse_after(step.entry("after"), report),
        timeout_s,
        retry,
        _parse_catch(name, step.entry("catch"), context),
        None if last is None else parse_inner_block(name, last, context, has_value=False),
        integer_of(step.entry("priority"), report, -_MAX_PRIORITY, _MAX_PRIORITY) or 0,
        _parse_cache(step.entry("cache"), report) if verb in CACHED_VERBS else None,
    )


def _parse_cache(entry: Entry | None, report: Report) -> CacheDraft | None:
    if entry is None:
        return None
    value = entry.value.value if isinstance(entry.value, ScalarNode) else None
    if value is False:
        return None
    age_s = math.inf if value is True else duration_of(entry, report)
    return None if age_s is None else CacheDraft(age_s, entry.key_span)


def parse_retry(entry: Entry | None, report: Report) -> Retry | None:
    """What `retry:` says: a number of attempts, or a mapping."""
    if entry is None:
        return None
    if isinstance(entry.value, ScalarNode):
        attempts = integer_of(entry, report, 1, _MAX_ATTEMPTS)
        return None if attempts is None else Retry(attempts, 1.0, 2.0, 30.0, "full")
    mapping = mapping_of(entry, report, "write retry: 3, or retry: { attempts: 3, backoff: 1s }")
    if mapping is None:
        return None
    check_keys(mapping, _RETRY_KEYS, (), "'retry'", report)
    if mapping.entry("attempts") is None:
        message = "'retry' does not say how many attempts"
        report.error("WF103", message, entry.key_span, "for example attempts: 3")
    attempts = integer_of(mapping.entry("attempts"), report, 1, _MAX_ATTEMPTS)
    backoff_s = duration_of(mapping.entry("backoff"), report)
    factor = number_of(mapping.entry("factor"), report, 1.0, 100.0)
    max_s = duration_of(mapping.entry("max"), report)
    word = word_of(mapping.entry("jitter"), report, ("full", "none"))
    jitter: Literal["full", "none"] = "none" if word == "none" else "full"
    backoff_s = 1.0 if backoff_s is None else backoff_s
    return Retry(attempts or 1, backoff_s, factor or 2.0, max_s or max(30.0, backoff_s), jitter)


def _parse_after(entry: Entry | None, report: Report) -> tuple[tuple[str, Span], ...]:
    if entry is None:
        return ()
    if isinstance(entry.value, SequenceNode):
        return tuple(texts_of(entry, report, "names of steps"))
    text = text_of(entry, report)
    return () if text is None else ((text, entry.value.span),)


def _parse_catch(name: str, entry: Entry | None, context: Context) -> CatchDraft | None:
    if entry is None:
        return None
    report = context.report
    help = "write catch: { else: … }, or catch: { as: error, do: … }"
    mapping = mapping_of(entry, report, help)
    if mapping is None:
        return None
    check_keys(mapping, _CATCH_KEYS, (), "'catch'", report)
    as_entry = mapping.entry("as")
    variable = "error" if as_entry is None else text_of(as_entry, report)
    span = entry.key_span if as_entry is None else as_entry.value.span
    if variable is None or not is_safe_name(variable, span, "error", report):
        return None
    codes = _parse_codes(mapping.entry("codes"), report)
    do, otherwise = mapping.entry("do"), mapping.entry("else")
    if (do is None) == (otherwise is None):
        message = (
            "'catch' has both 'do' and 'else'" if do else "'catch' has neither 'do' nor 'else'"
        )
        report.error("WF103" if do is None else "WF107", message, entry.key_span, help)
        return None
    body: BlockDraft | ValueDraft | None
    if do is not None:
        body = parse_block(name, do, mapping.entry("yield"), context)
    else:
        body = value_of(otherwise, context)
    return None if body is None else CatchDraft(variable, span, codes, body)


def _parse_codes(entry: Entry | None, report: Report) -> tuple[str, ...]:
    if entry is None:
        return ()
    texts = texts_of(entry, report, "error codes")
    for text, span in texts:
        if not _CODE.fullmatch(text):
            help = "a code is two letters and three digits, as in WF501, or its beginning, as in TL"
            report.error("WF107", f"{text[:40]!r} is no error code", span, help)
    return tuple(text for text, _ in texts)


def _check_after(name: str, span: Span, names: Names, context: Context) -> None:
    binding = names.find(name)
    if binding is not None and binding.kind == "step":
        return
    steps = [other for other, one in names.visible().items() if one.kind == "step"]
    around = context.enclosing.get(name)
    otherwise = f"it is inside {around!r}, and seen only there" if around else None
    help = otherwise or did_you_mean(name, steps, "name a step beside this one, or around it")
    message = f"'after' names {name!r}, which is no step in scope"
    context.report.error("WF137", message, span, help)
