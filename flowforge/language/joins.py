"""Join policies: how the values of branches become the value of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from flowforge.language.fields import check_keys, integer_of, place_of
from flowforge.language.join_policies import All, Best, First, Quorum, Settle, Vote
from flowforge.language.scope import Binding, Names
from flowforge.language.types import (
    BOOLEAN,
    NULL,
    NUMBER,
    STRING,
    Array,
    Field,
    Object,
    display_type,
    join_types,
    may_be,
    may_be_null,
)
from flowforge.language.value_drafts import expression_of, outside
from flowforge.language.yaml_nodes import MappingNode, ScalarNode, kind_of_node

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flowforge.language.drafts import Context
    from flowforge.language.join_policies import Join
    from flowforge.language.source import Span
    from flowforge.language.types import Type
    from flowforge.language.value_drafts import ValueDraft
    from flowforge.language.yaml_nodes import Entry

ERROR_TYPE = Object(
    (
        Field("code", STRING, True),
        Field("message", STRING, True),
        Field("path", STRING, True),
        Field("help", join_types((STRING, NULL)), True),
    ),
    None,
)
# The name under which `best` sees the value that it scores.
SCORED = "value"
_WORD_TO_JOIN: Mapping[str, Join] = {
    "all": All(), "settle": Settle(), "first": First(), "vote": Vote(),
}  # fmt: skip
_MAX_QUORUM = 100_000
_SCORE_EXAMPLE = "${ value.score }"
_FORMS = "write all, settle, first, vote, { quorum: 2 } or { best: '${ value.score }' }"


@dataclass(frozen=True, slots=True)
class BestDraft:
    """`best`, its score before names are resolved."""

    score: ValueDraft

    def resolve(self, value: Type, names: Names, context: Context) -> Best:
        """The policy. value: the type of what is scored."""
        if names.find(SCORED) is not None:
            message = (
                f"'best' scores each branch as {SCORED!r}, which is the name of something here"
            )
            context.report.error("WF106", message, self.score.span, "rename the other one")
        inside = Names({SCORED: Binding("variable", value)}, names)
        score = self.score.typed(inside, context.report)
        if not may_be(score.type, NUMBER) or may_be_null(score.type):
            message = f"'best' takes a number, got {display_type(score.type)}"
            context.report.error("WF206", message, self.score.span, "the highest wins")
        return Best(score)


JoinDraft: TypeAlias = "All | Settle | First | Quorum | Vote | BestDraft"


def parse_join(entry: Entry | None, context: Context) -> JoinDraft:
    """What `join:` says; `all` without it, or when it is broken."""
    if entry is None:
        return All()
    node = entry.value
    if isinstance(node, ScalarNode) and node.text in _WORD_TO_JOIN:
        join = _WORD_TO_JOIN[node.text]
        assert not isinstance(join, Best)
        return join
    if isinstance(node, MappingNode) and len(node.entries) == 1:
        check_keys(node, ("quorum", "best"), (), "'join'", context.report)
        return _parse_join_mapping(node, context)
    shown = repr(node.text[:40]) if isinstance(node, ScalarNode) else kind_of_node(node)
    message = f"'join' must be a policy, got {shown}"
    context.report.error("WF107", message, place_of(entry, context.report), _FORMS)
    return All()


def names_of_join(join: JoinDraft) -> Iterator[tuple[str, Span]]:
    """The names from outside that the policy reads."""
    if isinstance(join, BestDraft):
        yield from outside(join.score.names(), (SCORED,))


def resolve_join(join: JoinDraft, value: Type, names: Names, context: Context) -> Join:
    """The policy. value: the type of one branch's value."""
    return join.resolve(value, names, context) if isinstance(join, BestDraft) else join


def type_of_list(join: Join, value: Type) -> Type:
    """The type of a join over a list of branches that all have one type."""
    match join:
        case All() | Quorum():
            return Array(value)
        case Settle():
            return Array(settled(value))
        case First() | Best() | Vote():
            return value


def type_of_branches(join: Join, values: Mapping[str, Type]) -> Type:
    """The type of a join over named branches."""
    match join:
        case All():
            return Object(tuple(Field(name, one, True) for name, one in values.items()), None)
        case Quorum():
            return Object(tuple(Field(name, one, False) for name, one in values.items()), None)
        case Settle():
            fields = (Field(name, settled(one), True) for name, one in values.items())
            return Object(tuple(fields), None)
        case First() | Best() | Vote():
            return join_types(values.values())


def settled(value: Type) -> Type:
    """The type of a branch's outcome under `settle`."""
    return Object(
        (
            Field("ok", BOOLEAN, True),
            Field("value", join_types((value, NULL)), True),
            Field("error", join_types((ERROR_TYPE, NULL)), True),
        ),
        None,
    )


def check_reach(join: JoinDraft, entry: Entry | None, num_branches: int, context: Context) -> None:
    """Report a policy that so many branches can never meet."""
    match join:
        case All() | Settle():
            return
        case Quorum(count):
            policy, num_needed = f"a quorum of {count}", count
        case First() | Vote() | BestDraft():
            word = {First: "first", Vote: "vote", BestDraft: "best"}[type(join)]
            policy, num_needed = repr(word), 1
    if entry is not None and num_needed > num_branches:
        noun = "branch" if num_branches == 1 else "branches"
        message = f"{policy} can never be met by {num_branches} {noun}"
        help = "add branches or items, or ask for fewer"
        context.report.error("WF108", message, place_of(entry, context.report), help)


def _parse_join_mapping(node: MappingNode, context: Context) -> Quorum | BestDraft | All:
    quorum: Literal["quorum"] = "quorum"
    count = integer_of(node.entry(quorum), context.report, 1, _MAX_QUORUM)
    if count is not None:
        return Quorum(count)
    score = expression_of(node.entry("best"), context, _SCORE_EXAMPLE)
    return All() if score is None else BestDraft(score)
