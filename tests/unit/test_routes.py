"""Which model a route means for a request, and when it leaves one alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from flowforge.backends.routing.breaker import Breaker
from flowforge.backends.routing.route import Asked, Choice, choices_for, is_shadowed, read_route
from flowforge.backends.routing.shadows import similarity

if TYPE_CHECKING:
    from flowforge.backends.routing.route import Route

EVEN = {"remote/a": 1, "remote/b": 1}


def _route(**table: Any) -> Route:
    route, problems = read_route("main", {"weights": {"remote/a": 1}, **table})
    assert [] == problems
    assert route is not None
    return route


def _first(route: Route, **asked: Any) -> Choice:
    asked.setdefault("label", "s")
    return choices_for(route, Asked(**asked), lambda _: 0)[0]


@pytest.mark.parametrize(
    ("asked", "to"),
    [
        ({"label": "explore[3]/draft#2"}, "remote/steps"),
        ({"label": "x", "tags": ("cheap",)}, "remote/tags"),
        ({"label": "x", "num_chars": 5_001}, "remote/long"),
        ({"label": "x", "num_chars": 5_000}, "remote/a"),
        ({"label": "final", "num_chars": 9}, "remote/short"),
        ({"label": "final", "num_chars": 10}, "remote/a"),
    ],
)
def test_the_first_rule_that_matches_decides(asked: dict[str, Any], to: str) -> None:
    route = _route(
        rules=[
            {"step": "explore[*]/draft", "to": "remote/steps"},
            {"tag": "cheap", "to": "remote/tags"},
            {"longer_than": 5_000, "to": "remote/long"},
            {"step": "final", "shorter_than": 10, "to": "remote/short"},
        ]
    )

    assert to == _first(route, **asked).to


def test_weights_are_kept_over_many_runs_and_one_run_stays_with_its_model() -> None:
    route = _route(weights={"remote/a": 95, "remote/b": 5})

    by_run = [
        {_first(route, run_key=f"{run}", label=label).to for label in ("x", "y[2]", "z#3")}
        for run in range(2_000)
    ]

    assert all(len(models) == 1 for models in by_run)
    share = sum(models == {"remote/b"} for models in by_run) / len(by_run)
    assert 0.035 < share < 0.065


@pytest.mark.parametrize(
    ("sticky", "same", "other"),
    [
        ("conversation", {"conversation_key": "c", "run_key": "{}"}, {"conversation_key": "{}"}),
        ("step", {"label": "draft[{}]#2", "run_key": "{}"}, {"label": "step_{}x"}),
    ],
)
def test_what_sticks_together_is_said(
    sticky: str, same: dict[str, str], other: dict[str, str]
) -> None:
    route = _route(weights=EVEN, sticky=sticky)

    def models(asked: dict[str, str]) -> set[str]:
        return {
            _first(route, **{name: value.format(idx) for name, value in asked.items()}).to
            for idx in range(40)
        }

    assert 1 == len(models(same))
    # A step's numbers tell its instances apart and no other steps.
    assert {"remote/a", "remote/b"} == models(other)


def test_by_load_the_least_loaded_for_its_weight_is_asked() -> None:
    route = _route(weights={"remote/a": 1, "remote/b": 3}, by="load")
    loads = {"remote/a": 0, "remote/b": 1}

    assert "remote/b" == choices_for(route, Asked("s"), loads.__getitem__)[0].to
    loads["remote/b"] = 3
    assert "remote/a" == choices_for(route, Asked("s"), loads.__getitem__)[0].to


def test_fallbacks_follow_in_their_order_and_nobody_is_asked_twice() -> None:
    route = _route(fallback=["remote/b", "remote/a", "engine"])

    choices = choices_for(route, Asked("s"), lambda _: 0)

    assert ["remote/a", "remote/b", "engine"] == [choice.to for choice in choices]


def test_a_shadow_is_cast_by_about_its_share() -> None:
    route = _route(shadow={"to": "remote/b", "share": 0.25})

    cast = sum(is_shadowed(route, Asked(f"s[{idx}]", run_key="r")) for idx in range(2_000))

    assert 430 < cast < 570
    assert not is_shadowed(_route(), Asked("s"))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"weights": {}}, "'weights' must be"),
        ({"weights": {"a": -1}}, "'weights' must be"),
        ({"weigths": {"a": 1}}, "'weigths' is not a key"),
        ({"by": "chance"}, "'by' must be 'weight' or 'load'"),
        ({"rules": [{"step": "x"}]}, "rule 1 has no 'to'"),
        ({"rules": [{"to": "x", "longer": 1}]}, "'longer' is not a key of rule 1"),
        ({"shadow": {"to": "x", "share": 2}}, "'share' must be"),
        ({"fallback": ["route/other"]}, "a route; send to models"),
        ({"pause": 5}, "'pause' must be a duration"),
    ],
)
def test_a_broken_table_is_told_of(table: dict[str, Any], words: str) -> None:
    route, problems = read_route("main", {"weights": {"remote/a": 1}, **table})

    assert route is None
    assert any(words in problem.message for problem in problems)


def test_a_model_that_fails_again_and_again_is_left_alone_and_tried_once() -> None:
    breaker = Breaker(failures=3, pause_s=10.0)
    for _ in range(2):
        breaker.fail(0.0)
    breaker.succeed()
    for _ in range(2):
        breaker.fail(0.0)
    assert breaker.admit(1.0)

    breaker.fail(1.0)

    assert not breaker.admit(10.9)
    assert 1.0 == breaker.rest_s(10.0)
    assert breaker.admit(11.0)
    assert not breaker.admit(11.1)
    breaker.fail(12.0)
    assert not breaker.admit(21.9)
    assert breaker.admit(22.0)
    breaker.succeed()
    assert breaker.admit(22.0)
    assert breaker.admit(22.0)


@pytest.mark.parametrize(
    ("one", "other", "likeness"),
    [
        ("same", "same", 1.0),
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}', 1.0),
        ("a b c d", "a b c x", 0.75),
        ("a b", "c d", 0.0),
    ],
)
def test_likeness_is_of_values_or_words(one: str, other: str, likeness: float) -> None:
    assert likeness == similarity(one, other)
