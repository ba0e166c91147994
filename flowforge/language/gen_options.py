"""The options of a `gen`: how tokens are chosen, and what form the answer must have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flowforge.language.answer_bounds import endless_part, is_endless_regex
from flowforge.language.answer_grammars import grammar_of
from flowforge.language.answer_specs import PLAIN_OPTIONS, AnswerOptions, SamplingSpec
from flowforge.language.fields import (
    check_keys,
    integer_of,
    number_of,
    text_of,
    texts_of,
    word_of,
)
from flowforge.language.named_types import schema_of_entry
from flowforge.language.types import ANY, STRING, Choice, Field, Object, type_of_schema
from flowforge.language.yaml_nodes import MappingNode, ScalarNode, SequenceNode, kind_of_node
from flowforge.patterns import RefusedPattern, for_python, unmaskable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.answer_specs import GrammarSpec
    from flowforge.language.checkers import RegexChecker
    from flowforge.language.drafts import Context
    from flowforge.language.program import JsonValue
    from flowforge.language.scope import Report
    from flowforge.language.types import Type
    from flowforge.language.yaml_nodes import Entry

SAMPLING_KEYS = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")
FORM_KEYS = ("json", "choice", "regex", "grammar")
FORM_OPTION_KEYS = ("on_unsupported", "whitespace", "on_cut", "scoring", "think")
UNBUILT_SAMPLING_KEYS = (
    "min_p", "min_tokens", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "logit_bias", "logprobs",
)  # fmt: skip
SAMPLING_LIMITS: Mapping[str, tuple[int, int]] = {
    "max_tokens": (1, 2**31 - 1), "temperature": (0, 2), "top_p": (0, 1), "top_k": (1, 2**31 - 1),
    "seed": (0, 2**63 - 1),
}  # fmt: skip
"""The least and the most of each number; top_p is above its least."""
DEFAULT_THINKING_TOKENS = 1_024
"""What `think: true` allows."""
MOST_THINKING_TOKENS = 1_000_000
_FORMS_OF_OPTION: Mapping[str, tuple[str, ...]] = {
    "on_unsupported": ("json",), "whitespace": ("json",), "on_cut": FORM_KEYS,
    "scoring": ("choice",),
}  # fmt: skip
"""The forms that an option is about; of those that are not here, any answer."""
_UNUSED_BY_SCORING = (
    "max_tokens", "top_p", "top_k", "stop", "on_cut", "think", "n", "pick", "tools",
)  # fmt: skip
_MAX_REGEX_CHARS = 4_000
_HELP_FOR_REGEX = "a regex describes the whole answer, as in [A-Z]{2}-[0-9]+"


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What form the answer must have; at most one is not None."""

    json_schema: dict[str, JsonValue] | None = None
    choice: tuple[str, ...] | None = None
    regex: str | None = None
    grammar: GrammarSpec | None = None
    options: AnswerOptions = PLAIN_OPTIONS

    @property
    def type(self) -> Type:
        """The type of the answer's value."""
        if self.grammar is not None and self.grammar.has_tree:
            return Object((Field("text", STRING, True), Field("tree", ANY, True)), None)
        if self.json_schema is not None:
            return type_of_schema(self.json_schema)
        return STRING if self.choice is None else Choice(self.choice)

    @property
    def is_free(self) -> bool:
        """Whether the answer is any text."""
        forms = (self.json_schema, self.choice, self.regex, self.grammar)
        return all(form is None for form in forms)


def options_of(gen: Entry, own_keys: tuple[str, ...], context: Context) -> MappingNode:
    """The options under `gen:`, with the file's defaults. own_keys: those beside form and sampling.

    A mapping without entries stands for options that are not there, or not a mapping.
    """
    node, report = gen.value, context.report
    if isinstance(node, MappingNode):
        keys = (*SAMPLING_KEYS, *FORM_KEYS, *FORM_OPTION_KEYS, *own_keys)
        check_keys(node, keys, UNBUILT_SAMPLING_KEYS, "'gen'", report)
        return context.defaults.options(node)
    if not (isinstance(node, ScalarNode) and node.value is None):
        help = "write 'gen:' alone for free text, or 'gen: { max_tokens: 400 }'"
        if isinstance(node, ScalarNode) and isinstance(node.value, str):
            help = "what is said to the model stands under 'user', beside 'gen:'"
        message = f"'gen' must be a mapping of options, got {kind_of_node(node)}"
        report.error("WF107", message, gen.key_span, help)
    return context.defaults.options(MappingNode(gen.key_span, ()))


def form_of(options: MappingNode, context: Context) -> AnswerForm:
    """The form the options ask for; free text where that is broken."""
    report = context.report
    forms_here = [key for key in FORM_KEYS if not (key == "choice" and _chooses_tool(options))]
    given = [entry for entry in options.entries if entry.key in forms_here]
    if len(given) > 1:
        keys = " and ".join(repr(entry.key) for entry in given)
        message = f"an answer cannot have the forms of {keys}"
        report.error("WF133", message, given[1].key_span, "keep one of them")
    form_options = _form_options_of(options, [entry.key for entry in given], context)
    forms = AnswerForm(
        _json_of(options.entry("json"), form_options, context),
        _choice_of(options.entry("choice") if "choice" in forms_here else None, report),
        _regex_of(options.entry("regex"), context),
        grammar_of(options.entry("grammar"), context),
        form_options,
    )
    if len(given) == 1 and options.entry("max_tokens") is None:
        _warn_of_endless(forms, given[0], report)
    return forms if len(given) < 2 else AnswerForm()


def _chooses_tool(options: MappingNode) -> bool:
    """Whether 'choice' says which tool is called: beside tools it does, unless it is a list."""
    choice = options.entry("choice")
    is_list = choice is not None and isinstance(choice.value, SequenceNode)
    return options.entry("tools") is not None and not is_list


def sampling_of(node: MappingNode, report: Report) -> SamplingSpec:
    """How tokens are chosen."""
    top_p = number_of(node.entry("top_p"), report, *SAMPLING_LIMITS["top_p"])
    entry = node.entry("top_p")
    if top_p == 0.0 and entry is not None:
        report.error("WF108", "'top_p' must be above 0, got 0", entry.value.span)
    return SamplingSpec(
        max_tokens=integer_of(node.entry("max_tokens"), report, *SAMPLING_LIMITS["max_tokens"]),
        temperature=number_of(node.entry("temperature"), report, *SAMPLING_LIMITS["temperature"]),
        top_p=top_p,
        top_k=integer_of(node.entry("top_k"), report, *SAMPLING_LIMITS["top_k"]),
        seed=integer_of(node.entry("seed"), report, *SAMPLING_LIMITS["seed"]),
        stop=_stop_of(node.entry("stop"), report),
    )


def _warn_of_endless(form: AnswerForm, entry: Entry, report: Report) -> None:
    """Warn of an answer that fails when it comes to the end of the context before its own."""
    part = None
    if form.regex is not None and is_endless_regex(form.regex):
        part, bound = "a match", "say {1,200} in place of '*' and '+'"
    elif form.json_schema is not None:
        part, bound = endless_part(form.json_schema), "bound it with maxLength or maxItems"
    else:
        return
    if part is not None:
        message = f"nothing ends the answer: {part} may have any length, and there is no max_tokens"
        report.warning("WF157", message, entry.key_span, f"{bound}, or set max_tokens")


def _form_options_of(options: MappingNode, forms: list[str], context: Context) -> AnswerOptions:
    """How strictly the answer is held to its form. forms: the keys of the forms that are given."""
    report = context.report
    for key, needs in _FORMS_OF_OPTION.items():
        entry = options.entry(key)
        if entry is not None and not set(forms) & set(needs):
            wanted = needs[0] if len(needs) == 1 else "json, choice, regex or grammar"
            message = f"{key!r} is about an answer of a form, and there is no {wanted}"
            report.error("WF133", message, entry.key_span, "remove it, or say which form")
    on_unsupported = word_of(options.entry("on_unsupported"), report, ("error", "relax"))
    whitespace = word_of(options.entry("whitespace"), report, ("compact", "bounded"))
    on_cut = word_of(options.entry("on_cut"), report, ("fail", "close"))
    return AnswerOptions(
        "relax" if on_unsupported == "relax" else "error",
        "bounded" if whitespace == "bounded" else "compact",
        "close" if on_cut == "close" else "fail",
        _think_of(options.entry("think"), report),
        _scoring_of(options, context),
    )


def _think_of(entry: Entry | None, report: Report) -> int | None:
    """How many tokens the model may think before its answer."""
    given = entry.value.value if entry is not None and isinstance(entry.value, ScalarNode) else None
    if given is True:
        return DEFAULT_THINKING_TOKENS
    if entry is None or given is False:
        return None
    return integer_of(entry, report, 1, MOST_THINKING_TOKENS)


def _scoring_of(options: MappingNode, context: Context) -> Literal["masked", "exact"]:
    """How a choice is made; no token is sampled where texts are scored as wholes."""
    report = context.report
    if word_of(options.entry("scoring"), report, ("masked", "exact")) != "exact":
        return "masked"
    for key in _UNUSED_BY_SCORING:
        other = options.entry(key)
        # What the file says of all its steps concerns those that sample.
        if other is not None and other not in context.defaults.gen:
            message = f"{key!r} means nothing with 'scoring: exact', where no token is sampled"
            report.error("WF133", message, other.key_span, "remove it, or the scoring")
    return "exact"


def _json_of(
    entry: Entry | None, options: AnswerOptions, context: Context
) -> dict[str, JsonValue] | None:
    if entry is None:
        return None
    checker, use = context.schema_checker, options.on_unsupported
    schema = schema_of_entry(entry, "WF119", context.types, context.report, checker, use)
    # Of a broken one nothing is known, and nothing more is to be said about what reads it.
    return {} if schema is None else schema


def _choice_of(entry: Entry | None, report: Report) -> tuple[str, ...] | None:
    if entry is None:
        return None
    texts = texts_of(entry, report, "texts")
    return tuple(text for text, _ in texts) or None


def _regex_of(entry: Entry | None, context: Context) -> str | None:
    text = None if entry is None else text_of(entry, context.report)
    if text is None or entry is None:
        return None
    refused = _why_refused(text, context.regex_checker)
    if refused is not None:
        message = f"'regex' cannot be used: {refused.reason}"
        context.report.error("WF134", message, entry.value.span, refused.help)
        return None
    return text


def _why_refused(regex: str, checker: RegexChecker | None) -> RefusedPattern | None:
    if len(regex) > _MAX_REGEX_CHARS:
        return RefusedPattern(f"it has over {_MAX_REGEX_CHARS:,} characters", _HELP_FOR_REGEX)
    found = unmaskable(regex)
    if found is not None:
        reason = f"{found.reason}, which a token mask cannot keep"
        return RefusedPattern(reason, found.instead)
    if checker is not None:
        return checker(regex)
    try:
        re.compile(for_python(regex))
    except (re.error, OverflowError, RecursionError) as error:
        return RefusedPattern(str(error), _HELP_FOR_REGEX)
    return None


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
