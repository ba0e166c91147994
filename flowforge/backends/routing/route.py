"""What a `[routes.NAME]` table says, and which model it means for a request; all of it pure.

A choice by weight is no draw: it follows from what sticks together, so that a run that goes on, or
is run again with its seed, meets the same models.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, cast, get_args

from flowforge.backends.labels import matching_key
from flowforge.language.remote_models import (
    NAME,
    ROUTE,
    TableReader,
    count_of,
    duration_of_value,
    number_of_value,
    text_of_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flowforge.language.remote_models import Table, TableProblem

ENGINE = "engine"
"""The engine of this process, with its own model."""
Stick = Literal["run", "conversation", "step", "none"]
By = Literal["weight", "load"]
_COUNTERS = re.compile(r"\[\d+\]|[#.]\d+")
"""What tells instances and tries of one step apart."""
ROUTE_KEYS = {
    "rules": "Tables, of which the first that is true of a request decides, before the weights.",
    "weights": "Models with numbers: how many requests each gets, beside the others.",
    "by": "`weight` draws by the weights; `load` asks the one with the fewest open requests for "
    "its weight. `weight` without it.",
    "sticky": "What always goes to one model: `run`, `conversation`, `step` or `none`. `run` "
    "without it.",
    "shadow": "A table: a second model that is asked as well, and whose answer nobody sees.",
    "fallback": "Models that a request goes to in turn when it fails.",
    "failures": "After so many in a row a model is left alone; 5 without it.",
    "pause": "For how long, as `30s`, which it is without it.",
}
RULE_KEYS = {
    "to": "The model that requests go to of which all that follows is true.",
    "step": "A step path, in which `*` is any text.",
    "tag": "A word under the step's `tags`.",
    "longer_than": "The prompt has more characters.",
    "shorter_than": "The prompt has fewer characters.",
}
SHADOW_KEYS = {
    "to": "The second model.",
    "share": "Of the requests, from 0 to 1; all without it.",
    "wait": "How long it is waited for at a run's end, as `10s`, which it is without it.",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """Where requests go of which all of this is true. longer_than, shorter_than: characters."""

    to: str
    step: str | None = None
    tag: str | None = None
    longer_than: int | None = None
    shorter_than: int | None = None

    def matches(self, asked: Asked) -> bool:
        """Whether a request is one that the rule is for."""
        return (
            (self.step is None or matching_key((self.step,), asked.label) is not None)
            and (self.tag is None or self.tag in asked.tags)
            and (self.longer_than is None or asked.num_chars > self.longer_than)
            and (self.shorter_than is None or asked.num_chars < self.shorter_than)
        )


@dataclass(frozen=True, slots=True)
class Shadow:
    """A second model that answers a share of the requests too. wait_s: for it, at a run's end."""

    to: str
    share: float = 1.0
    wait_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Route:
    """Rules in their order, then weights; by "load" these say how much each model may carry.

    sticky: what always goes to one model. fallback: whom requests go to in turn when the first one
    fails. failures, pause_s: after so many in a row a model is left alone for so long.
    """

    name: str
    weights: Mapping[str, float]
    rules: tuple[Rule, ...] = ()
    by: By = "weight"
    sticky: Stick = "run"
    shadow: Shadow | None = None
    fallback: tuple[str, ...] = ()
    failures: int = 5
    pause_s: float = 30.0

    @property
    def label(self) -> str:
        """How steps and messages call it."""
        return ROUTE + self.name

    @property
    def targets(self) -> tuple[str, ...]:
        """Every model it may send to, each once."""
        shadow = () if self.shadow is None else (self.shadow.to,)
        named = (*(rule.to for rule in self.rules), *self.weights, *self.fallback, *shadow)
        return tuple(dict.fromkeys(named))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a route sees of a request. num_chars: of the whole prompt.

    label: the step path. run_key: what the requests of one run have in common; conversation_key:
    those of one conversation and its forks.
    """

    label: str
    tags: tuple[str, ...] = ()
    num_chars: int = 0
    run_key: str = ""
    conversation_key: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A model and why."""

    to: str
    reason: str


def choices_for(route: Route, asked: Asked, load_of: Callable[[str], int]) -> tuple[Choice, ...]:
    """The model for a request, and behind it those that it goes to when it fails.

    load_of: requests that a model has at present.
    """
    first = _first(route, asked, load_of)
    others = (Choice(to, "fallback") for to in route.fallback if to != first.to)
    return (first, *others)


def is_shadowed(route: Route, asked: Asked) -> bool:
    """Whether the second model is asked as well; drawn for each request, whatever sticks."""
    shadow = route.shadow
    if shadow is None:
        return False
    key = f"shadow {asked.run_key} {asked.label} {asked.conversation_key}"
    return _fraction(route.name, key) < shadow.share


def _first(route: Route, asked: Asked, load_of: Callable[[str], int]) -> Choice:
    for number, rule in enumerate(route.rules, 1):
        if rule.matches(asked):
            return Choice(rule.to, f"rule {number}")
    if route.by == "load":
        least = min(route.weights, key=lambda to: (load_of(to) + 1) / route.weights[to])
        return Choice(least, f"load {load_of(least)}")
    total, drawn = sum(route.weights.values()), _fraction(route.name, _stuck(route, asked))
    place = drawn * total
    for to, weight in route.weights.items():
        place -= weight
        if place < 0:
            return Choice(to, f"weight {weight / total:.0%}")
    # Rounding alone comes here.
    return Choice([*route.weights][-1], "weight")


def _stuck(route: Route, asked: Asked) -> str:
    match route.sticky:
        case "run":
            return asked.run_key or asked.conversation_key
        case "conversation":
            return asked.conversation_key
        case "step":
            return _COUNTERS.sub("", asked.label)
        case "none":
            return f"{asked.run_key} {asked.label} {asked.conversation_key}"


def _fraction(route: str, key: str) -> float:
    digest = blake2b(f"{route}/{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


# -- reading --------------------------------------------------------------------------------------


def read_route(name: str, table: Table) -> tuple[Route | None, list[TableProblem]]:
    """The route of a table; None beside every problem that it has."""
    reader = TableReader(table)
    reader.check_keys(ROUTE_KEYS, f"route {name!r}")
    if not NAME.fullmatch(name):
        reader.report(None, f"route name {name[:60]!r} is not allowed", "letters, digits, '_.-'")
    weights = reader.read("weights", _weights, "models with numbers, some above 0") or {}
    if not weights and "weights" not in table:
        reader.report(
            None,
            f"route {name!r} has no 'weights'",
            'say where requests go that no rule is for: weights = { "remote/big" = 1 }',
        )
    route = Route(
        name,
        weights,
        _rules(reader, table),
        cast("By", reader.word("by", get_args(By)) or "weight"),
        cast("Stick", reader.word("sticky", get_args(Stick)) or "run"),
        _shadow(reader, table),
        reader.read("fallback", _texts, "a list of models") or (),
        reader.read("failures", count_of, "a number of failures, at least 1") or 5,
        reader.read("pause", duration_of_value, "a duration up to 1h, as 30s") or 30.0,
    )
    for target in route.targets:
        if target.startswith(ROUTE):
            reader.report(None, f"it sends to {target!r}, a route; send to models")
    return (None if reader.problems else route), reader.problems


def _rules(reader: TableReader, table: Table) -> tuple[Rule, ...]:
    listed = table.get("rules", [])
    if not isinstance(listed, list):
        reader.report("rules", "'rules' must be a list of tables")
        return ()
    rules: list[Rule] = []
    for number, one in enumerate(cast("list[object]", listed), 1):
        if not isinstance(one, dict):
            reader.report("rules", f"rule {number} must be a table, as {{ tag = 'x', to = … }}")
            continue
        inner = TableReader(cast("Table", one))
        inner.check_keys(RULE_KEYS, f"rule {number}")
        rule = Rule(
            inner.read("to", text_of_value, "a model") or "",
            inner.read("step", text_of_value, "a step path, in which '*' is any text"),
            inner.read("tag", text_of_value, "a word"),
            inner.read("longer_than", count_of, "a number of characters"),
            inner.read("shorter_than", count_of, "a number of characters"),
        )
        if not rule.to and "to" not in one:
            inner.report(None, f"rule {number} has no 'to'")
        rules.append(rule)
        reader.problems += inner.problems
    return tuple(rules)


def _shadow(reader: TableReader, table: Table) -> Shadow | None:
    told = table.get("shadow")
    if told is None:
        return None
    if not isinstance(told, dict):
        reader.report("shadow", "'shadow' must be a table, as { to = 'remote/new', share = 0.1 }")
        return None
    inner = TableReader(cast("Table", told))
    inner.check_keys(SHADOW_KEYS, "'shadow'")
    share = inner.read("share", _share, "a number from 0 to 1")
    shadow = Shadow(
        inner.read("to", text_of_value, "a model") or "",
        1.0 if share is None else share,
        inner.read("wait", duration_of_value, "a duration up to 1h, as 10s") or 10.0,
    )
    if not shadow.to and "to" not in told:
        inner.report("shadow", "'shadow' has no 'to'")
    reader.problems += inner.problems
    return shadow


def _weights(value: object) -> dict[str, float] | None:
    if not isinstance(value, dict):
        return None
    named = cast("dict[object, object]", value)
    told = {str(to): number_of_value(weight) for to, weight in named.items()}
    weights = {to: weight for to, weight in told.items() if weight}
    is_whole = None not in told.values() and weights
    return weights if is_whole and math.isfinite(sum(weights.values())) else None


def _texts(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list):
        return None
    texts = [text_of_value(one) for one in cast("list[object]", value)]
    return tuple(text for text in texts if text) if all(texts) else None


def _share(value: object) -> float | None:
    share = number_of_value(value)
    return share if share is not None and share <= 1 else None
