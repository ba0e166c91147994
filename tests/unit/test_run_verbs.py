"""Verbs, joins and common keys in the pure core: hours of time pass in no time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from programs import (
    HERE,
    Stage,
    answer_all,
    ask,
    block,
    expr,
    for_each,
    gen,
    if_,
    loop,
    parallel,
    program,
    set_,
    step,
    template,
    value,
)

from flowforge.errors import EngineError, InternalError, WorkflowError
from flowforge.language.answer_specs import SamplingSpec
from flowforge.language.join_policies import All, Best, First, Quorum, Settle, Vote
from flowforge.language.program import (
    Case,
    Catch,
    Input,
    Required,
    Retry,
    Run,
    SaidTurn,
    Switch,
    WrittenTurn,
)
from flowforge.language.types import STRING
from flowforge.runtime.commands import Begin, Broken, StartGeneration, Succeeded, TimerFired
from flowforge.runtime.events import (
    StepCancelled,
    StepCaught,
    StepFailed,
    StepFinished,
    StepRetried,
    StepSkipped,
    StepStarted,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from programs import Work

    from flowforge.errors import FlowForgeError
    from flowforge.language.program import JsonValue, Step

LOST = EngineError("EN900", "lost")


def answers(table: dict[str, Any]) -> Callable[[Work], JsonValue | FlowForgeError]:
    def answer(work: Work) -> JsonValue | FlowForgeError:
        return table.get(work.path, answer_all(work))

    return answer


def outputs(*steps: Step, said: dict[str, Any] | None = None) -> dict[str, Any]:
    outcome = Stage(program(*steps), answers(said or {})).run()
    assert isinstance(outcome, Succeeded), outcome
    return dict(outcome.outputs)


def failures(*steps: Step, said: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    outcome = Stage(program(*steps), answers(said or {})).run()
    assert isinstance(outcome, Broken), outcome
    return [(failure.path, failure.error.code) for failure in outcome.failures]


def paths(stage: Stage, *kinds: type) -> list[str]:
    return [fact.path for fact in stage.facts if isinstance(fact, kinds)]  # type: ignore[union-attr]


# -- skipping, order and barriers: cases of users of other systems ---------------------------------


def test_an_empty_list_gives_an_empty_result_and_what_follows_runs_once() -> None:
    """WF-038."""
    stage = Stage(program(for_each("each", "[]", block(gen("g"))), set_("after", "each", "each")))

    assert Succeeded({"each": [], "after": []}) == stage.run()
    assert ["each", "after"] == paths(stage, StepFinished)


def test_a_skipped_step_is_null_and_the_run_ends() -> None:
    """WF-040."""
    skipped = set_("p", "1", when=expr("false"))

    assert {"p": None, "q": "none"} == outputs(skipped, set_("q", 'p ?? "none"', "p"))
    assert [("q", "WF401")] == failures(skipped, gen("q", "p", user="${ p }"))


def test_a_join_waits_for_the_branch_that_runs_although_the_other_is_skipped() -> None:
    """WF-041, WF-042."""
    stage = Stage(
        program(
            gen("a"),
            set_("b", "1", when=expr("false")),
            set_("join", "[a, b]", "a", "b"),
            set_("tail", "join", "join"),
        )
    )

    assert isinstance(stage.run(), Succeeded)
    assert ["a", "join", "tail"] == paths(stage, StepStarted)
    assert ["b"] == paths(stage, StepSkipped)


def test_a_step_two_levels_below_a_skipped_one_still_runs() -> None:
    """WF-044."""
    steps = (
        set_("b", "1", when=expr("false")),
        set_("d", "2", "b", when=expr("b != null")),
        set_("e", 'd ?? "ran"', "d"),
    )

    assert {"b": None, "d": None, "e": "ran"} == outputs(*steps)


def test_branches_of_different_length_join_exactly_once() -> None:
    """WF-045."""
    steps = (gen("a"), gen("b"), gen("c", "b"), gen("join", "a", "c"))
    stage = Stage(program(*steps), choose=lambda num: num - 1)

    stage.run()

    assert ["join"] == [path for path in paths(stage, StepStarted) if path == "join"]
    assert "join" == paths(stage, StepFinished)[-1]


def test_a_fast_branch_does_not_wait_for_its_slow_sibling() -> None:
    """WF-046."""
    stage = Stage(program(gen("a"), gen("b"), gen("a2", "a")))
    stage.tell(Begin())

    stage.end("a")

    assert ["a2", "b"] == sorted(stage.in_flight())


@pytest.mark.parametrize("on_max", ["keep", "fail"])
def test_a_loop_without_end_runs_its_max_and_not_one_more_or_less(on_max: str) -> None:
    """WF-052."""
    endless = loop(
        "l", block(gen("g")), carried={"k": "0"}, while_="true", max_rounds=25, on_max=on_max
    )
    stage = Stage(program(endless))

    outcome = stage.run()

    assert 25 == len([path for path in paths(stage, StepFinished) if path.endswith("/g")])
    if on_max == "keep":
        assert Succeeded({"l": {"k": 0}}) == outcome
    else:
        assert isinstance(outcome, Broken)
        assert "max of 25 rounds" in outcome.failures[0].error.message


def test_a_loop_of_no_rounds_keeps_what_it_was_given() -> None:
    """WF-054: max 0; the loader refuses it, and the run would take it as it reads."""
    assert {"l": {"k": 1}} == outputs(loop("l", block(gen("g")), carried={"k": "1"}, max_rounds=0))


def test_the_limit_of_a_loop_over_a_thousand_items_holds_to_its_end() -> None:
    """WF-055."""
    items: list[JsonValue] = list(range(1000))
    stage = Stage(program(for_each("all", items, block(gen("g")), limit=4)))
    peak = 0

    def answer(work: Work) -> JsonValue | FlowForgeError:
        nonlocal peak
        peak = max(peak, len(stage.in_flight()) + 1)
        return work.path.split("[")[1].split("]")[0]

    stage.answer = answer
    stage.choose = lambda num: num // 2

    assert Succeeded({"all": [str(idx) for idx in range(1000)]}) == stage.run()
    assert 4 == peak


def test_nested_loops_keep_their_shape_and_their_items() -> None:
    """WF-057."""
    cells = for_each(
        "cells", '["1", "2"]', block(set_("pair", "[outer, item] | join('')")), "outer"
    )
    rows = for_each("rows", '["a", "b"]', block(set_("outer", "item"), cells))

    assert {"rows": [["a1", "a2"], ["b1", "b2"]]} == outputs(rows)


# -- joins -----------------------------------------------------------------------------------------


def race(join: Any) -> Step:
    return parallel("r", join=join, a=gen("a"), b=gen("b"), c=gen("c"))


def test_the_first_success_wins_and_the_others_are_cancelled_with_their_memory_back() -> None:
    stage = Stage(program(race(First())), answers({"r/a": LOST, "r/b": "two"}))

    assert Succeeded({"r": "two"}) == stage.run()
    assert ["r/c"] == paths(stage, StepCancelled)


def test_first_fails_only_when_all_have_failed_and_tells_every_failure() -> None:
    lost = {f"r/{name}": LOST for name in "abc"}

    assert [("r", "WF507"), *((path, "EN900") for path in lost)] == failures(
        race(First()), said=lost
    )


def test_settle_tells_what_failed_and_where() -> None:
    result = outputs(race(Settle()), said={"r/a": LOST, "r/b": "two"})["r"]

    error = {"code": "EN900", "message": "lost", "path": "r/a", "help": None}
    assert {"ok": False, "value": None, "error": error} == result["a"]
    assert {"ok": True, "value": "two", "error": None} == result["b"]


def test_a_quorum_takes_the_first_so_many_and_fails_once_it_is_out_of_reach() -> None:
    assert {"r": {"b": "r/b answers", "c": "r/c answers"}} == outputs(
        race(Quorum(2)), said={"r/a": LOST}
    )
    assert [("r", "WF507"), ("r/a", "EN900"), ("r/b", "EN900")] == failures(
        race(Quorum(2)), said={"r/a": LOST, "r/b": LOST}
    )


def test_best_takes_the_highest_score_and_the_earliest_of_equals() -> None:
    best = race(Best(expr("value | len")))

    assert {"r": "bb"} == outputs(best, said={"r/a": "a", "r/b": "bb", "r/c": "cc"})


def test_a_vote_ends_as_soon_as_it_is_decided() -> None:
    stage = Stage(program(race(Vote())), answers({"r/a": "yes", "r/b": "yes"}))

    assert Succeeded({"r": "yes"}) == stage.run()
    assert ["r/c"] == paths(stage, StepCancelled)


def test_a_tied_vote_goes_to_the_earliest() -> None:
    said = {"r/a": "no", "r/b": "yes", "r/c": "maybe"}

    assert {"r": "no"} == outputs(race(Vote()), said=said)


# -- time ------------------------------------------------------------------------------------------


def test_two_hours_of_waiting_for_a_person_end_in_what_the_author_said() -> None:
    stage = Stage(program(ask("ok", choices=("yes", "no"), timeout_s=7200.0, on_timeout="no")))
    stage.tell(Begin())
    assert [(7200.0, "ok:wait")] == stage.timers
    stage.timers.clear()
    stage.tell(TimerFired("ok:wait"))

    assert Succeeded({"ok": "no"}) == stage.finish()


def test_an_answer_that_is_no_choice_fails_the_step() -> None:
    assert [("ok", "WF531")] == failures(ask("ok", choices=("yes", "no")), said={"ok": "maybe"})


def test_a_timeout_cancels_what_runs_and_is_tried_again() -> None:
    retry = Retry(2, 1.0, 2.0, 9.0, "none")
    stage = Stage(program(gen("a", keys={"timeout_s": 5.0, "retry": retry})))
    stage.tell(Begin())
    stage.timers.clear()
    stage.tell(TimerFired("a:timeout"))

    assert isinstance(stage.finish(), Succeeded)
    retried = [fact for fact in stage.facts if isinstance(fact, StepRetried)]
    assert [("a", "WF504", "a#2", 1.0)] == [
        (fact.path, fact.code, fact.next_path, fact.delay_s) for fact in retried
    ]


def test_an_author_error_is_never_tried_again() -> None:
    """WF-058."""
    retry = Retry(3, 0.2, 2.0, 9.0, "full")
    step_ = gen("a", keys={"retry": retry})
    wrong = WorkflowError("WF416", "no such prefill")

    assert [("a", "WF416")] == failures(step_, said={"a": wrong})
    assert [("a", "IN999")] == failures(step_, said={"a": InternalError("IN999", "ours")})
    assert [("a#3", "EN900")] == failures(step_, said={"a": LOST, "a#2": LOST, "a#3": LOST})


@pytest.mark.parametrize("code", ["EN112", "EN202", "EN233", "EN302", "EN405", "TL103", "TL302"])
def test_what_every_try_would_meet_again_is_never_tried_again(code: str) -> None:
    step_ = gen("a", keys={"retry": Retry(3, 0.2, 2.0, 9.0, "full")})

    assert [("a", code)] == failures(step_, said={"a": EngineError(code, "as before")})


@pytest.mark.parametrize("code", ["EN103", "EN220", "EN232", "EN401", "EN411", "TL201", "TL303"])
def test_what_may_pass_by_itself_is_tried_again(code: str) -> None:
    step_ = gen("a", keys={"retry": Retry(2, 0.2, 2.0, 9.0, "full")})
    wrong = EngineError(code, "for now")

    assert isinstance(Stage(program(step_), answers({"a": wrong})).run(), Succeeded)


@pytest.mark.parametrize("items", ["[]", "[1]"])
def test_a_join_with_too_few_branches_fails_at_once_and_runs_none(items: str) -> None:
    retry = Retry(3, 0.2, 2.0, 9.0, "full")
    step_ = for_each("all", items, block(gen("one")), join=Quorum(2), retry=retry)
    stage = Stage(program(step_))

    outcome = stage.run()

    assert isinstance(outcome, Broken)
    assert [("all", "WF507")] == [(one.path, one.error.code) for one in outcome.failures]
    assert [] == paths(stage, StepRetried)
    assert ["all"] == paths(stage, StepStarted)


def test_a_join_whose_branches_failed_is_tried_again() -> None:
    retry = Retry(2, 0.2, 2.0, 9.0, "full")
    step_ = for_each("all", "[1, 2]", block(gen("one")), join=Quorum(2), retry=retry)
    stage = Stage(program(step_), answers({"all[0]/one": LOST}))

    assert isinstance(stage.run(), Succeeded)
    assert ["all"] == paths(stage, StepRetried)


@pytest.mark.parametrize(
    "code",
    [
        *("WF412", "WF413", "WF418", "WF424", "WF427", "WF433", "WF434", "WF501", "WF508"),
        *("WF513", "WF603"),
    ],
)
def test_an_answer_that_is_of_no_use_is_asked_for_again(code: str) -> None:
    wrong = WorkflowError(code, "not this one")
    step_ = gen("a", keys={"retry": Retry(3, 0.2, 2.0, 9.0, "full")})

    assert [("a#3", code)] == failures(step_, said=dict.fromkeys(("a", "a#2", "a#3"), wrong))
    assert isinstance(Stage(program(step_), answers({"a": wrong})).run(), Succeeded)


def test_full_jitter_stays_within_the_backoff_and_depends_on_the_seed_alone() -> None:
    def delays(seed: int) -> list[float]:
        retry = Retry(4, 1.0, 10.0, 20.0, "full")
        lost: dict[str, Any] = dict.fromkeys(("a", "a#2", "a#3"), LOST)
        stage = Stage(program(gen("a", keys={"retry": retry})), answers(lost), seed=seed)
        stage.run()
        return [fact.delay_s for fact in stage.facts if isinstance(fact, StepRetried)]

    assert delays(1) == delays(1) != delays(2)
    assert all(0 <= delay <= most for delay, most in zip(delays(1), (1.0, 10.0, 20.0), strict=True))


# -- catch and finally -----------------------------------------------------------------------------


def test_catch_gives_a_value_or_runs_a_block_and_sees_the_error() -> None:
    by_value = gen("a", keys={"catch": Catch("error", (), expr("error.path"))})
    body = block(gen("fallback", user="${ error.message }"))
    by_block = gen("b", keys={"catch": Catch("error", ("EN",), body)})
    stage = Stage(program(by_value, by_block), answers({"a": LOST, "b": LOST}))

    assert Succeeded({"a": "a", "b": "b/catch/fallback answers"}) == stage.run()
    assert ["a", "b"] == paths(stage, StepCaught)
    assert "user: lost" in stage.history["b/catch/fallback"]


def test_a_catch_for_other_codes_lets_the_failure_through() -> None:
    picky = gen("a", keys={"catch": Catch("error", ("TL",), expr("1"))})

    assert [("a", "EN900")] == failures(picky, said={"a": LOST})


def test_a_caught_step_has_no_conversation_and_what_continues_it_is_skipped() -> None:
    caught = gen("a", keys={"catch": Catch("error", (), expr("1"))})

    assert {"a": 1, "b": None} == outputs(caught, gen("b", "a", from_step="a"), said={"a": LOST})


@pytest.mark.parametrize("said", [{}, {"a": LOST}])
def test_finally_runs_after_success_and_after_failure(said: dict[str, Any]) -> None:
    stage = Stage(program(gen("a", keys={"finally_block": block(gen("f"))})), answers(said))

    stage.run()

    assert "a/finally/f" in paths(stage, StepFinished)
    assert ["a"] == paths(stage, StepFailed if said else StepFinished)[-1:]


def test_a_finally_that_fails_does_not_hide_what_failed_before() -> None:
    both = gen("a", keys={"finally_block": block(gen("f"))})

    assert [("a", "EN900"), ("a/finally/f", "EN900")] == failures(
        both, said={"a": LOST, "a/finally/f": LOST}
    )


def test_a_finally_without_end_is_ended() -> None:
    stage = Stage(program(gen("a", keys={"finally_block": block(gen("f"))})))
    stage.tell(Begin())
    stage.end("a")
    stage.timers.clear()
    stage.tell(TimerFired("a:finally"))

    outcome = stage.finish()

    assert isinstance(outcome, Broken)
    assert [("a", "WF515")] == [(one.path, one.error.code) for one in outcome.failures]


# -- the other verbs -------------------------------------------------------------------------------


def test_a_loop_carries_values_and_ends_with_its_condition() -> None:
    body = block(set_("more", "count + 1"))
    grown = loop("l", body, carried={"count": "0"}, following={"count": "more"}, until="count == 2")

    assert {"l": {"count": 2}} == outputs(grown)


def test_if_and_switch_choose_one_block_and_its_path_says_which() -> None:
    route = Switch(expr('"b"'), (Case("a", block(gen("x"))), Case("b", block(gen("y")))), None)
    yes = if_("i", "true", block(gen("x")), None)
    no = if_("j", "false", block(gen("x")), None)

    assert {"s": "s/b/y answers", "i": "i/then/x answers", "j": None} == outputs(
        step("s", route), yes, no
    )


def test_a_switch_without_the_case_fails() -> None:
    assert [("s", "WF509")] == failures(step("s", Switch(expr('"z"'), (), None)))


def test_a_subflow_sees_its_inputs_and_nothing_else() -> None:
    asks = Input("who", STRING, {"type": "string"}, Required(), HERE)
    inner = replace(program(gen("g", user="${ inputs.who }"), said="g"), inputs={"who": asks})
    stage = Stage(program(set_("x", "1"), step("r", Run(inner, {"who": expr('"Ann"')}))))

    assert Succeeded({"x": 1, "r": {"said": "r/g answers"}}) == stage.run()
    assert "user: Ann\n<r/g answers>" == stage.history["r/g"]


# -- gen -------------------------------------------------------------------------------------------


def test_samples_are_forks_with_seeds_of_their_own_and_the_winner_is_continued() -> None:
    said = {"v[0]": "no", "v[1]": "yes", "v[2]": "yes"}
    many = gen("v", "a", from_step="a", n=3)
    stage = Stage(program(gen("a"), many, gen("c", "v", from_step="v")), answers(said))
    seeds: list[int | None] = []
    take = stage.answer

    def answer(work: Work) -> JsonValue | FlowForgeError:
        if isinstance(work, StartGeneration):
            seeds.append(work.request.sampling.seed)
        return take(work)

    stage.answer = answer

    outcome = stage.run()

    assert isinstance(outcome, Succeeded)
    assert "yes" == outcome.outputs["v"]
    assert "<yes>" in stage.history["c"]
    assert len(seeds) == len(set(seeds))


def test_all_samples_are_a_list_in_their_order() -> None:
    stage = Stage(program(gen("v", n=3, pick=All())), choose=lambda num: num - 1)

    assert Succeeded({"v": [f"v[{idx}] answers" for idx in range(3)]}) == stage.run()


def test_a_given_seed_differs_between_samples_and_greedy_has_none() -> None:
    def seeds(sampling: SamplingSpec) -> list[int | None]:
        found: list[int | None] = []
        stage = Stage(program(gen("v", n=2, pick=All(), sampling=sampling)))

        def answer(work: Work) -> JsonValue | FlowForgeError:
            assert isinstance(work, StartGeneration)
            found.append(work.request.sampling.seed)
            return "x"

        stage.answer = answer
        stage.run()
        return found

    given = seeds(SamplingSpec(seed=7))
    assert 2 == len(set(given))
    assert given == seeds(SamplingSpec(seed=7))
    assert [None, None] == seeds(SamplingSpec(temperature=0))


def test_turns_are_said_and_written_in_one_conversation() -> None:
    turns = (
        SaidTurn("user", template("2+2?")),
        SaidTurn("assistant", template("4")),
        SaidTurn("user", template("Draft.")),
        WrittenTurn("draft", SamplingSpec()),
    )
    stage = Stage(program(gen("g", user="Improve ${ draft }", turns=turns)))

    assert isinstance(stage.run(), Succeeded)
    assert (
        "user: 2+2?\nassistant: 4\nuser: Draft.\n<g answers>user: Improve g answers\n<g answers>"
    ) == stage.history["g"]


def test_turns_may_come_from_a_list() -> None:
    turns = value([{"user": "a", "assistant": "b"}, {"user": "c"}])
    stage = Stage(program(gen("g", user="d", turns=turns)))

    assert isinstance(stage.run(), Succeeded)
    assert stage.history["g"].startswith("user: a\nassistant: b\nuser: c\nuser: d\n")
    assert [("g", "WF514")] == failures(gen("g", turns=value([1])))


def test_an_answer_outside_its_choices_or_regex_is_refused() -> None:
    assert [("g", "WF513")] == failures(gen("g", choice=("yes", "no")))
    assert [("g", "WF513")] == failures(gen("g", regex="[0-9]+"), said={"g": "12a"})
    assert {"g": "12"} == outputs(gen("g", regex="[0-9]+"), said={"g": "12"})


def test_higher_priority_starts_first() -> None:
    stage = Stage(program(gen("low"), gen("high", keys={"priority": 5})))

    stage.run()

    assert ["high", "low"] == paths(stage, StepStarted)
