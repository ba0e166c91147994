"""The rounds of a `gen` with tools: the model calls, the calls run, the results go back to it.

Calls of one turn run side by side, unless one of them changes something outside: then they run one
after another, in the order that the model wrote them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flowforge.backends.protocol import ToolOffer
from flowforge.errors import FlowForgeError, WorkflowError
from flowforge.language.inputs import resolve_inputs
from flowforge.runtime.events import ToolCalled, ToolReturned
from flowforge.runtime.verbs.rules import CallKey, Invoke, OpenBranch, Tell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.backends.protocol import GenerationDone
    from flowforge.grammars.tool_formats import ToolCall, ToolChoice, ToolDefinition
    from flowforge.language.program import JsonValue, ToolSpec, ToolUse
    from flowforge.runtime.verbs.rules import Action

_MAX_ERROR_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Rounds:
    """How far the calls of a step have come.

    num_rounds: turns with calls so far, this one included. calls: of the last of them. first: the
    number of its first call in the step. results: what is told of them, by number.
    """

    num_rounds: int = 0
    calls: tuple[ToolCall, ...] = ()
    first: int = 0
    results: Mapping[int, JsonValue] = field(default_factory=dict["int", "JsonValue"])

    @property
    def is_complete(self) -> bool:
        """Whether every call of the turn has its result."""
        return len(self.results) == len(self.calls)

    @property
    def in_order(self) -> tuple[JsonValue, ...]:
        """The results, in the order of the calls."""
        return tuple(self.results[self.first + idx] for idx in range(len(self.calls)))


def offer_of(use: ToolUse, rounds: Rounds, tools: tuple[ToolDefinition, ...]) -> ToolOffer:
    """What the model may call in its next turn. tools: what it is told of `use.tools`."""
    return ToolOffer(tools, _choice(use, rounds), use.max_calls)


def require_whole_calls(path: str, done: GenerationDone) -> None:
    """Raise WorkflowError WF501 for a turn that was cut off within a call, or before one."""
    if done.cuts_call:
        raise WorkflowError(
            "WF501",
            f"step {path!r} was cut off after {done.usage.generated_tokens} tokens, within a call "
            "of a tool",
            help="raise max_tokens, which is of each turn, or bound its calls by 'parallel'",
        )


def next_round(
    use: ToolUse, rounds: Rounds, calls: tuple[ToolCall, ...], path: str
) -> tuple[Rounds, tuple[Action, ...]]:
    """Begin with the calls that the model has written. path: of the step's try.

    Raises WorkflowError WF424.
    """
    if rounds.num_rounds == use.rounds:
        raise WorkflowError(
            "WF424",
            f"step {path!r} called tools in {use.rounds} turns and wants to again",
            help="raise 'rounds', or let it answer with what it has: on_rounds: answer",
        )
    first = rounds.first + len(rounds.calls)
    begun = Rounds(rounds.num_rounds + 1, calls, first)
    return _go_on(use, begun, path, started=0)


def call_ended(
    use: ToolUse,
    rounds: Rounds,
    key: CallKey,
    result: JsonValue | FlowForgeError,
    path: str,
) -> tuple[Rounds, tuple[Action, ...]]:
    """Take what a call came to; begin the next one where they run one after another.

    Raises the call's error where the step is to fail by it.
    """
    spec = spec_of(key.name, use)
    is_error = isinstance(result, FlowForgeError)
    if isinstance(result, FlowForgeError):
        if use.on_tool_error == "fail":
            raise result
        result = {"error": result.message[:_MAX_ERROR_CHARS]}
    told = bounded(result, spec.max_result_chars)
    taken = replace(rounds, results={**rounds.results, key.idx: told})
    fact = Tell(ToolReturned(call_path(path, key), key.name, told, is_error))
    if not _is_serial(use, rounds):
        return taken, (fact,)
    taken, actions = _go_on(use, taken, path, started=len(taken.results))
    return taken, (fact, *actions)


def call_path(path: str, key: CallKey) -> str:
    """The path of a call of the try `path`."""
    return f"{path}/{key.name}[{key.idx}]"


def spec_of(name: str, use: ToolUse) -> ToolSpec:
    """The declaration behind a tool's name as the model knows it."""
    by_name = {spec.name: spec for spec in use.tools}
    return by_name[name] if name in by_name else by_name[name.partition("__")[0]]


def bounded(value: JsonValue, max_chars: int) -> JsonValue:
    """The value, or as much of its text as the limit allows and a word on the rest."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= max_chars:
        return value
    return f"{text[:max_chars]} … ({len(text) - max_chars:,} more characters were cut off)"


def _choice(use: ToolUse, rounds: Rounds) -> ToolChoice:
    from flowforge.grammars.tool_formats import NamedTool

    if rounds.num_rounds == use.rounds and use.on_rounds == "answer":
        return "none"
    if rounds.num_rounds == 0:
        return use.choice if use.named is None else NamedTool(use.named)
    # A model that had to call once would otherwise have to call for ever.
    return "none" if use.choice == "none" else "auto"


def _is_serial(use: ToolUse, rounds: Rounds) -> bool:
    return any(spec_of(call.name, use).effect == "write" for call in rounds.calls)


def _go_on(
    use: ToolUse, rounds: Rounds, path: str, *, started: int
) -> tuple[Rounds, tuple[Action, ...]]:
    """Begin the next call, or all where they run side by side; some fail before they begin."""
    actions: list[Action] = []
    last = started + 1 if _is_serial(use, rounds) else len(rounds.calls)
    for idx in range(started, min(last, len(rounds.calls))):
        call = rounds.calls[idx]
        key = CallKey(rounds.first + idx, call.name)
        actions.append(Tell(ToolCalled(call_path(path, key), call.name, dict(call.arguments))))
        try:
            actions.append(_start(call, key, use))
        except FlowForgeError as error:
            rounds, more = call_ended(use, rounds, key, error, path)
            actions += more
    return rounds, tuple(actions)


def _start(call: ToolCall, key: CallKey, use: ToolUse) -> Action:
    spec = spec_of(call.name, use)
    if spec.program is None:
        member = call.name.partition("__")[2] if spec.server is not None else None
        return Invoke(spec, call.arguments, key, member)
    inputs = resolve_inputs(spec.program, dict(call.arguments))
    segment = call_path("", key)
    return OpenBranch(
        f"{key.idx}", segment, spec.name, {"inputs": inputs}, is_last=True, tools=spec.program.tools
    )
