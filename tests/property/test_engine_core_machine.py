"""The engine core under random requests, forks, aborts and a pool that is far too small.

`HistoryRunner` fails at the first row that is not of the reader's own text, so every rule below
also says: no sharing, copying, eviction or preemption ever shows in what a sequence reads.
"""

from __future__ import annotations

from itertools import count
from math import inf

from history_model import Updates, history_core, right_output
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.policy import SchedulingPolicy
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import (
    GenerationFinished,
    GenerationRequest,
    SequenceId,
    TokensArrived,
)
from flowforge.errors import EngineError

NUM_PAGES = 10
PAGE_SIZE = 4
PROMPTS = st.lists(st.integers(1, 2), min_size=1, max_size=14)
# More steps than any set of requests that fits a test run can need.
STEP_LIMIT = 2_000


class Request:
    """What the test knows of a sequence."""

    def __init__(self, sequence_id: SequenceId, tokens: list[int]) -> None:
        self.id = sequence_id
        self.tokens = tokens  # before the generation under way
        self.max_tokens = 0
        self.updates: Updates | None = None
        self.is_closed = False

    @property
    def is_busy(self) -> bool:
        """Whether the last update of a generation is still to come."""
        return self.updates is not None and not any(
            not isinstance(update, TokensArrived) for update in self.updates
        )

    @property
    def output(self) -> list[int]:
        """All tokens that arrived."""
        arrived = [u for u in self.updates or [] if isinstance(u, TokensArrived)]
        return [token for update in arrived for token in update.token_ids]


class EngineCoreMachine(RuleBasedStateMachine):
    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.core, self.runner, self.kv = history_core(
            num_pages=NUM_PAGES,
            page_size=PAGE_SIZE,
            max_step_tokens=7,
            max_running=4,
            policy=SchedulingPolicy(spares_output=False),
        )
        self.ids = count(1)
        self.live: list[Request] = []
        self.saved: dict[str, Request] = {}

    @rule(target=requests, prompt=PROMPTS, salt=st.sampled_from(["", "a"]))
    def open(self, prompt: list[int], salt: str) -> Request:
        return self._open(prompt, salt)

    @rule(request=requests, max_tokens=st.integers(0, 12), is_spare=st.booleans())
    def generate(self, request: Request, max_tokens: int, is_spare: bool = False) -> None:
        if request.is_closed or request.is_busy:
            return
        self._settle(request)
        updates = Updates()
        try:
            if max_tokens == 0:
                self.core.prefill(request.id, updates, is_spare=is_spare)
            else:
                params = SamplingParams(max_tokens=max_tokens)
                self.core.generate(request.id, GenerationRequest(params), updates)
        except EngineError as error:
            assert error.code == "EN202"
            assert len(request.tokens) + max(1, max_tokens) > NUM_PAGES * PAGE_SIZE + 1
            return
        request.updates, request.max_tokens = updates, max_tokens

    @rule(request=requests, more=PROMPTS)
    def append(self, request: Request, more: list[int]) -> None:
        if request.is_closed or request.is_busy:
            return
        self._settle(request)
        self.core.append(request.id, more)
        request.tokens += more

    @rule(target=requests, parent=requests)
    def fork(self, parent: Request) -> Request:
        return parent if parent.is_closed else self._fork(parent)

    @rule(target=requests, other=requests, num_more=st.integers(0, 1))
    def insert_a_duplicate(self, other: Request, num_more: int) -> Request:
        """The same tokens in a sequence of its own: computed at once or one after the other."""
        twin = self._open([*other.tokens, *[1] * num_more], "")
        self.generate(twin, 3)
        return twin

    @rule(parent=requests, name=st.sampled_from("ab"))
    def save(self, parent: Request, name: str) -> None:
        """As `Engine.save`: a fork under a name, in place of what the name stood for."""
        if parent.is_closed:
            return
        previous = self.saved.pop(name, None)
        self.saved[name] = self._fork(parent)
        if previous is not None:
            self.close(previous)

    @rule(target=requests, name=st.sampled_from("ab"), other=requests)
    def restore(self, name: str, other: Request) -> Request:
        """As `Engine.restore`: a fork of what was saved."""
        return self._fork(self.saved[name]) if name in self.saved else other

    @rule(request=requests)
    def preempt(self, request: Request) -> None:
        if not request.is_closed:
            self.core.preempt(request.id)

    @rule()
    def evict(self) -> None:
        self.kv.drop_cached()

    @rule(request=requests, num_steps=st.sampled_from([0, 1, 7, inf]), is_last=st.booleans())
    def expect(self, request: Request, num_steps: float, is_last: bool) -> None:
        if request.is_closed:
            return
        self.core.expect_use(request.id, num_steps)
        if is_last:
            self.core.expect_last_use(request.id)

    @rule(request=requests)
    def abort(self, request: Request) -> None:
        if not request.is_closed:
            self.core.abort(request.id)
            self._check_output(request)
            self._settle(request)

    @rule(request=requests, num_dropped=st.integers(0, 6))
    def truncate(self, request: Request, num_dropped: int) -> None:
        if request.is_closed or request.is_busy:
            return
        self._settle(request)
        keep = max(1, len(request.tokens) - num_dropped)
        self.core.truncate(request.id, keep)
        del request.tokens[keep:]

    @rule(request=consumes(requests))
    def close(self, request: Request) -> None:
        if request.is_closed:
            return
        self._check_output(request)
        self.core.close(request.id)
        self.core.close(request.id)
        request.is_closed = True
        self.live = [other for other in self.live if other is not request]

    @rule(num_steps=st.integers(1, 10))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.core.step()

    @rule()
    def run_to_the_end(self) -> None:
        self._finish_all()

    @invariant()
    def bookkeeping_is_sound(self) -> None:
        self.core.check_invariants()

    def teardown(self) -> None:
        self._finish_all()
        for request in self.live:
            self.core.close(request.id)
        self.core.check_invariants()
        assert self.kv.statistics().pages_held == 0
        self.kv.drop_cached()
        assert self.kv.statistics().num_namespaces == 0

    def _open(self, prompt: list[int], salt: str) -> Request:
        request = self._known(prompt)
        self.core.open(request.id, Namespace(salt=salt))
        self.core.append(request.id, prompt)
        return request

    def _fork(self, parent: Request) -> Request:
        child = self._known([*parent.tokens, *parent.output])
        assert child.tokens == self.core.fork(parent.id, child.id)
        return child

    def _finish_all(self) -> None:
        for _ in range(STEP_LIMIT):
            if not self.core.has_work:
                break
            self.core.step()
        assert not self.core.has_work, "sequences wait for ever"
        for request in self.live:
            self._check_output(request)

    def _check_output(self, request: Request) -> None:
        """What arrived is the start of the right output, and all of it when it says so."""
        if request.updates is None:
            return
        right = right_output(request.tokens, request.max_tokens)
        assert right[: len(request.output)] == request.output
        ends = [update for update in request.updates if not isinstance(update, TokensArrived)]
        for end in ends:
            assert isinstance(end, GenerationFinished)
            assert right == request.output
            assert end is request.updates[-1]

    def _settle(self, request: Request) -> None:
        """Make what was generated part of the text that the next generation continues."""
        request.tokens += request.output
        request.updates = None

    def _known(self, tokens: list[int]) -> Request:
        request = Request(SequenceId(next(self.ids)), list(tokens))
        self.live.append(request)
        return request


# 200 runs of 50 steps: with those of the machine of the cache, the 20,000 that CI owes.
EngineCoreMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50)
test_the_engine_core_serves_every_sequence_its_own_text = EngineCoreMachine.TestCase
