"""A sequence: tokens, the KV path that holds what is computed of them, and the work under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal, NewType, Protocol, TypeAlias

from flowforge.engine.arguments import require_integer
from flowforge.engine.kv.expectation import Expectation

if TYPE_CHECKING:
    from collections.abc import Hashable

    import numpy as np
    import numpy.typing as npt

    from flowforge.engine.constraint import TokenConstraint
    from flowforge.engine.kv.path import KvPath
    from flowforge.engine.kv.prefix_tree import Namespace
    from flowforge.engine.sampling import SamplingParams, TokenLogprobs
    from flowforge.engine.speculation.speculator import Speculation

SequenceId = NewType("SequenceId", int)
FinishReason = Literal["stop", "length"]

# Up to this many pending tokens count as decoding.
_DECODE_LEN = 16


class SequenceState(Enum):
    """Where a sequence stands. `Scheduler` is the only one to change it.

    IDLE: no work; its path may be taken away under pressure. WAITING: work, not admitted.
    RUNNING: part of every step. CLOSED: over; holds nothing.
    """

    IDLE = "idle"
    WAITING = "waiting"
    RUNNING = "running"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class GenerationUsage:
    """Tokens and seconds of one generation.

    prompt_tokens: length of the sequence when it began. reused_tokens: of those, in the cache at
    admission. prefilled_tokens: prompt tokens computed; above prompt - reused after a preemption.
    output_tokens: forced ones included. written_output_tokens: how many of them have their KV
    written: the last sampled one, and forced ones behind it, have not.
    """

    prompt_tokens: int
    reused_tokens: int
    prefilled_tokens: int
    output_tokens: int
    written_output_tokens: int
    ttft_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class TokensArrived:
    """Output tokens since the last update. logprobs: one for each token, when asked for."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationFinished:
    """The last update of a generation that ended by itself.

    scored: how likely the model found the tokens that `score` gave it, in order.
    """

    reason: FinishReason
    usage: GenerationUsage
    scored: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationFailed:
    """The last update of a generation that an error ended. usage: what it cost, if it began."""

    error: Exception
    usage: GenerationUsage | None = None


Update: TypeAlias = TokensArrived | GenerationFinished | GenerationFailed


class UpdateSink(Protocol):
    """Where a generation's updates go; called from the engine's thread and must not block."""

    def put(self, update: Update) -> None:
        """Take one update."""
        ...


class StopCondition(Protocol):
    """What else ends a generation, for example a text that appears in its output.

    One owner; called from the engine's thread with every output token once, in order.
    """

    def is_met_by(self, token_ids: list[int]) -> bool:
        """Whether the output ends with these tokens."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """How a generation samples and ends. constraint and stop belong to the engine from here on.

    priority: higher ones are admitted first and preempted last, and their pages are evicted last.
    num_following: tokens that its holder's program writes after it, in the longest chain; of equal
    priority who has more, its own with it, goes earlier; its own alone are no reason. history_key:
    texts that are like each other have equal ones; what one said is tried as a guess of what
    another says, in its namespace only. is_spare: nobody waits for it; it has no part in a step in
    which anything else is computed.
    Raises EngineError EN210 for what is no integer.
    """

    params: SamplingParams
    constraint: TokenConstraint | None = None
    stop: StopCondition | None = None
    priority: int = 0
    num_following: int = 0
    history_key: Hashable | None = None
    is_spare: bool = False

    def __post_init__(self) -> None:
        require_integer("priority", self.priority)
        require_integer("num_following", self.num_following)


@dataclass(eq=False, slots=True)
class Scoring:
    """Log probabilities of given tokens: those at start and behind, up to the prompt's end.

    scored: by position; the one at `start` may be there already, from logits that were kept.
    """

    start: int
    num_top: int
    scored: dict[int, TokenLogprobs]

    @property
    def first_row(self) -> int:
        """The first position whose logits are wanted: the one before the first token to score."""
        return self.start if self.start in self.scored else self.start - 1

    def in_order(self, stop: int) -> tuple[TokenLogprobs, ...]:
        """All of them, once everything up to `stop` is scored."""
        return tuple(self.scored[position] for position in range(self.start, stop))


@dataclass(eq=False, slots=True)
class Generation:
    """Work on a sequence: sample until an end. Owned by its sequence, changed by the core.

    max_tokens: 0 only computes the tokens that are there and keeps the logits behind them.
    drafted: guesses of what it says next, for the next step to try. speculation: how they went.
    """

    request: GenerationRequest
    sink: UpdateSink
    prompt_len: int
    max_tokens: int
    submitted_at_s: float
    admitted_at_s: float | None = None
    first_token_at_s: float | None = None
    reused_tokens: int | None = None  # known at the first admission
    prefilled_tokens: int = 0
    num_output: int = 0
    scoring: Scoring | None = None
    high_water: int = 0  # tokens of the sequence that were computed at some time
    drafted: tuple[int, ...] = ()
    speculation: Speculation | None = None


@dataclass(eq=False, slots=True)
class Flight:
    """What is launched of a sequence and not read yet; of one step, or of two that follow.

    A sequence that stops or loses its path loses its flight: who reads a step knows by the flight's
    identity whether the sequence still waits for it. num_rows: behind those that are computed.
    draw: the place of the token that is being drawn for it among its step's draws. num_steps: that
    it is of.
    """

    num_rows: int = 0
    draw: int | None = None
    num_steps: int = 0


@dataclass(eq=False, slots=True)
class Sequence:
    """The engine's unit of work and of holding.

    tokens: prompt and output, in order; a forked or preempted sequence keeps them all. One list for
    life: `expectation`, what is known of the next use, has the same. path: the KV of the first
    `num_computed` tokens, or None when nothing is held. last_logits: float32 [vocab_size] behind
    the last token, once that was computed. started_step: when its work came in. flight: what is
    launched and not read.
    """

    id: SequenceId
    namespace: Namespace
    tokens: list[int]
    arrival: int
    state: SequenceState = SequenceState.IDLE
    path: KvPath | None = None
    generation: Generation | None = None
    last_logits: npt.NDArray[np.float32] | None = field(default=None, repr=False)
    started_step: int = 0
    flight: Flight | None = None
    expectation: Expectation = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.expectation = Expectation(self.namespace, self.tokens)

    @property
    def rank(self) -> tuple[int, int]:
        """Who is first here is last to be preempted, and first to be admitted, prefixes aside."""
        priority = 0 if self.generation is None else self.generation.request.priority
        return -priority, self.arrival

    @property
    def is_spare(self) -> bool:
        """Whether nobody waits for its work."""
        return self.generation is not None and self.generation.request.is_spare

    @property
    def num_computed(self) -> int:
        """Tokens whose KV is in the path."""
        return 0 if self.path is None else self.path.num_tokens

    @property
    def num_reusable(self) -> int:
        """Tokens that may come from the cache: all whose own logits are not wanted."""
        if self.is_spare:
            return len(self.tokens)
        if self.generation is not None and self.generation.scoring is not None:
            return self.generation.scoring.first_row
        return len(self.tokens) - (self.last_logits is None)

    @property
    def is_decoding(self) -> bool:
        """Whether a sampled token and what a constraint forced is all that is left to launch."""
        return self.num_unlaunched <= _DECODE_LEN

    @property
    def num_launched(self) -> int:
        """Tokens whose KV is in the path or about to be, by steps that are launched."""
        return self.num_computed + (0 if self.flight is None else self.flight.num_rows)

    @property
    def num_unlaunched(self) -> int:
        """Known tokens that no step has been launched for; -1 when one more was launched."""
        return len(self.tokens) - self.num_launched

    @property
    def num_pending(self) -> int:
        """Tokens still to compute; those in flight count."""
        return len(self.tokens) - self.num_computed

    def launch(self, num_rows: int) -> Flight:
        """A step with so many rows behind the last launched one is about to be launched."""
        if self.flight is None:
            self.flight = Flight()
        self.flight.num_rows += num_rows
        self.flight.num_steps += 1
        return self.flight

    def land(self, num_rows: int) -> None:
        """The first step of the flight is read; its rows are computed."""
        flight = self.flight
        assert flight is not None, "who was not launched does not land"
        flight.draw = None
        flight.num_rows -= num_rows
        flight.num_steps -= 1
        if flight.num_steps == 0:
            self.flight = None

    def __repr__(self) -> str:
        progress = f"computed={self.num_computed}/{len(self.tokens)}"
        return f"Sequence({self.id} {self.state.value} {progress})"
