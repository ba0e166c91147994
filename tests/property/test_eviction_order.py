"""What is evicted first, against an oracle that looks at every page and every expectation."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from flowforge.engine.kv import eviction
from flowforge.engine.kv.expectation import Expectation
from flowforge.engine.kv.nodes import Node, Tail
from flowforge.engine.kv.pool import PageId
from flowforge.engine.kv.prefix_tree import Namespace, PrefixTree

if TYPE_CHECKING:
    from flowforge.engine.kv.nodes import Donor

PAGE_SIZE = 2
TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=4 * PAGE_SIZE)
NAMESPACES = st.sampled_from([Namespace(), Namespace(salt="a")])
STEPS = st.sampled_from([0.0, 1.0, 2.0, 5.0, inf])


class EvictionMachine(RuleBasedStateMachine):
    """Texts are written and left in the tree; expectations come, change and go at random."""

    expectations = Bundle("expectations")

    def __init__(self) -> None:
        super().__init__()
        # Stale places are dropped all the time: none may stand in for one that was not renewed.
        self.eager = patch.multiple(eviction, _FEW=0, _MOST_STALE_PER_ITEM=1)
        self.eager.start()
        self.tree = PrefixTree(PAGE_SIZE)
        self.placed: list[Expectation] = []
        self.num_pages = 0

    @rule(namespace=NAMESPACES, tokens=TEXTS)
    def write(self, namespace: Namespace, tokens: list[int]) -> None:
        """What a path does from its first token to its release."""
        root = self.tree.enter(namespace)
        node = root
        held: list[Node] = []
        for start in range(0, len(tokens) - PAGE_SIZE + 1, PAGE_SIZE):
            page = tuple(tokens[start : start + PAGE_SIZE])
            node, _ = self.tree.insert(node, page, self._new_page())
            self.tree.hold(node)
            held.append(node)
        rest = tokens[len(held) * PAGE_SIZE :]
        if rest:
            self.tree.cache_tail(self.tree.attach(node, rest, self._new_page()))
        for one in reversed(held):
            self.tree.let_go(one)
        self.tree.leave(root)

    @rule(
        target=expectations,
        namespace=NAMESPACES,
        tokens=TEXTS,
        priority=st.integers(-1, 1),
        num_steps=STEPS,
    )
    def expect(
        self, namespace: Namespace, tokens: list[int], priority: int, num_steps: float
    ) -> Expectation:
        expectation = Expectation(namespace, tokens, priority, num_steps)
        self.tree.place(expectation)
        self.placed.append(expectation)
        return expectation

    @rule(
        expectation=expectations,
        num_steps=STEPS,
        ready_at_s=st.sampled_from((0.0, 1.5, 3.0)),
        due_since=st.none() | st.integers(0, 3),
    )
    def restate(
        self, expectation: Expectation, num_steps: float, ready_at_s: float, due_since: int | None
    ) -> None:
        expectation.num_steps, expectation.ready_at_s = num_steps, ready_at_s
        expectation.due_since = due_since
        self.tree.restate(expectation)

    @rule(expectation=consumes(expectations))
    def withdraw(self, expectation: Expectation) -> None:
        self.tree.withdraw(expectation)
        self.placed.remove(expectation)

    @rule(expectation=consumes(expectations), is_last=st.booleans())
    def conclude(self, expectation: Expectation, is_last: bool) -> None:
        """The last use frees the pages that nobody else needs; any other marks all of them."""
        expectation.is_last = is_last
        self.placed.remove(expectation)
        before, along = self._all(), self._along(expectation)
        needed = [item for item in before if not is_last or item not in along]
        needed += [
            item
            for item in along
            if item.may_return or self._claims(item) or self._has_rows_for_others(item)
        ]

        self.tree.conclude(expectation)

        after = self._all()
        assert is_last or all(item.may_return for item in along)
        for item in before:
            is_above = any(self._is_above(item, other) for other in needed if other is not item)
            assert (item in after) == (is_above or item in needed)

    @precondition(lambda self: self.tree.num_cached > 0)
    @rule()
    def evict(self) -> None:
        candidates = [item for item in self._all() if item.is_evictable]
        expected = min(candidates, key=self._key)

        pages = self.tree.evict(1)

        assert [expected.page] == pages

    @invariant()
    def the_tree_is_sound(self) -> None:
        self.tree.check_invariants()

    @invariant()
    def everything_cached_can_be_had(self) -> None:
        assert self.tree.num_cached == len(self._all())

    def teardown(self) -> None:
        self.eager.stop()
        num_cached = self.tree.num_cached
        assert num_cached == len(self.tree.evict(num_cached + 1))
        for expectation in self.placed:
            self.tree.conclude(expectation)
        assert 0 == self.tree.num_namespaces

    def _all(self) -> list[Donor]:
        return [*self.tree.nodes(), *self.tree.tails()]

    def _key(self, item: Donor) -> tuple[float, ...]:
        """Its place in the order, from all expectations there are."""
        claims = [
            (one.priority, -one.num_steps, -one.ready_at_s)
            if one.due_since is None
            else (one.priority, 1.0, -one.due_since)
            for one in self._claims(item)
        ]
        return *max(claims, default=(-inf, -inf, -inf)), item.last_use

    def _claims(self, item: Donor) -> list[Expectation]:
        return [one for one in self.placed if item in self._along(one)]

    def _has_rows_for_others(self, item: Donor) -> bool:
        """Whether another text goes on behind the page above and begins as this page does."""
        assert item.parent is not None, "roots are no pages"
        start = item.parent.depth * PAGE_SIZE
        return any(
            one.node is item.parent and one.tokens[start : start + 1] == [*item.tokens[:1]]
            for one in self.placed
        )

    def _along(self, expectation: Expectation) -> list[Donor]:
        """Pages whose rows, to the last one, are rows of the expectation's tokens.

        But for tails whose rows a full page has as well: nobody misses those.
        """
        of_tokens = [
            item
            for item in self._all()
            if self._namespace(item) == expectation.namespace
            and expectation.tokens[: len(history := self._history(item))] == history
        ]
        depth = max((item.depth for item in of_tokens if isinstance(item, Node)), default=0)
        return [item for item in of_tokens if isinstance(item, Node) or item.parent.depth == depth]

    @staticmethod
    def _is_above(item: Donor, other: Donor) -> bool:
        above = other.parent
        while above is not None and above is not item:
            above = above.parent
        return above is not None

    def _history(self, item: Donor) -> list[int]:
        """The tokens from the root to the item's last row."""
        before = [] if item.parent is None else self._history(item.parent)
        return [*before, *item.tokens]

    def _namespace(self, item: Donor) -> Namespace:
        return item.parent.namespace if isinstance(item, Tail) else item.namespace

    def _new_page(self) -> PageId:
        self.num_pages += 1
        return PageId(self.num_pages)


EvictionMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50)
test_eviction_takes_what_is_worth_least = EvictionMachine.TestCase
