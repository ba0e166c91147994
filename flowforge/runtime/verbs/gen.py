"""`gen`: the model writes, after the turns that are given and those it writes itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from flowforge.backends.protocol import GenerateRequest, GenerationDone, Sampling
from flowforge.errors import FlowForgeError, WorkflowError
from flowforge.language.join_policies import All, Likeliest
from flowforge.language.json_values import kind_of_value
from flowforge.language.program import Gen, SaidTurn, WrittenTurn
from flowforge.runtime.commands import Said, ToolResults
from flowforge.runtime.joins import Value, join_branches
from flowforge.runtime.layers import Layered
from flowforge.runtime.seeds import derived_seed
from flowforge.runtime.state import Failure
from flowforge.runtime.verbs.rules import (
    CallKey,
    Finish,
    Fork,
    Generate,
    Open,
    Own,
    Reaction,
    ReturnedValue,
    VerbRules,
)
from flowforge.runtime.verbs.tool_rounds import (
    Rounds,
    call_ended,
    next_round,
    offer_of,
    require_whole_calls,
    spec_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowforge.backends.protocol import ToolOffer
    from flowforge.grammars.tool_formats import ToolCall
    from flowforge.language.answer_specs import SamplingSpec
    from flowforge.language.program import JsonValue, Step
    from flowforge.language.templates import Template
    from flowforge.runtime.joins import End
    from flowforge.runtime.verbs.rules import Action, BranchEnd, Source, StepContext, WorkEnd

_Written: TypeAlias = "Gen | WrittenTurn"
"""What says how the model is to write: the step itself, for its answer, or one of `turns`."""


@dataclass(frozen=True, slots=True)
class GenMemory:
    """How far the turns have come.

    turn_idx: of the turn that the model writes now; the number of turns when it is the answer.
    names: values of turns that later texts read. ends, logprobs: of samples, by index. rounds: how
    far the calls of the answer have come.
    """

    turn_idx: int
    names: dict[str, JsonValue]
    ends: Mapping[int, End]
    logprobs: Mapping[int, float] = field(default_factory=dict)
    rounds: Rounds = field(default_factory=Rounds)


class GenRules(VerbRules[Gen]):
    """Renders prompts and asks turn by turn; under a constraint it takes only a valid value."""

    word = "gen"

    def continues(self, verb: Gen) -> frozenset[str]:
        """The step named by `from`."""
        return frozenset() if verb.from_step is None else frozenset({verb.from_step})

    def start(self, verb: Gen, context: StepContext) -> Reaction:
        """Render the prompt with the values in scope, as far as the first turn of the model."""
        if verb.from_step is not None:
            return _write_next(verb, context, GenMemory(-1, {}, {}), Fork(verb.from_step))
        system = None if verb.system is None else verb.system.render(context.scope)
        return _write_next(verb, context, GenMemory(-1, {}, {}), Open(system))

    def work_ended(self, verb: Gen, context: StepContext, memory: object, end: WorkEnd) -> Reaction:
        """Take the text, or the JSON value it spells; go on with the next turn, if there is one."""
        assert isinstance(memory, GenMemory)
        if isinstance(end.key, CallKey):
            result = end.result
            if isinstance(result, ReturnedValue):
                return _call_ended(verb, context, memory, end.key, result.value)
            assert isinstance(result, FlowForgeError)
            return _call_ended(verb, context, memory, end.key, result)
        if end.key is not None:
            return _pick(verb, context, _with_sample(memory, verb, context, end, end.key))
        turns = _turns(verb, context)
        if memory.turn_idx == len(turns):
            calls = _calls_of(context, end)
            if verb.tool_use is not None and calls:
                begun = next_round(verb.tool_use, memory.rounds, calls, context.path)
                return _follow(verb, context, memory, begun)
            value, done = _value_of(verb, context, end)
            return Reaction(memory, (Finish(value, done.finish_reason, done.usage),))
        turn = turns[memory.turn_idx]
        assert isinstance(turn, WrittenTurn)
        value, _ = _value_of(turn, context, end)
        names = memory.names if turn.name is None else {**memory.names, turn.name: value}
        return _write_next(verb, context, replace(memory, names=names), Own())

    def bodies(self, verb: Gen) -> Mapping[str, Mapping[str, Step]]:
        """The steps of the workflows that are its tools."""
        tools = () if verb.tool_use is None else verb.tool_use.tools
        return {tool.name: tool.program.steps for tool in tools if tool.program is not None}

    def fails_fast(self, verb: Gen) -> bool:
        """A workflow that fails as a tool fails the step only where the model is not told of it."""
        return verb.tool_use is None or verb.tool_use.on_tool_error == "fail"

    def branch_ended(
        self, verb: Gen, context: StepContext, memory: object, end: BranchEnd
    ) -> Reaction:
        """Take the outputs of a workflow that was called as a tool."""
        assert isinstance(memory, GenMemory)
        assert verb.tool_use is not None
        idx = int(end.key)
        key = CallKey(idx, memory.rounds.calls[idx - memory.rounds.first].name)
        if end.failures:
            return _call_ended(verb, context, memory, key, end.failures[0].error)
        program = spec_of(key.name, verb.tool_use).program
        assert program is not None
        outputs: dict[str, JsonValue] = {
            name: output.value.evaluate(end.scope) for name, output in program.outputs.items()
        }
        return _call_ended(verb, context, memory, key, outputs)


def _call_ended(
    verb: Gen,
    context: StepContext,
    memory: GenMemory,
    key: CallKey,
    result: JsonValue | FlowForgeError,
) -> Reaction:
    assert verb.tool_use is not None
    return _follow(
        verb, context, memory, call_ended(verb.tool_use, memory.rounds, key, result, context.path)
    )


def _follow(
    verb: Gen, context: StepContext, memory: GenMemory, step: tuple[Rounds, tuple[Action, ...]]
) -> Reaction:
    """Go on with the calls; with the results of all of them, the model writes again."""
    rounds, actions = step
    memory = replace(memory, rounds=rounds)
    if not rounds.is_complete:
        return Reaction(memory, actions)
    purpose = f"round {rounds.num_rounds}"
    request = _request(verb, context, context.path, purpose)
    request = replace(request, offer=_offer(verb, memory, context))
    said = (ToolResults(rounds.in_order),)
    return Reaction(memory, (*actions, Generate(Own(), said, request, model=verb.model)))


def _write_next(verb: Gen, context: StepContext, memory: GenMemory, source: Source) -> Reaction:
    """Ask for the next turn that the model writes, with all that is said before it."""
    scope = Layered(memory.names, context.scope) if memory.names else context.scope
    turns = _turns(verb, context)
    said: list[Said] = []
    idx = memory.turn_idx + 1
    while idx < len(turns):
        turn = turns[idx]
        if isinstance(turn, WrittenTurn):
            request = _request(turn, context, context.path, f"turn {idx}")
            offer = _offer(verb, memory, context)
            if offer is not None:
                # Told of in this turn and called in the last: the prompt has them at its beginning.
                request = replace(request, offer=replace(offer, choice="none"))
            generate = Generate(source, tuple(said), request, model=verb.model)
            return Reaction(replace(memory, turn_idx=idx), (generate,))
        said.append(_said(turn, scope))
        idx += 1
    if verb.user is not None:
        said.append(_rendered("user", verb.user, scope))
    prefill = "" if verb.prefill is None else verb.prefill.render(scope)
    memory = replace(memory, turn_idx=len(turns))
    if verb.n == 1:
        offer = _offer(verb, memory, context)
        request = _request(verb, context, context.path, "answer", prefill, offer)
        return Reaction(memory, (Generate(source, tuple(said), request, model=verb.model),))
    requests = (_sample_request(verb, context, idx, prefill) for idx in range(verb.n))
    samples = (Generate(source, tuple(said), r, idx, verb.model) for idx, r in enumerate(requests))
    return Reaction(memory, tuple(samples))


def _offer(verb: Gen, memory: GenMemory, context: StepContext) -> ToolOffer | None:
    use, offered = verb.tool_use, context.offered
    if use is None:
        return None
    tools = tuple(one for spec in use.tools for one in offered.get(spec.location, ()))
    return offer_of(use, memory.rounds, tools)


def _pick(verb: Gen, context: StepContext, memory: GenMemory) -> Reaction:
    failures = [end for end in memory.ends.values() if isinstance(end, Failure)]
    if failures and (isinstance(verb.pick, All) or len(failures) == verb.n):
        raise failures[0].error
    if isinstance(verb.pick, Likeliest):
        return _pick_likeliest(verb, memory)
    joined = join_branches(verb.pick, range(verb.n), memory.ends, context.scope)
    if joined is None:
        return Reaction(memory, ())
    if isinstance(verb.pick, All):
        values = [value for _, value in joined.values]
        return Reaction(memory, (Finish(values, has_conversation=False),))
    key, value = joined.values[0]
    return Reaction(memory, (Finish(value, key=key),))


def _pick_likeliest(verb: Gen, memory: GenMemory) -> Reaction:
    if len(memory.ends) < verb.n:
        return Reaction(memory, ())
    values = {idx: end.value for idx, end in memory.ends.items() if isinstance(end, Value)}
    likeliest = max(sorted(values), key=lambda idx: memory.logprobs[idx])
    return Reaction(memory, (Finish(values[likeliest], key=likeliest),))


def _with_sample(
    memory: GenMemory, verb: Gen, context: StepContext, end: WorkEnd, idx: int
) -> GenMemory:
    try:
        value, done = _value_of(verb, context, end)
    except FlowForgeError as error:
        failure = Failure(f"{context.path}[{idx}]", error)
        return replace(memory, ends={**memory.ends, idx: failure})
    memory = replace(memory, ends={**memory.ends, idx: Value(value)})
    if not isinstance(verb.pick, Likeliest):
        return memory
    assert done.mean_logprob is not None, "a backend says how likely an answer is, when asked"
    return replace(memory, logprobs={**memory.logprobs, idx: done.mean_logprob})


def _calls_of(context: StepContext, end: WorkEnd) -> tuple[ToolCall, ...]:
    """The calls of an answer. Raises what it failed with, WF501 when it was cut off within them."""
    done = end.result
    if isinstance(done, FlowForgeError):
        raise done
    assert isinstance(done, GenerationDone)
    require_whole_calls(context.path, done)
    return done.calls


def _value_of(
    written: _Written, context: StepContext, end: WorkEnd
) -> tuple[JsonValue, GenerationDone]:
    done = end.result
    if isinstance(done, FlowForgeError):
        raise done
    assert isinstance(done, GenerationDone)
    path = context.path if end.key is None else f"{context.path}[{end.key}]"
    if _is_constrained(written) and done.finish_reason == "length":
        raise _cut_off(path, done)
    if written.json_schema is not None:
        return context.validate(done.text, written.json_schema), done
    if written.choice is not None and done.text not in written.choice:
        raise WorkflowError(
            "WF513",
            f"step {path!r} answered {_shown(done.text)}, expected one of "
            + ", ".join(map(repr, written.choice)),
        )
    if written.regex is not None and not _matches(written.regex, done.text):
        raise WorkflowError(
            "WF513", f"step {path!r} answered {_shown(done.text)}, which its regex does not match"
        )
    return done.text if written.grammar is None else done.parsed, done


def _matches(regex: str, text: str) -> bool:
    from flowforge.grammars import matches_regex

    return matches_regex(regex, text)


def _is_constrained(written: _Written) -> bool:
    forms = (written.json_schema, written.choice, written.regex, written.grammar)
    return any(form is not None for form in forms)


def _request(
    written: _Written,
    context: StepContext,
    path: str,
    purpose: str,
    prefill: str = "",
    offer: ToolOffer | None = None,
) -> GenerateRequest:
    return GenerateRequest(
        sampling=_sampling(written.sampling, context, f"{path} {purpose}"),
        json_schema=written.json_schema,
        choice=written.choice,
        regex=written.regex,
        grammar=written.grammar,
        options=written.options,
        prefill=prefill,
        offer=offer,
        label=path,
    )


def _sample_request(verb: Gen, context: StepContext, idx: int, prefill: str) -> GenerateRequest:
    path = f"{context.path}[{idx}]"
    request = _request(verb, context, path, "answer")
    if verb.sampling.seed is not None:
        # One seed for all samples would give one answer n times.
        seed = derived_seed(verb.sampling.seed, f"sample {idx}, try {context.attempt}")
        request = replace(request, sampling=replace(request.sampling, seed=seed))
    return replace(request, prefill=prefill, with_logprob=isinstance(verb.pick, Likeliest))


def _sampling(spec: SamplingSpec, context: StepContext, purpose: str) -> Sampling:
    seed = derived_seed(context.seed, purpose) if spec.seed is None else spec.seed
    return Sampling(
        max_tokens=spec.max_tokens,
        temperature=spec.temperature,
        top_p=spec.top_p,
        top_k=spec.top_k,
        seed=None if spec.temperature == 0 else seed,
        stop=spec.stop,
    )


def _turns(verb: Gen, context: StepContext) -> Sequence[SaidTurn | WrittenTurn | Said]:
    """The turns before `user`; an expression is evaluated again, and gives the same each time."""
    if isinstance(verb.turns, tuple):
        return verb.turns
    listed = verb.turns.evaluate(context.scope)
    if not isinstance(listed, list):
        raise _bad_turns(context, f"they are {kind_of_value(listed)}, expected a list")
    return [said for idx, entry in enumerate(listed) for said in _said_of(entry, idx, context)]


def _said_of(entry: JsonValue, idx: int, context: StepContext) -> list[Said]:
    if not isinstance(entry, dict):
        raise _bad_turns(context, f"item {idx} is {kind_of_value(entry)}, expected an object")
    said: list[Said] = []
    for role in ("user", "assistant"):
        text = entry.get(role)
        if isinstance(text, str):
            said.append(Said(role, text))
        elif text is not None:
            raise _bad_turns(context, f"{role!r} of item {idx} is {kind_of_value(text)}")
    if not said:
        raise _bad_turns(context, f"item {idx} has neither 'user' nor 'assistant'")
    return said


def _bad_turns(context: StepContext, reason: str) -> WorkflowError:
    return WorkflowError(
        "WF514",
        f"the turns of step {context.path!r} cannot be used: {reason}",
        help="give a list of objects with the texts 'user', 'assistant' or both",
    )


def _said(turn: SaidTurn | Said, scope: Mapping[str, JsonValue]) -> Said:
    return turn if isinstance(turn, Said) else _rendered(turn.role, turn.text, scope)


def _rendered(
    role: Literal["user", "assistant"], template: Template, scope: Mapping[str, JsonValue]
) -> Said:
    texts: list[str] = []
    values: list[tuple[int, int]] = []
    end = 0
    for text, is_value in template.render_parts(scope):
        start, end = end, end + len(text)
        texts.append(text)
        if is_value and text:
            values.append((start, end))
    return Said(role, "".join(texts), tuple(values))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def _cut_off(path: str, done: GenerationDone) -> WorkflowError:
    return WorkflowError(
        "WF501",
        f"step {path!r} must answer under a constraint and was cut off after "
        f"{done.usage.generated_tokens} tokens, before its answer was complete",
        help="raise max_tokens in the step's gen, or bound what it may say (maxItems, maxLength)",
    )
