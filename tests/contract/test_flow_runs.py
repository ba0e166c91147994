"""Flows over the scripted backend, on asyncio and on trio: turns, forks, tools, people, ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from pydantic import BaseModel

import flowforge as ff
from flowforge.backends.protocol import GenerateRequest
from flowforge.flows.scopes import Scope
from flowforge.runtime.events import (
    RunCancelled,
    RunFailed,
    RunFinished,
    RunStarted,
    StepAsked,
    StepCancelled,
    StepFailed,
    StepFinished,
    StepStarted,
)
from flowforge.testing import VirtualClock, in_turn, people, script

if TYPE_CHECKING:
    from flowforge.runtime.events import Fact


class Critique(BaseModel):
    ok: bool
    problems: list[str]


async def explore(chat: ff.Chat, angle: str) -> str:
    chat.user("Explore {angle}", angle=angle)
    return await chat.gen(name="draft")


async def facts_of(handle: ff.RunHandle[object]) -> list[Fact]:
    return [event.fact async for event in handle.events()]


# -- turns ----------------------------------------------------------------------------------------


@ff.flow
async def questions(run: ff.Run, topic: str) -> list[str]:
    async with run.chat(system="You know {topic}.", topic=topic) as chat:
        chat.user("Name three.")
        names = await chat.gen(list[str], items=3, name="names")
        chat.user("Which one?")
        chosen = await chat.choose(names, name="chosen")
        return [*names, chosen]


async def test_types_come_in_and_values_come_out() -> None:
    backend = script({"names": ["a", "b", "c"], "chosen": "b"})

    assert ["a", "b", "c", "b"] == await ff.run(questions, backend=backend, topic="tides")
    assert 0 == backend.num_open
    assert "system: You know tides.\nuser: Name three." == backend.prompts[0].text
    assert ("a", "b", "c") == requests_of(backend)[1].choice


async def test_an_answer_that_breaks_its_type_leaves_the_chat_as_it_was() -> None:
    backend = script({"n": in_turn("many", "3")})

    @ff.flow
    async def ask_again(run: ff.Run) -> int:
        async with run.chat() as chat:
            chat.user("How many?")
            with pytest.raises(ff.WorkflowError, match="not JSON"):
                await chat.gen(int, name="n")
            return await chat.gen(int, name="n")

    assert 3 == await ff.run(ask_again, backend=backend)
    assert ["user: How many?"] * 2 == [prompt.text for prompt in backend.prompts]


async def test_names_that_come_again_are_numbered_in_their_branch() -> None:
    @ff.flow
    async def loops(run: ff.Run) -> list[int]:
        numbers: list[int] = []
        async with run.chat() as chat:
            async for turn in ff.rounds(3):
                chat.user("Again")
                await chat.gen(name="critique")
                numbers.append(turn.number)
                if turn.number == 2:
                    break
        return numbers

    async with ff.start(loops, backend=script({"critique": "fine"})) as handle:
        facts = await facts_of(handle)

    assert [1, 2] == await handle.result()
    started = [fact for fact in facts if isinstance(fact, StepStarted)]
    assert [("critique", None), ("critique.2", "critique")] == [
        (fact.path, fact.continues) for fact in started
    ]


async def test_rounds_end_by_themselves() -> None:
    assert [False, False, True] == [turn.is_last async for turn in ff.rounds(3)]


async def test_the_seed_of_a_generation_follows_from_run_seed_and_path() -> None:
    async def seeds(seed: int) -> list[int | None]:
        backend = script({"*": ["a", "b", "c"], "chosen": "b"})
        await ff.run(questions, backend=backend, topic="t", seed=seed)
        return [request.sampling.seed for request in requests_of(backend)]

    first = await seeds(1)

    assert first == await seeds(1)
    assert set(first).isdisjoint(await seeds(2))
    assert len(set(first)) == 2


# -- streams --------------------------------------------------------------------------------------


async def test_a_stream_shows_fields_as_they_close_and_then_the_value() -> None:
    backend = script({"critique": {"ok": False, "problems": ["x y", "z"]}})
    seen: list[object] = []

    @ff.flow
    async def streams(run: ff.Run) -> Critique:
        async with run.chat() as chat:
            chat.user("Judge")
            async with chat.stream(Critique, name="critique") as stream:
                seen.extend([part async for part in stream])
            return stream.result

    assert Critique(ok=False, problems=["x y", "z"]) == await ff.run(streams, backend=backend)
    assert {"ok": False} == seen[0]
    assert {"ok": False, "problems": ["x y"]} in seen
    assert {"ok": False, "problems": ["x y", "z"]} == seen[-1]


async def test_leaving_a_stream_early_cancels_the_step_and_leaves_the_chat_as_it_was() -> None:
    backend = script({"text": "one two three"})

    @ff.flow
    async def leaves(run: ff.Run) -> str:
        async with run.chat() as chat:
            chat.user("Write")
            async with chat.stream(name="text") as first:
                async for _ in first:
                    break
            with pytest.raises(ff.WorkflowError, match="no result"):
                _ = first.result
            async with chat.stream(name="text") as second:
                pieces = [piece async for piece in second]
            assert "".join(pieces) == second.result
            return second.result

    async with ff.start(leaves, backend=backend) as handle:
        facts = await facts_of(handle)

    assert "one two three" == await handle.result()
    assert [StepCancelled("text")] == [fact for fact in facts if isinstance(fact, StepCancelled)]
    assert ["user: Write"] * 2 == [prompt.text for prompt in backend.prompts]


# -- forks ----------------------------------------------------------------------------------------


async def test_map_gives_results_in_order_and_holds_its_limit() -> None:
    num_running = 0
    most = 0

    async def double(chat: ff.Chat, number: int) -> int:
        nonlocal num_running, most
        num_running += 1
        most = max(most, num_running)
        await chat.gen(name="draft")
        for _ in range(9 - number):
            await anyio.lowlevel.checkpoint()
        num_running -= 1
        return number * 2

    @ff.flow
    async def maps(run: ff.Run) -> list[int]:
        async with run.chat() as chat:
            chat.user("Go")
            return await chat.map(double, range(9), limit=2)

    backend = script({"double[*]/draft": "d"})

    assert [n * 2 for n in range(9)] == await ff.run(maps, backend=backend)
    assert 2 == most
    assert 0 == backend.num_open


async def test_a_function_without_a_name_makes_a_step_called_map() -> None:
    @ff.flow
    async def maps(run: ff.Run) -> list[str]:
        async with run.chat() as chat:
            return await chat.map(lambda branch, text: explore(branch, text), ["a"])

    assert ["A"] == await ff.run(maps, backend=script({"map[0]/draft": "A"}))


async def test_branches_continue_the_chat_and_not_each_other() -> None:
    @ff.flow
    async def forks(run: ff.Run) -> list[str]:
        async with run.chat() as chat:
            chat.user("Hello")
            await chat.gen(name="greeting")
            async with chat.fork(2) as (a, b):
                cost = a.start(explore, "cost")
                risk = b.start(explore, "risk")
            chat.user("And now?")
            return [cost.result, risk.result, await chat.gen(name="end")]

    backend = script({"greeting": "Hi", "fork[0]/draft": "C", "fork[1]/draft": "R", "end": "E"})

    assert ["C", "R", "E"] == await ff.run(forks, backend=backend)
    shared = "user: Hello\nassistant: Hi\n"
    texts = {prompt.label: prompt.text for prompt in backend.prompts}
    assert shared + "user: Explore cost" == texts["fork[0]/draft"]
    assert shared + "user: Explore risk" == texts["fork[1]/draft"]
    assert shared + "user: And now?" == texts["end"]


async def test_the_first_to_succeed_wins_and_the_others_are_cancelled() -> None:
    slow = anyio.Event()

    @ff.flow
    async def races(run: ff.Run) -> str:
        async with run.chat() as chat:
            chat.user("Go")
            async with chat.fork(3, join="first") as fork:
                answers = fork.start(explore, ["a", "b", "c"])
            assert [False, True, False] == [task.is_finished for task in answers]
            assert ["quick"] == answers.results
            return answers.result

    never = ff.ScriptedAnswer("late", gate=slow)
    backend = script({"fork[1]/draft": "quick", "fork[*]/draft": never})
    async with ff.start(races, backend=backend) as handle:
        facts = await facts_of(handle)

    assert "quick" == await handle.result()
    cancelled = {fact.path for fact in facts if isinstance(fact, StepCancelled)}
    assert cancelled <= {"fork[0]/draft", "fork[2]/draft"}
    assert 0 == backend.num_open


async def test_a_race_that_nobody_wins_fails_with_every_error() -> None:
    broken = ff.ScriptedAnswer(error=ff.EngineError("EN999", "out of order"))

    @ff.flow
    async def races(run: ff.Run) -> str:
        async with run.chat() as chat:
            async with chat.fork(2, join="first") as fork:
                answers = fork.start(explore, ["a", "b"])
            return answers.result

    with pytest.raises(ff.RunFailedError) as caught:
        await ff.run(races, backend=script({"*": broken}))

    # Both raise the one error of the script, which counts where it was met first.
    assert {"EN999"} == {failure.error.code for failure in caught.value.failures}
    assert caught.value.failures[0].path in {"fork[0]/draft", "fork[1]/draft"}


async def test_branches_that_settle_keep_their_errors() -> None:
    async def divide(chat: ff.Chat, by: int) -> float:
        del chat
        return 1 / by

    @ff.flow
    async def settles(run: ff.Run) -> list[str]:
        async with run.chat() as chat:
            async with chat.fork(2, join="settle") as fork:
                results = fork.start(divide, [0, 2])
            failed, fine = results
            assert [0.5] == results.results
            with pytest.raises(ZeroDivisionError):
                _ = failed.result
            return [type(failed.error).__name__, str(fine.result)]

    assert ["ZeroDivisionError", "0.5"] == await ff.run(settles, backend=script({}))


async def test_a_fork_wants_as_many_items_as_branches() -> None:
    @ff.flow
    async def forks(run: ff.Run) -> None:
        async with run.chat() as chat, chat.fork(2) as fork:
            fork.start(explore, ["a"])

    with pytest.raises(ff.RunFailedError, match="2 branches was given 1 items"):
        await ff.run(forks, backend=script({}))


async def test_a_chat_is_frozen_while_forks_of_it_are_open() -> None:
    @ff.flow
    async def busy(run: ff.Run) -> str:
        async with run.chat() as chat:
            async with chat.fork(1) as (branch,):
                for attempt in (chat.gen(), chat.choose(["a"]), chat.vote(int, 2)):
                    with pytest.raises(ff.ChatBusy, match="forks of it are open"):
                        await attempt
                with pytest.raises(ff.ChatBusy):
                    chat.user("x")
                branch.user("free")
            chat.user("free again")
            return await chat.gen(name="end")

    assert "E" == await ff.run(busy, backend=script({"end": "E"}))


async def test_a_chat_is_written_by_one_at_a_time() -> None:
    @ff.flow
    async def busy(run: ff.Run) -> None:
        async with run.chat() as chat, chat.stream(name="text"):
            with pytest.raises(ff.ChatBusy, match="the model writes 'text'"):
                await chat.gen()
            with pytest.raises(ff.ChatBusy):
                await chat.map(explore, ["a"])

    await ff.run(busy, backend=script({"text": "t"}))


async def test_a_chat_is_over_after_its_block() -> None:
    @ff.flow
    async def late(run: ff.Run) -> None:
        async with run.chat() as chat:
            pass
        with pytest.raises(ff.WorkflowError, match="after the end of its block") as caught:
            await chat.gen()
        assert "WF609" == caught.value.code

    await ff.run(late, backend=script({}))


async def test_a_branch_cannot_be_started_after_its_fork() -> None:
    @ff.flow
    async def late(run: ff.Run) -> None:
        async with run.chat() as chat:
            async with chat.fork(1) as (branch,):
                pass
            branch.start(explore, "a")

    with pytest.raises(ff.RunFailedError, match="started after the end of its fork"):
        await ff.run(late, backend=script({}))


# -- votes ----------------------------------------------------------------------------------------


async def test_a_vote_is_what_most_answers_say_and_the_chat_goes_on_from_it() -> None:
    @ff.flow
    async def votes(run: ff.Run) -> tuple[int, str]:
        async with run.chat() as chat:
            chat.user("How many?")
            number = await chat.vote(int, 3, stop_when="all")
            chat.user("Sure?")
            return number, await chat.gen(name="end")

    backend = script({"vote[0]": "1", "vote[1]": "2", "vote[2]": "2", "end": "yes"})

    assert (2, "yes") == await ff.run(votes, backend=backend)
    assert "user: How many?\nassistant: 2\nuser: Sure?" == backend.prompts[-1].text
    assert 0 == backend.num_open


async def test_a_vote_that_is_decided_cancels_the_answers_still_to_come() -> None:
    never = ff.ScriptedAnswer("9", gate=anyio.Event())

    @ff.flow
    async def votes(run: ff.Run) -> int:
        async with run.chat() as chat:
            return await chat.vote(int, 3)

    backend = script({"vote[1]": never, "vote": "7"})
    async with ff.start(votes, backend=backend) as handle:
        facts = await facts_of(handle)

    assert 7 == await handle.result()
    assert StepCancelled("vote[1]") in facts
    assert 0 == backend.num_open


async def test_answers_that_fail_have_no_vote() -> None:
    @ff.flow
    async def votes(run: ff.Run) -> int:
        async with run.chat() as chat:
            return await chat.vote(int, 3)

    assert 5 == await ff.run(votes, backend=script({"vote[0]": "?", "vote": "5"}))
    with pytest.raises(ff.RunFailedError, match="cannot be met"):
        await ff.run(votes, backend=script({"vote": "?"}))


async def test_samples_of_a_vote_have_seeds_of_their_own() -> None:
    @ff.flow
    async def votes(run: ff.Run) -> int:
        async with run.chat() as chat:
            return await chat.vote(int, 3, stop_when="all", seed=8)

    backend = script({"vote": "5"})
    await ff.run(votes, backend=backend)

    assert 3 == len({request.sampling.seed for request in requests_of(backend)})


# -- tools and people -----------------------------------------------------------------------------


@ff.tool(effect="read", timeout="10s")
def half(number: int) -> float:
    return number / 2


@ff.tool
async def critique(text: str, *, strict: bool = False) -> Critique:
    return Critique(ok=not strict, problems=[text])


async def test_tools_take_and_give_typed_values() -> None:
    @ff.flow
    async def calls(run: ff.Run) -> tuple[float, Critique]:
        return await run.call(half, 3), await run.call(critique, "t", strict=True)

    async with ff.start(calls, backend=script({})) as handle:
        facts = await facts_of(handle)

    assert (1.5, Critique(ok=False, problems=["t"])) == await handle.result()
    assert StepStarted("half", "call") in facts
    assert StepFinished("critique", {"ok": False, "problems": ["t"]}) in facts


async def test_a_tool_that_raises_fails_its_step() -> None:
    @ff.tool
    def broken() -> str:
        raise OSError("no disk")

    @ff.flow
    async def calls(run: ff.Run) -> str:
        return await run.call(broken)

    with pytest.raises(ff.RunFailedError, match="no disk") as caught:
        await ff.run(calls, backend=script({}))

    (failure,) = caught.value.failures
    assert "broken" == failure.path
    assert isinstance(failure.error, ff.ToolError)


@ff.flow
async def approval(run: ff.Run) -> str:
    return await run.ask(
        "Publish?", show={"n": 1}, choices=["yes", "no"], timeout="2h", on_timeout="no"
    )


async def test_a_person_answers() -> None:
    async with ff.start(approval, backend=script({}), asker=people({"ask": "yes"})) as handle:
        facts = await facts_of(handle)

    assert "yes" == await handle.result()
    assert StepAsked("ask", "Publish?", ("yes", "no"), {"n": 1}) in facts


async def test_two_hours_without_an_answer_pass_at_once_on_a_virtual_clock() -> None:
    clock = VirtualClock()

    async def nobody_comes(question: object) -> str:
        del question
        await anyio.sleep_forever()
        raise AssertionError

    async with ff.start(approval, backend=script({}), asker=nobody_comes, clock=clock) as handle:
        assert "no" == await handle.result()

    assert 7_200 == clock.now()


async def test_sleepers_of_a_virtual_clock_wake_in_the_order_of_their_times() -> None:
    clock = VirtualClock()
    scope = anyio.CancelScope()
    woken: list[tuple[int, float]] = []

    async def wait(number: int, delay_s: float) -> None:
        await clock.sleep(delay_s)
        woken.append((number, clock.now()))

    async def give_up() -> None:
        with scope:
            await wait(3, 5.0)

    async with anyio.create_task_group() as tasks:
        for number, delay_s in enumerate((30.0, 10.0, 20.0)):
            tasks.start_soon(wait, number, delay_s)
        tasks.start_soon(give_up)
        # Time stands still while somebody works.
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    assert [(1, 10.0), (2, 20.0), (0, 30.0)] == woken


async def test_an_answer_that_is_no_choice_is_refused() -> None:
    with pytest.raises(ff.RunFailedError, match="expected one of 'yes', 'no'"):
        await ff.run(approval, backend=script({}), asker=people({"ask": "maybe"}))


async def test_nobody_to_ask_is_an_error_with_the_step() -> None:
    with pytest.raises(ff.RunFailedError) as caught:
        await ff.run(approval, backend=script({}))

    assert [("ask", "WF530")] == [(one.path, one.error.code) for one in caught.value.failures]


async def test_chats_of_a_branch_belong_to_the_branch() -> None:
    async def summarise(run: ff.Run, text: str) -> str:
        async with run.chat() as chat:
            chat.user("Sum up {text}", text=text)
            return await chat.gen(name="summary")

    @ff.flow
    async def reduce(run: ff.Run) -> list[str]:
        return await run.map(summarise, ["a", "b"], limit=2)

    backend = script({"summarise[0]/summary": "A", "summarise[1]/summary": "B"})

    assert ["A", "B"] == await ff.run(reduce, backend=backend)


async def test_a_flow_can_be_a_part_of_another() -> None:
    @ff.flow
    async def outer(run: ff.Run) -> list[str]:
        return await questions(run, "tides")

    backend = script({"names": ["a", "b", "c"], "chosen": "c"})

    assert ["a", "b", "c", "c"] == await ff.run(outer, backend=backend)


# -- the end --------------------------------------------------------------------------------------


async def test_a_run_tells_its_start_and_its_end() -> None:
    async with ff.start(
        questions, backend=script({"*": ["a", "b", "c"], "chosen": "b"}), topic="t", seed=5
    ) as handle:
        facts = await facts_of(handle)

    assert RunStarted("questions", {"topic": "t"}, 5) == facts[0]
    assert isinstance(facts[-1], RunFinished)
    assert {"result": ["a", "b", "c", "b"]} == facts[-1].outputs
    accounting = facts[-1].accounting
    assert accounting.prefilled_tokens == accounting.unique_prompt_tokens


async def test_a_failure_names_the_step_it_happened_in_and_is_told_once() -> None:
    @ff.flow
    async def fails(run: ff.Run) -> list[str]:
        async with run.chat() as chat:
            return await chat.map(explore, ["a", "b"], limit=1)

    broken = ff.ScriptedAnswer(error=ff.EngineError("EN999", "out of order"))
    backend = script({"explore[1]/draft": broken, "explore[*]/draft": "d"})
    async with ff.start(fails, backend=backend) as handle:
        facts = await facts_of(handle)
        with pytest.raises(ff.RunFailedError) as caught:
            await handle.result()

    assert ["explore[1]/draft"] == [one.path for one in caught.value.failures]
    assert ["explore[1]/draft"] == [fact.path for fact in facts if isinstance(fact, StepFailed)]
    assert StepCancelled("explore") in facts
    assert isinstance(facts[-1], RunFailed)
    assert 0 == backend.num_open


async def test_an_exception_of_the_authors_code_names_its_branch() -> None:
    async def divide(chat: ff.Chat, by: int) -> float:
        del chat
        return 1 / by

    @ff.flow
    async def fails(run: ff.Run) -> list[float]:
        async with run.chat() as chat:
            return await chat.map(divide, [1, 0])

    with pytest.raises(ff.RunFailedError, match="ZeroDivisionError") as caught:
        await ff.run(fails, backend=script({}))

    (failure,) = caught.value.failures
    assert ("divide[1]", "WF604") == (failure.path, failure.error.code)
    assert isinstance(failure.error.__cause__, ZeroDivisionError)


async def test_an_error_can_be_caught_by_its_type_around_branches() -> None:
    async def fail(chat: ff.Chat, item: int) -> int:
        del chat
        raise LookupError(item)

    @ff.flow
    async def catches(run: ff.Run) -> str:
        async with run.chat() as chat:
            try:
                await chat.map(fail, [1], name="parts")
            except LookupError:
                return "caught"
        return "not raised"

    assert "caught" == await ff.run(catches, backend=script({}))


async def test_a_flow_can_stop_with_a_reason() -> None:
    @ff.flow
    async def stops(run: ff.Run) -> str:
        del run
        raise ff.Stopped("rejected by reviewer")

    with pytest.raises(ff.RunFailedError, match="rejected by reviewer") as caught:
        await ff.run(stops, backend=script({}))

    assert isinstance(caught.value.__cause__, ff.Stopped)
    assert "stops" == caught.value.failures[0].path


async def test_a_cancelled_flow_ends_with_its_conversations_closed() -> None:
    gate = anyio.Event()
    backend = script({"*": ff.ScriptedAnswer("d", gate=gate)})

    @ff.flow
    async def waits(run: ff.Run) -> list[str]:
        async with run.chat() as chat:
            return await chat.map(explore, ["a", "b"])

    async with ff.start(waits, backend=backend) as handle:
        async for event in handle.events():
            if event.fact == StepStarted("explore[1]/draft", "gen"):
                handle.cancel()
        with pytest.raises(ff.RunCancelledError):
            await handle.result()
        facts = await facts_of(handle)

    assert isinstance(facts[-1], RunCancelled)
    assert 0 == backend.num_open


async def test_what_the_block_raises_comes_out_as_it_is_and_ends_the_run() -> None:
    backend = script({"*": ff.ScriptedAnswer("d", gate=anyio.Event())})

    with pytest.raises(KeyError, match="mine"):
        async with ff.start(questions, backend=backend, topic="t"):
            raise KeyError("mine")

    assert 0 == backend.num_open


async def test_unknown_options_of_a_generation_are_refused() -> None:
    @ff.flow
    async def typo(run: ff.Run) -> str:
        async with run.chat() as chat:
            return await chat.gen(max_token=5)  # type: ignore[call-overload,no-any-return]  # pyright: ignore[reportCallIssue]

    with pytest.raises(ff.RunFailedError, match="unknown option 'max_token'") as caught:
        await ff.run(typo, backend=script({}))

    assert "did you mean 'max_tokens'?" == caught.value.help


def test_a_step_name_is_a_plain_word() -> None:
    with pytest.raises(ff.WorkflowError, match="cannot be called 'a/b'"):
        Scope().path("a/b")


def test_run_sync_needs_no_event_loop() -> None:
    backend = script({"names": ["a", "b", "c"], "chosen": "a"})

    assert ["a", "b", "c", "a"] == ff.run_sync(questions, backend=backend, topic="t")


def requests_of(backend: ff.ScriptBackend) -> list[GenerateRequest]:
    """What the model was asked to write."""
    requests = [prompt.request for prompt in backend.prompts]
    return [request for request in requests if isinstance(request, GenerateRequest)]
