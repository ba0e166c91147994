"""The pool, the tree and the paths against a plain dictionary model, after any operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from flowforge.engine.kv.cache import KvCache, Reserved, ShortBy
from flowforge.engine.kv.prefix_tree import Namespace

if TYPE_CHECKING:
    from flowforge.engine.kv.moves import RowCopy
    from flowforge.engine.kv.path import KvPath

PAGE_SIZE = 4
NUM_PAGES = 12
# Three token ids only: prefixes, duplicates and partial matches happen all the time.
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=2 * PAGE_SIZE + 1)
NAMESPACES = st.sampled_from([Namespace(), Namespace(salt="a"), Namespace(adapter="a")])


class Branch:
    """What the model knows of a path: its namespace and the tokens whose rows are written."""

    def __init__(self, namespace: Namespace, path: KvPath, tokens: list[int]) -> None:
        self.namespace = namespace
        self.path = path
        self.tokens = tokens


class KvCacheMachine(RuleBasedStateMachine):
    """Row content is modelled as the whole history that a row's KV depends on.

    So a page that is shared by mistake, freed too early, written twice or matched wrongly shows as
    a row whose history is not the reader's.
    """

    branches = Bundle("branches")

    def __init__(self) -> None:
        super().__init__()
        self.kv = KvCache(NUM_PAGES, PAGE_SIZE)
        self.rows: dict[int, tuple[Namespace, tuple[int, ...]]] = {}
        self.live: list[Branch] = []

    @rule(target=branches, namespace=NAMESPACES)
    def open(self, namespace: Namespace) -> Branch:
        return self._add(Branch(namespace, self.kv.open(namespace), []))

    @rule(target=branches, parent=branches)
    def fork(self, parent: Branch) -> Branch:
        path = self.kv.fork(parent.path) if not parent.path.is_released else None
        if path is None:
            return parent

        assert path.num_tokens == len(parent.tokens) // PAGE_SIZE * PAGE_SIZE
        return self._add(Branch(parent.namespace, path, parent.tokens[: path.num_tokens]))

    @rule(branch=branches, more=TOKENS, keep=st.integers(0, 3))
    def prefill(self, branch: Branch, more: list[int], keep: int) -> None:
        """What admission does: advance along the tree, reserve, write, commit."""
        if branch.path.is_released:
            return
        wanted = branch.tokens + more
        limit = len(wanted) - keep
        expected = self.kv.match_len(branch.namespace, wanted, limit)
        copy = self.kv.advance(branch.path, wanted, limit)
        self._carry_out(copy)
        reached = branch.path.num_tokens
        assert max(len(branch.tokens), expected - PAGE_SIZE) <= reached <= max(expected, reached)
        assert reached <= max(limit, len(branch.tokens))
        branch.tokens = wanted[:reached]
        self._append(branch, wanted[reached:])

    @rule(target=branches, branch=consumes(branches), more=TOKENS)
    def give_up_before_the_copy_is_carried_out(self, branch: Branch, more: list[int]) -> Branch:
        """What a failed admission or forward pass does."""
        if not branch.path.is_released:
            wanted = branch.tokens + more
            self.kv.advance(branch.path, wanted, len(wanted))
            self.kv.discard(branch.path)
            self.kv.discard(branch.path)
            self.live = [other for other in self.live if other is not branch]
        return branch

    @rule(target=branches, other=branches)
    def insert_a_duplicate(self, other: Branch) -> Branch:
        """The same tokens, written by one who did not look: full pages become the other's."""
        twin = self._add(Branch(other.namespace, self.kv.open(other.namespace), []))
        self._append(twin, other.tokens)
        if twin.tokens and not other.path.is_released:
            assert [node.page for node in twin.path.nodes] == [
                node.page for node in other.path.nodes
            ]
        return twin

    @rule(branch=branches, token=st.integers(0, 2))
    def decode(self, branch: Branch, token: int) -> None:
        if not branch.path.is_released:
            self._append(branch, [token])

    @rule(branch=branches, num_tokens=st.integers(1, 20))
    def reserve_without_writing(self, branch: Branch, num_tokens: int) -> None:
        if not branch.path.is_released:
            self.kv.reserve(branch.path, branch.path.num_tokens + num_tokens)

    @rule(branch=consumes(branches))
    def release(self, branch: Branch) -> None:
        self.kv.release(branch.path)
        self.kv.release(branch.path)
        self.live = [other for other in self.live if other is not branch]

    @rule()
    def drop_cached(self) -> None:
        self.kv.drop_cached()
        assert self.kv.statistics().pages_cached == 0

    @invariant()
    def bookkeeping_is_sound(self) -> None:
        self.kv.check_invariants()

    @invariant()
    def every_row_a_path_reads_holds_its_own_history(self) -> None:
        for branch in self.live:
            assert branch.path.num_tokens == len(branch.tokens)
            for position in range(branch.path.num_tokens):
                slot = self.kv.slot(branch.path, position)
                assert self.rows[slot] == (branch.namespace, tuple(branch.tokens[: position + 1]))

    def teardown(self) -> None:
        for branch in self.live:
            self.kv.release(branch.path)
        self.kv.check_invariants()
        assert self.kv.statistics().pages_held == 0
        self.kv.drop_cached()
        assert self.kv.statistics().pages_free == NUM_PAGES

    def _add(self, branch: Branch) -> Branch:
        self.live.append(branch)
        return branch

    def _append(self, branch: Branch, tokens: list[int]) -> None:
        if not tokens:
            return
        available = self.kv.num_available
        match self.kv.reserve(branch.path, branch.path.num_tokens + len(tokens)):
            case ShortBy(num_pages):
                assert num_pages >= 1
                assert self.kv.num_available == available, "a refused reservation took pages"
            case Reserved():
                for offset in range(len(tokens)):
                    slot = self.kv.slot(branch.path, branch.path.num_tokens + offset)
                    history = branch.tokens + tokens[: offset + 1]
                    self.rows[slot] = (branch.namespace, tuple(history))
                self.kv.commit(branch.path, tokens)
                branch.tokens = branch.tokens + tokens

    def _carry_out(self, copy: RowCopy | None) -> None:
        if copy is None:
            return
        assert 0 < copy.num_rows < PAGE_SIZE
        for row in range(copy.num_rows):
            source = self.rows[copy.source * PAGE_SIZE + row]
            self.rows[copy.target * PAGE_SIZE + row] = source


# 200 runs of 50 steps: the 10,000 steps that CI owes. A longer run: pytest -m by_hand, see below.
KvCacheMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
test_kv_cache_agrees_with_the_model = KvCacheMachine.TestCase
