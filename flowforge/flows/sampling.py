"""Sampling as keyword arguments of a chat."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from flowforge.backends.protocol import Sampling
from flowforge.errors import WorkflowError
from flowforge.flows.cached_turns import CacheUse
from flowforge.flows.durations import seconds_of
from flowforge.language.answer_specs import AnswerOptions
from flowforge.language.diagnostics import did_you_mean
from flowforge.language.gen_options import (
    DEFAULT_THINKING_TOKENS,
    MOST_THINKING_TOKENS,
    SAMPLING_LIMITS,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FormKind: TypeAlias = Literal["free", "json", "other"]
_FORM_OPTIONS: Mapping[str, tuple[tuple[str, str], tuple[FormKind, ...]]] = {
    "on_cut": (("fail", "close"), ("json", "other")),
    "on_unsupported": (("error", "relax"), ("json",)),
    "whitespace": (("compact", "bounded"), ("json",)),
}
"""The words of each option, and the forms that it is about."""


class SamplingOptions(TypedDict, total=False):
    """What may be said about sampling; what is left out is the backend's default.

    temperature 0 is greedy. seed: without one it follows from the run's seed and the step's path.
    stop: the text ends before the first of these strings. think: whether the model thinks before
    its answer, as families do that reason, or how many tokens of it there are at most; thoughts
    stay in the chat, and are no part of the answer.
    on_cut: "close" ends an answer of a form in time, where "fail" raises when it is cut off.
    on_unsupported: "relax" lets a type have what a mask cannot hold back; an answer that breaks it
    is asked for again, three times at most. whitespace: "compact" or "bounded", of a type's JSON.
    cache: whether a result of an equal turn is taken, of this or an earlier run, or how old it may
    be: "1d", or seconds. It takes a journal.
    """

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop: Sequence[str]
    think: bool | int
    on_cut: Literal["fail", "close"]
    on_unsupported: Literal["error", "relax"]
    whitespace: Literal["compact", "bounded"]
    cache: bool | str | float


def sampling_of(options: SamplingOptions, default_seed: int) -> Sampling:
    """The options as a backend takes them.

    Raises WorkflowError WF610 for an unknown one, WF108 for one out of range, WF107 for no number.
    """
    known = SamplingOptions.__annotations__
    for name in options:
        if name not in known:
            raise WorkflowError(
                "WF610",
                f"unknown option {name!r} of a generation",
                help=did_you_mean(name, known, f"options are {', '.join(known)}"),
            )
    for name, limits in SAMPLING_LIMITS.items():
        _require_within(name, options.get(name), *limits)
    return Sampling(
        max_tokens=options.get("max_tokens"),
        temperature=options.get("temperature"),
        top_p=options.get("top_p"),
        top_k=options.get("top_k"),
        seed=None if options.get("temperature") == 0 else options.get("seed", default_seed),
        stop=tuple(options.get("stop", ())),
    )


def answer_options_of(options: SamplingOptions, form: FormKind) -> AnswerOptions:
    """How strictly the answer is held to its form. form: which one it has.

    Raises WorkflowError WF107, WF108 for a value that means nothing, WF610 for an option that is
    about another form.
    """
    for name, (words, forms) in _FORM_OPTIONS.items():
        word = options.get(name)
        if word is not None and word not in words:
            expected = " or ".join(map(repr, words))
            raise WorkflowError("WF107", f"{name!r} must be {expected}, got {word!r:.60}")
        if word is not None and form not in forms:
            wanted = "a form" if form == "free" else "a type"
            message = f"option {name!r} is about an answer of {wanted}, and this one has none"
            raise WorkflowError("WF610", message, help="leave it out")
    return AnswerOptions(
        options.get("on_unsupported", "error"),
        options.get("whitespace", "compact"),
        options.get("on_cut", "fail"),
        _thinking_of(options),
    )


def cache_use_of(options: SamplingOptions) -> CacheUse | None:
    """How a turn uses the step cache; None if not at all. Raises WorkflowError WF120."""
    cache = options.get("cache", False)
    if cache is False:
        return None
    return CacheUse(math.inf if cache is True else seconds_of(cache), "seed" in options)


def _thinking_of(options: SamplingOptions) -> int | None:
    """Tokens that the model may think; None for none."""
    think = options.get("think", False)
    if isinstance(think, bool):
        return DEFAULT_THINKING_TOKENS if think else None
    _require_within("think", think, 1, MOST_THINKING_TOKENS)
    return think


def _require_within(name: str, value: object, least: int, most: int) -> None:
    """Refuse what a workflow file could not say either."""
    if value is None:
        return
    is_fraction = name in ("temperature", "top_p")
    if isinstance(value, bool) or not isinstance(value, (int, float) if is_fraction else int):
        kind = "a number" if is_fraction else "a whole number"
        raise WorkflowError("WF107", f"{name!r} must be {kind}, got {value!r:.60}")
    if not least <= value <= most or (name == "top_p" and value == 0):
        raise WorkflowError(
            "WF108",
            f"{name!r} is out of range: got {value}, expected {least:,} to {most:,}",
            help="leave it out for the backend's default",
        )
