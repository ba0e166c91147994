"""Programs built in a line or two, and a stage that plays the shell of a run, checking commands."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from flowforge.backends.protocol import GenerationDone, Usage
from flowforge.errors import FlowForgeError, Location
from flowforge.language.answer_specs import SamplingSpec
from flowforge.language.expression_nodes import Constant
from flowforge.language.expression_parser import parse_expression
from flowforge.language.expressions import Expression
from flowforge.language.program import (
    Ask,
    Block,
    Call,
    ForEach,
    Gen,
    If,
    Loop,
    Output,
    Parallel,
    Program,
    Set,
    Step,
    ToolSpec,
)
from flowforge.language.templates import Template
from flowforge.language.types import AnyType
from flowforge.runtime.commands import (
    Answered,
    Begin,
    ExpectPrompt,
    ExpectUse,
    Failed,
    Foresee,
    GiveUp,
    Opened,
    Prepare,
    ReleaseConversation,
    Returned,
    Said,
    StartCall,
    StartGeneration,
    StartQuestion,
    StartTimer,
    Stop,
    Stopped,
    StopTimer,
    TimerFired,
)
from flowforge.runtime.core import advance, new_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flowforge.language.join_policies import Join
    from flowforge.language.program import JsonValue, Verb
    from flowforge.runtime.commands import Outcome, Report, Turn
    from flowforge.runtime.events import Fact
    from flowforge.runtime.state import RunState

HERE = Location("test.yaml", 1, 1)


def expr(text: str) -> Expression:
    """An expression from its text."""
    return Expression(text, parse_expression(text), AnyType(), frozenset(), HERE)


def template(text: str) -> Template:
    """A template from text with `${ … }`."""
    first, *rest = text.split("${")
    parts: list[str | Expression] = [first]
    for piece in rest:
        inside, _, after = piece.partition("}")
        parts += [expr(inside.strip()), after]
    return Template(tuple(part for part in parts if part != ""), HERE)


def step(name: str, verb: Verb, *needs: str, **keys: Any) -> Step:
    """A step. needs: siblings it waits for. keys: any other field of a step."""
    return Step(name, verb, frozenset(needs), AnyType(), HERE, **keys)


def gen(
    name: str,
    *needs: str,
    user: str | None = "go",
    from_step: str | None = None,
    system: str | None = None,
    keys: Mapping[str, Any] | None = None,
    **options: Any,
) -> Step:
    """A `gen` step. options: fields of `Gen`; keys: of the step."""
    options = {"sampling": SamplingSpec(), "json_schema": None, **options}
    verb = Gen(
        from_step=from_step,
        system=None if system is None else template(system),
        user=None if user is None else template(user),
        **options,
    )
    return step(name, verb, *needs, **(keys or {}))


def block(*steps: Step, result: str | None = None) -> Block:
    """A block that yields `result`, or its last step."""
    return Block({one.name: one for one in steps}, expr(result or steps[-1].name))


def value(constant: Any) -> Expression:
    """An expression that is a constant, also a list, however large."""
    return Expression("…", Constant(0, 0, constant), AnyType(), frozenset(), HERE)


def for_each(
    name: str, items: str | list[JsonValue], body: Block, *needs: str, **options: Any
) -> Step:
    """A `for` over `item`. options: limit, join; others are keys of the step."""
    limit, join = options.pop("limit", None), options.pop("join", None)
    verb = ForEach("item", expr(items) if isinstance(items, str) else value(items), limit, body)
    return step(name, verb if join is None else replace(verb, join=join), *needs, **options)


def parallel(name: str, *needs: str, join: Join | None = None, **branches: Block | Step) -> Step:
    """A `parallel`; a branch given as a step is a block of that step."""
    blocks = {key: one if isinstance(one, Block) else block(one) for key, one in branches.items()}
    verb = Parallel(blocks) if join is None else Parallel(blocks, join)
    return step(name, verb, *needs)


def loop(
    name: str,
    body: Block,
    *needs: str,
    carried: Mapping[str, str] | None = None,
    following: Mapping[str, str] | None = None,
    until: str | None = None,
    while_: str | None = None,
    max_rounds: int = 3,
    on_max: Any = "keep",
    **keys: Any,
) -> Step:
    """A `loop`; expressions are given as texts."""
    verb = Loop(
        carried={key: expr(text) for key, text in (carried or {}).items()},
        body=body,
        next={key: expr(text) for key, text in (following or {}).items()},
        until=None if until is None else expr(until),
        while_condition=None if while_ is None else expr(while_),
        max_rounds=max_rounds,
        on_max=on_max,
    )
    return step(name, verb, *needs, **keys)


def if_(name: str, condition: str, then: Block, otherwise: Block | None, *needs: str) -> Step:
    """An `if`."""
    return step(name, If(expr(condition), then, otherwise), *needs)


def set_(name: str, value: str, *needs: str, **keys: Any) -> Step:
    """A `set`."""
    return step(name, Set(expr(value)), *needs, **keys)


def call(
    name: str, tool: str, /, *needs: str, keys: Mapping[str, Any] | None = None, **given: str
) -> Step:
    """A `call`. given: arguments as texts of expressions."""
    arguments = {key: expr(text) for key, text in given.items()}
    return step(name, Call(tool, arguments), *needs, **(keys or {}))


def ask(name: str, *needs: str, keys: Mapping[str, Any] | None = None, **options: Any) -> Step:
    """An `ask` for 'Well?'. options: fields of `Ask`."""
    fields: dict[str, Any] = {"choices": (), "show": None, "timeout_s": None, "on_timeout": None}
    return step(name, Ask(template("Well?"), **{**fields, **options}), *needs, **(keys or {}))


def tool(name: str, function: str, line: int = 1, **options: Any) -> ToolSpec:
    """A declared tool. line: where; two tools never stand in one line."""
    fields: dict[str, Any] = {
        "effect": "read", "parameters": None, "result": AnyType(), "timeout_s": None,
        "concurrency": None, "location": Location("test.yaml", line, 1),
    }  # fmt: skip
    return ToolSpec(name, function, **{**fields, **options})


def program(*steps: Step, tools: tuple[ToolSpec, ...] = (), **outputs: str) -> Program:
    """A program. outputs: expressions as texts; without any, each step is an output."""
    texts = outputs or {one.name: one.name for one in steps}
    return Program(
        "test",
        "test.yaml",
        {},
        {one.name: one for one in steps},
        {name: Output(name, expr(text), HERE) for name, text in texts.items()},
        {one.name: one for one in tools},
    )


def never(text: str, schema: Mapping[str, JsonValue]) -> JsonValue:
    """A validator for programs without JSON Schemas."""
    raise AssertionError(f"no step has a schema, yet {text!r} was validated under {schema}")


def answer_all(command: Work) -> JsonValue | FlowForgeError:
    """What every model, tool and person of these tests says, unless a test has it otherwise."""
    return f"{command.path} answers"


Work = StartGeneration | StartCall | StartQuestion


@dataclass
class Stage:
    """Plays the shell: checks every command against what a backend would allow.

    choose: which of so many things that may happen now happens next. Time passes only when nothing
    is in flight: then the earliest timer fires.
    """

    program: Program
    answer: Callable[[Work], JsonValue | FlowForgeError] = answer_all
    choose: Callable[[int], int] = lambda num: 0 * num
    seed: int = 0
    state: RunState = field(init=False)
    now_s: float = 0.0
    facts: list[Fact] = field(default_factory=list["Fact"])
    waiting: list[StartGeneration] = field(default_factory=list[StartGeneration])
    running: list[Work] = field(default_factory=list["Work"])
    stopping: set[str] = field(default_factory=set[str])
    timers: list[tuple[float, str]] = field(default_factory=list["tuple[float, str]"])
    history: dict[str, str] = field(default_factory=dict[str, str])
    closed: set[str] = field(default_factory=set[str])
    foreseen: dict[str, StartGeneration] = field(default_factory=dict[str, StartGeneration])
    num_taken: int = 0
    prepared: list[Prepare] = field(default_factory=list[Prepare])
    outcome: Outcome | None = None

    def __post_init__(self) -> None:
        self.state = new_state(self.program, {}, never, seed=self.seed)

    def run(self) -> Outcome:
        """From the beginning to the end."""
        self.tell(Begin())
        return self.finish()

    def finish(self) -> Outcome:
        """Go on to the end."""
        while self.outcome is None:
            self.step()
        return self.outcome

    def step(self) -> None:
        """One thing happens: a conversation opens, a work ends, or time passes."""
        num = len(self.waiting) + len(self.running)
        if num == 0:
            assert self.timers, "nothing is in flight and the run has no end"
            self.now_s, timer = heapq.heappop(self.timers)
            self.tell(TimerFired(timer))
            return
        idx = self.choose(num)
        if idx < len(self.waiting):
            self._open(self.waiting.pop(idx))
        else:
            self._end(self.running.pop(idx - len(self.waiting)))

    def end(self, path: str) -> None:
        """The work of a path ends, opened first where it has to be."""
        for command in [one for one in self.waiting if one.path == path]:
            self.waiting.remove(command)
            self._open(command)
        for work in [one for one in self.running if one.path == path]:
            self.running.remove(work)
            self._end(work)

    def in_flight(self) -> list[str]:
        """Paths of the works that have not ended."""
        return [one.path for one in [*self.waiting, *self.running]]

    def tell(self, report: Report) -> None:
        """Hand a report to the core and take its commands."""
        assert self.outcome is None, "the core decided after the end"
        decision = advance(self.state, report)
        self.facts += decision.facts
        for command in decision.commands:
            self._take(command)
        self.outcome = decision.outcome
        if self.outcome is not None:
            assert not self.waiting, "a generation starts after the end"
            assert not self.running, "a work outlives the run"
            assert not self.timers, "a timer outlives the run"
            assert self.closed == set(self.history), "a conversation outlives the run"
            assert not self.foreseen, "what was foreseen outlives the run"

    def _take(self, command: Any) -> None:
        match command:
            case StartGeneration(path):
                self.waiting.append(command)
                if self.foreseen.pop(path, command) is not command:
                    self.num_taken += 1
            case Foresee(generation):
                assert generation.path not in self.foreseen, "a work was foreseen twice"
                assert generation.continues not in self.closed, "what was released is foreseen"
                self.foreseen[generation.path] = generation
            case GiveUp(path):
                del self.foreseen[path]
            case Prepare(path, continues):
                assert path not in self.history, "what has begun is prepared"
                assert continues is None or continues in self.history.keys() - self.closed
                self.prepared.append(command)
            case StartCall() | StartQuestion():
                self.running.append(command)
            case Stop(path):
                assert path in self.in_flight()
                self.stopping.add(path)
            case ReleaseConversation(path):
                assert path not in self.closed, f"{path} was released twice"
                assert path not in self.in_flight(), f"{path} was released while it is written"
                # One that was stopped before it opened has nothing to close.
                if path in self.history:
                    self.closed.add(path)
            case ExpectPrompt(path):
                assert path not in self.history, "what has begun is expected"
            case ExpectUse(path, num_steps):
                assert path in self.history, f"{path} is expected and was never open"
                assert path not in self.closed, f"{path} is expected and is closed"
                assert num_steps >= 0
            case StartTimer(timer, delay_s):
                heapq.heappush(self.timers, (self.now_s + delay_s, timer))
            case StopTimer(timer):
                self.timers = [one for one in self.timers if one[1] != timer]
                heapq.heapify(self.timers)
            case _:
                raise AssertionError(f"unknown command {command!r}")

    def _open(self, command: StartGeneration) -> None:
        path, source = command.path, command.continues
        if path in self.stopping:
            self._stopped(path)
            return
        before = ""
        if source is not None:
            assert source not in self.closed, f"{path} forks what was released"
            before = self.history[source]
        said = "".join(f"{_shown(turn)}\n" for turn in command.said)
        self.history[path] = f"{before}{said}"
        self.running.append(command)
        if source != path:
            self.tell(Opened(path))

    def _end(self, work: Work) -> None:
        result = self.answer(work)
        if work.path in self.stopping:
            self._stopped(work.path)
        elif isinstance(result, FlowForgeError):
            self.tell(Failed(work.path, result))
        elif isinstance(work, StartGeneration):
            assert isinstance(result, str)
            self.history[work.path] += f"<{result}>"
            self.tell(Answered(work.path, GenerationDone(result, "stop", Usage())))
        else:
            self.tell(Returned(work.path, result))

    def _stopped(self, path: str) -> None:
        self.stopping.discard(path)
        self.tell(Stopped(path))


def _shown(turn: Turn) -> str:
    return f"{turn.role}: {turn.text}" if isinstance(turn, Said) else f"tools: {turn.results}"
