"""A token to be chosen behind one row of logits, as a value: for whoever holds the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flowforge.engine.sampling import adjust, sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from flowforge.engine.sampling import SamplingParams, TokenLogprobs

NO_NUMBER, NO_TOKEN = -1, -2
"""Drawn instead of a token: a logit is NaN; no token is allowed."""


@dataclass(frozen=True, slots=True, eq=False)
class RowDraw:
    """Everything that the choice depends on but the logits.

    source: the row among those behind the step's chunks, or logits that were kept, float32
    [vocab_size]. position, mask, banned: as `sample` has them. prompt, output: ids before the new
    one, left empty where the parameters do not look back.
    """

    source: int | npt.NDArray[np.float32]
    params: SamplingParams
    position: int
    mask: npt.NDArray[np.uint32] | None = None
    banned: Sequence[int] = ()
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """What came of a `RowDraw`. logprobs: where the parameters ask for them.

    `NO_NUMBER` and `NO_TOKEN` stand for what `sample` raises.
    """

    token_id: int
    logprobs: TokenLogprobs | None = None


class LogitsRow(Protocol):
    """The logits behind one token, wherever they are, until the step is forgotten."""

    def on_host(self) -> npt.NDArray[np.float32]:
        """The logits, float32 [vocab_size]: for keeps. May wait for a copy from the device."""
        ...


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HostLogits:
    """A `LogitsRow` in the machine's memory."""

    values: npt.NDArray[np.float32]

    def on_host(self) -> npt.NDArray[np.float32]:
        """See `LogitsRow`."""
        return self.values


def draw_token(draw: RowDraw, logits: npt.NDArray[np.float32]) -> int:
    """Choose it here. logits: float32 [vocab_size]. Raises as `adjust` and `sample` do."""
    scores = adjust(logits, draw.params, prompt=draw.prompt, output=draw.output)
    return sample(scores, draw.params, position=draw.position, mask=draw.mask, banned=draw.banned)
