"""Random operations on the engine core, with everything checked after each.

Opens, prompts, duplicates, generates, forks, saves, restores, preempts, aborts, truncates and
closes sequences of few token ids, says when they are needed again, and evicts, in a pool that is
far too small, over `history_model`, which fails at the first row that is not of its reader's own
text.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from math import inf

from history_device import HistoryDevice
from history_drafter import HistoryDrafter
from history_model import HistoryRunner, Updates, history_core, right_output

from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.policy import SchedulingPolicy
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import (
    GenerationFinished,
    GenerationRequest,
    SequenceId,
    TokensArrived,
)
from flowforge.engine.speculation.speculator import Speculator
from flowforge.errors import EngineError

NUM_PAGES = 24
PAGE_SIZE = 4
NUM_HOST_SLOTS = 10
MOST_SEQUENCES = 12
SALTS = ("", "", "a")


@dataclass(eq=False)
class Known:
    """What the driver knows of a sequence; updates: of the generation under way or just ended."""

    id: SequenceId
    tokens: list[int]
    updates: Updates
    max_tokens: int = 0

    @property
    def output(self) -> list[int]:
        """All tokens of the generation that arrived."""
        arrived = [update for update in self.updates if isinstance(update, TokensArrived)]
        return [token for update in arrived for token in update.token_ids]

    @property
    def is_busy(self) -> bool:
        """Whether a generation is under way."""
        return self.max_tokens > 0 and not any(
            isinstance(update, GenerationFinished) for update in self.updates
        )


class Driver:
    """Does one random operation after another and checks everything after each.

    overlaps: steps are launched on `HistoryDevice` before the last one is read.
    """

    def __init__(self, seed: int, *, overlaps: bool = False) -> None:
        self.random = random.Random(seed)
        self.core, self.runner, self.kv = history_core(
            num_pages=NUM_PAGES,
            page_size=PAGE_SIZE,
            max_step_tokens=9,
            max_running=5,
            policy=SchedulingPolicy(spares_output=seed % 2 == 0),
            num_host_slots=NUM_HOST_SLOTS if seed % 4 < 2 else 0,
            speculator=Speculator(HistoryDrafter(seed)) if seed % 2 else None,
            make_runner=partial(HistoryDevice, seed=seed) if overlaps else HistoryRunner,
            overlaps=overlaps,
        )
        self.live: list[Known] = []
        self.saved: dict[str, Known] = {}
        self.counts: Counter[str] = Counter()
        self._last_id = 0

    def run(self, num_operations: int) -> None:
        """Do that many operations, then end everything and look for what is still held."""
        operations = [self.open, self.fork, self.generate, self.append, self.abort]
        operations += [self.truncate, self.close, self.duplicate, self.save, self.restore]
        operations += [self.preempt, self.expect, self.evict, *[self.step] * 5]
        for _ in range(num_operations):
            operation = self.random.choice(operations)
            operation()
            self.counts[operation.__name__] += 1
            self.core.check_invariants()
            self.runner.plans.clear()
        while self.core.has_work:
            self.core.step()
        for known in list(self.live):
            self._check(known)
            self.core.close(known.id)
        for saved in self.saved.values():
            self.core.close(saved.id)
        self.core.check_invariants()
        assert self.kv.statistics().pages_held == 0, "pages are held after the end"
        self.kv.drop_cached()
        assert self.kv.statistics().num_namespaces == 0, "an empty namespace is kept"

    def open(self) -> None:
        """A new sequence with a short prompt."""
        if len(self.live) < MOST_SEQUENCES:
            known = self._known(self._prompt())
            self.core.open(known.id, Namespace(salt=self.random.choice(SALTS)))
            self.core.append(known.id, known.tokens)

    def fork(self) -> None:
        """A fork of any sequence, also of a generating one."""
        parent = self._any()
        if parent is not None and len(self.live) < MOST_SEQUENCES:
            child = self._known([*parent.tokens, *parent.output])
            assert self.core.fork(parent.id, child.id) == child.tokens

    def duplicate(self) -> None:
        """A new sequence with the tokens of another, for both to compute at once."""
        other = self._any()
        if other is not None and len(self.live) < MOST_SEQUENCES:
            known = self._known([*other.tokens])
            self.core.open(known.id, Namespace(salt=self.random.choice(SALTS)))
            self.core.append(known.id, known.tokens)

    def save(self) -> None:
        """Keep a fork under a name, in place of what the name stood for."""
        parent, name = self._any(), self.random.choice("ab")
        if parent is None:
            return
        saved = self._known([*parent.tokens, *parent.output])
        self.live.remove(saved)
        assert self.core.fork(parent.id, saved.id) == saved.tokens
        previous = self.saved.pop(name, None)
        if previous is not None:
            self.core.close(previous.id)
        self.saved[name] = saved

    def restore(self) -> None:
        """A new sequence that goes on from a saved one."""
        saved = self.saved.get(self.random.choice("ab"))
        if saved is not None and len(self.live) < MOST_SEQUENCES:
            child = self._known([*saved.tokens])
            assert self.core.fork(saved.id, child.id) == child.tokens

    def preempt(self) -> None:
        """Let a sequence wait again, if it runs."""
        known = self._any()
        if known is not None:
            self.core.preempt(known.id)

    def expect(self) -> None:
        """Say when a sequence is needed again, or that it is not."""
        known = self._any()
        if known is None:
            return
        if self.random.random() < 0.2:
            self.core.expect_last_use(known.id)
        else:
            num_steps = self.random.choice((0, 1, 2, 9, inf))
            self.core.expect_use(known.id, num_steps, self.random.choice((0.0, 1.0)))

    def evict(self) -> None:
        """Evict all that nobody holds; seldom, or nothing would ever be hit."""
        if self.random.random() < 0.1:
            self.kv.drop_cached()

    def generate(self) -> None:
        """Generation or scoring; what cannot fit must be refused."""
        known = self._idle()
        if known is None:
            return
        updates, max_tokens = Updates(), self.random.randint(1, 16)
        request = GenerationRequest(
            SamplingParams(max_tokens=max_tokens), priority=self.random.randint(0, 2)
        )
        try:
            self.core.generate(known.id, request, updates)
        except EngineError:
            assert len(known.tokens) + max_tokens > self.core.capacity
            self.counts["refused"] += 1
        else:
            known.updates, known.max_tokens = updates, max_tokens

    def append(self) -> None:
        """More prompt for an idle sequence."""
        known = self._idle()
        if known is not None and len(known.tokens) < NUM_PAGES * PAGE_SIZE:
            more = self._prompt()
            self.core.append(known.id, more)
            known.tokens += more

    def abort(self) -> None:
        """Stop a generation in the middle."""
        known = self._any()
        if known is not None:
            self.core.abort(known.id)
            self._check(known)
            self._settle(known)

    def truncate(self) -> None:
        """Forget the last few tokens of an idle sequence."""
        known = self._idle()
        if known is not None:
            keep = max(1, len(known.tokens) - self.random.randint(0, 9))
            self.core.truncate(known.id, keep)
            del known.tokens[keep:]

    def close(self) -> None:
        """End a sequence in any state."""
        known = self._any()
        if known is not None:
            self._check(known)
            self.core.close(known.id)
            self.live.remove(known)

    def step(self) -> None:
        """One step of the engine."""
        self.core.step()

    def _check(self, known: Known) -> None:
        if known.max_tokens == 0:
            return
        right = right_output(known.tokens, known.max_tokens)
        output = known.output
        assert right[: len(output)] == output, f"sequence {known.id} got another text"
        for update in known.updates:
            if not isinstance(update, TokensArrived):
                assert isinstance(update, GenerationFinished), f"sequence {known.id}: {update}"
                assert right == output, f"sequence {known.id} lost tokens"

    def _settle(self, known: Known) -> None:
        known.tokens += known.output
        known.updates, known.max_tokens = Updates(), 0

    def _idle(self) -> Known | None:
        known = self._any()
        if known is None or known.is_busy:
            return None
        self._check(known)
        self._settle(known)
        return known

    def _any(self) -> Known | None:
        return self.random.choice(self.live) if self.live else None

    def _known(self, tokens: list[int]) -> Known:
        self._last_id += 1
        known = Known(SequenceId(self._last_id), tokens, Updates())
        self.live.append(known)
        return known

    def _prompt(self) -> list[int]:
        return [self.random.randint(1, 2) for _ in range(self.random.randint(1, 18))]
