"""The checked, typed program: what the checker makes of a workflow file and the runtime runs.

Everything is frozen. A program has no undefined names, no cycles and no unknown keys: the checker
has seen to that, and the runtime trusts it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from flowforge.language.answer_specs import PLAIN_OPTIONS
from flowforge.language.join_policies import All, Vote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.errors import Location
    from flowforge.language.answer_specs import AnswerOptions, GrammarSpec, SamplingSpec
    from flowforge.language.expressions import Expression
    from flowforge.language.join_policies import Join, Pick
    from flowforge.language.remote_models import RemoteModel
    from flowforge.language.templates import Template
    from flowforge.language.types import Type

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"


@dataclass(frozen=True, slots=True)
class Required:
    """Marks an input without a default."""


@dataclass(frozen=True, slots=True)
class Input:
    """A value the caller gives. schema: JSON Schema the value must satisfy."""

    name: str
    type: Type
    schema: Mapping[str, JsonValue]
    default: JsonValue | Required
    location: Location


@dataclass(frozen=True, slots=True)
class SaidTurn:
    """A turn whose text is given."""

    role: Literal["user", "assistant"]
    text: Template


@dataclass(frozen=True, slots=True)
class WrittenTurn:
    """A turn that the model writes before the step's own answer.

    name: under which later texts of the step read it; None when nothing does.
    """

    name: str | None
    sampling: SamplingSpec
    json_schema: Mapping[str, JsonValue] | None = None
    choice: tuple[str, ...] | None = None
    regex: str | None = None
    grammar: GrammarSpec | None = None
    options: AnswerOptions = PLAIN_OPTIONS


Turn: TypeAlias = SaidTurn | WrittenTurn


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What the model may call before it answers.

    choice: whether it must call in its first turn; named: the one tool that it must call then, if
    not None. rounds: turns with calls, at most; on_rounds: what follows them. max_calls: in one
    turn. on_tool_error: whether the model is told of a call that failed, or the step fails.
    """

    tools: tuple[ToolSpec, ...]
    choice: Literal["auto", "required", "none"] = "auto"
    named: str | None = None
    rounds: int = 8
    max_calls: int = 16
    on_rounds: Literal["answer", "fail"] = "answer"
    on_tool_error: Literal["tell", "fail"] = "tell"


@dataclass(frozen=True, slots=True)
class Gen:
    """The model writes. from_step: the step whose conversation this one continues.

    json_schema: the answer is JSON under this schema and the step's value is the parsed JSON;
    choice: the answer is exactly one of these texts; regex: the whole answer matches; grammar: it
    is a text of the grammar; at most one of the four, and without them the value is free text.
    turns: what is said before `user`; an expression gives a list of objects, each with the texts
    `user`, `assistant` or both, in this order.
    prefill: how the answer begins; part of the value.
    model: the one that writes, None for the run's own; a step that continues another has the model
    of that one.
    n, pick: that many samples of one prompt, each a fork, joined by `pick`; a step that picks `All`
    has no conversation to continue, the others have that of the sample picked.
    tool_use: what it may call before it answers; None where it has no tools. tags: words by which
    a route may tell steps apart.
    """

    from_step: str | None
    system: Template | None
    user: Template | None
    sampling: SamplingSpec
    json_schema: Mapping[str, JsonValue] | None
    choice: tuple[str, ...] | None = None
    regex: str | None = None
    grammar: GrammarSpec | None = None
    options: AnswerOptions = PLAIN_OPTIONS
    turns: tuple[Turn, ...] | Expression = ()
    prefill: Template | None = None
    n: int = 1
    pick: Pick = field(default_factory=Vote)
    model: str | None = None
    tool_use: ToolUse | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """The orchestrator runs a tool of `Program.tools`; the value is what it returns.

    member: which tool of a server; None for a tool that is no server.
    """

    tool: str
    arguments: Mapping[str, Expression]
    member: str | None = None


@dataclass(frozen=True, slots=True)
class ForEach:
    """A block once per item, results in item order; at most `limit` items at a time."""

    variable: str
    items: Expression
    limit: int | None
    body: Block
    join: Join = field(default_factory=All)


@dataclass(frozen=True, slots=True)
class Loop:
    """A block again and again with values carried from round to round; the value is the carried.

    carried: the values before the first round, read in the outer scope. One round:
    `while_condition`, which sees the carried values; the body; `next`, which sees the carried
    values and the body's steps and gives the new ones (a name it leaves out keeps its value);
    `until`, which sees the body's steps and the new values. At most one condition is there;
    without any, the body runs exactly max_rounds times.
    on_max: what follows when max_rounds rounds did not satisfy the condition.
    """

    carried: Mapping[str, Expression]
    body: Block
    next: Mapping[str, Expression]
    until: Expression | None
    while_condition: Expression | None
    max_rounds: int
    on_max: Literal["keep", "fail"]


@dataclass(frozen=True, slots=True)
class If:
    """One of two blocks; null when the condition fails and there is no `otherwise`."""

    condition: Expression
    then: Block
    otherwise: Block | None


@dataclass(frozen=True, slots=True)
class Case:
    """The block for one value of a switch; compared as JSON."""

    value: JsonValue
    body: Block


@dataclass(frozen=True, slots=True)
class Switch:
    """The block of the case that equals the subject, else `default`.

    default None: the cases cover every value that the subject's type has.
    """

    subject: Expression
    cases: tuple[Case, ...]
    default: Block | None


@dataclass(frozen=True, slots=True)
class Parallel:
    """Named branches at once; branches do not see each other.

    A branch written as one step is a block of one step with the branch's name. Values: `All` an
    object by branch name, `Settle` such an object of `{ok, value, error}`, `Quorum` such an object
    of those that succeeded; the others the value of one branch.
    """

    branches: Mapping[str, Block]
    join: Join = field(default_factory=All)


@dataclass(frozen=True, slots=True)
class Run:
    """Another workflow as one step; the value is the object of its outputs.

    arguments: read in the outer scope. The inputs they leave out have defaults.
    """

    program: Program
    arguments: Mapping[str, Expression]


@dataclass(frozen=True, slots=True)
class Ask:
    """A person answers with a text, one of `choices` if there are any.

    show: a value to put before them. on_timeout: the answer after `timeout_s` without one; None
    fails the step then.
    """

    prompt: Template
    choices: tuple[str, ...]
    show: Expression | None
    timeout_s: float | None
    on_timeout: str | None


@dataclass(frozen=True, slots=True)
class Set:
    """A value, computed."""

    value: Expression


Verb: TypeAlias = Gen | Call | ForEach | Loop | If | Switch | Parallel | Run | Ask | Set


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a step is tried, and the wait before try k + 1: backoff_s · factor^(k-1) ≤ max_s.

    attempts: tries in all. jitter "full": a random part of that wait, from none to all of it.
    is_for_faults: whether failures that may pass later are tried again. codes: of failures that are
    tried again too.
    """

    attempts: int
    backoff_s: float
    factor: float
    max_s: float
    jitter: Literal["full", "none"]
    is_for_faults: bool = True
    codes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Catch:
    """What a step's value is when its last try has failed.

    variable: the name under which `body` sees the error {code, message, path, help}. codes: only
    errors whose code begins with one of these, all without any. A step that was caught has no
    conversation.
    """

    variable: str
    codes: tuple[str, ...]
    body: Block | Expression


@dataclass(frozen=True, slots=True)
class Step:
    """A name and exactly one verb.

    needs: names of sibling steps that must have a value, or a conversation, before this one starts;
    steps named inside a block's body count for the block, and so do those of `after`, `when` and
    the other keys. A sibling that was skipped or caught is ready like any other; a `gen` that
    continues it finds no conversation and is skipped too.
    when: false skips the step, whose value is then null. timeout_s: of one try.
    finally_block: runs once the step is done, failed, caught or cancelled, not when it was skipped;
    its result is dropped. priority: higher goes first. cache_s: how old a result of an equal step
    may be that is taken instead of running this one, infinite for any; None runs it always.
    """

    name: str
    verb: Verb
    needs: frozenset[str]
    type: Type
    location: Location
    when: Expression | None = None
    after: frozenset[str] = frozenset()
    timeout_s: float | None = None
    retry: Retry | None = None
    catch: Catch | None = None
    finally_block: Block | None = None
    priority: int = 0
    cache_s: float | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Steps under one lexical scope, in file order. result: the step or expression it yields."""

    steps: Mapping[str, Step]
    result: Expression


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server that speaks the Model Context Protocol: a process, or an address.

    command: a program and its arguments, spoken to over its standard streams; empty with a url.
    env_names: variables of the environment that the process gets, beside the usual few; env:
    others, with their values. token_env: the variable that holds the bearer token for a url;
    headers: others that go with each request. Both may hold a `Secret`.
    """

    command: tuple[str, ...] = ()
    url: str | None = None
    env_names: tuple[str, ...] = ()
    token_env: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that the file declares; its code is imported by the run, never by the check.

    It is one of three. function: "module:function". server: of which it stands for all tools, or
    for those that `only` names; they are called NAME__TOOL. program: a workflow, whose inputs are
    the arguments and whose outputs the result.
    description: what the model is told; "" for what the function, server or workflow says itself.
    max_result_chars: of a result that is told to a model; the rest is cut off.
    parameters: JSON Schema of its arguments as an object; None when the file does not say.
    grammars: of arguments that are texts. timeout_s: of one call. concurrency: calls at one time in
    a run. on_uncertain: what a resumed run does about a call with effect `write` that had begun,
    and of which nobody knows whether it did its work.
    """

    name: str
    function: str
    effect: Literal["read", "idempotent", "write"]
    parameters: Mapping[str, JsonValue] | None
    result: Type
    timeout_s: float | None
    concurrency: int | None
    location: Location
    on_uncertain: Literal["ask", "retry", "fail"] = "ask"
    description: str = ""
    server: McpServer | None = None
    program: Program | None = None
    only: tuple[str, ...] = ()
    max_result_chars: int = 20_000
    grammars: Mapping[str, GrammarSpec] = field(default_factory=dict["str", "GrammarSpec"])


@dataclass(frozen=True, slots=True)
class Output:
    """A named result of the program."""

    name: str
    value: Expression
    location: Location


@dataclass(frozen=True, slots=True)
class Program:
    """A whole workflow. types: named JSON Schemas, already written out wherever they are used.

    model: what the file's defaults say of the run's own model, which the run may overrule.
    secrets: variables of the environment whose values calls and servers are given. models: those
    of other servers that the file declares, by name.
    """

    name: str
    file: str
    inputs: Mapping[str, Input]
    steps: Mapping[str, Step]
    outputs: Mapping[str, Output]
    tools: Mapping[str, ToolSpec] = field(default_factory=dict[str, ToolSpec])
    types: Mapping[str, Mapping[str, JsonValue]] = field(
        default_factory=dict[str, "Mapping[str, JsonValue]"]
    )
    model: str | None = None
    secrets: tuple[str, ...] = ()
    models: Mapping[str, RemoteModel] = field(default_factory=dict[str, "RemoteModel"])
