"""The next tokens of a step, chosen where the logits are: the choice of `engine/sampling.py`.

A token's rank is one number: its score's bits in an order of integers, and behind them its id, so
that of equal scores the lower id comes first. Ranks are distinct. Then a limit of tokens (top-k),
a limit of probability (top-p) and a draw are the same search: the largest rank at and above which
there is so much. It is found some bits at a time, each pass over all blocks of all rows at once,
and nothing is sorted. (Finding top-k and top-p without sorting: FlashInfer, Ye et al., 2025.)

A draw takes the uniform number that the CPU's takes, from the same counter (Philox, Salmon et al.,
2011), and so the same token but for rounding. `gumbel_tokens` draws in one pass instead (the
Gumbel-max trick), from noise of its own: the same law, other tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton.language as tl
from triton.language import random

from flowforge.engine.kernels.dialect import IS_INTERPRETED, Tensor, block_of, cdiv, jit

if TYPE_CHECKING:
    from flowforge.engine.kernels.row_params import Biases, RowParams, Seen

# Typed as what never returns.
_philox: Tensor = random.philox
_philox_impl: Tensor = random.philox_impl

# Bits that a pass finds, and ids of a program; interpreted, programs cost and numbers do not.
_BITS, _BLOCK = (8, 256) if IS_INTERPRETED else (4, 512)
_WAYS = 1 << _BITS
_ID_BITS = 20
_ID_SHIFT, _LAST_ID = tl.constexpr(_ID_BITS), tl.constexpr((1 << _ID_BITS) - 1)
_NAN_RANK = tl.constexpr(-1)
_UNIT_53 = tl.constexpr(2.0**-53)
_UNIT_32 = tl.constexpr(2.0**-32)

# Columns of `RowParams.numbers`.
_TEMPERATURE, _TOP_K, _TOP_P, _MIN_P = (tl.constexpr(idx) for idx in range(4))
_REPETITION, _PRESENCE, _FREQUENCY, _IS_GREEDY = (tl.constexpr(idx) for idx in range(4, 8))


@dataclass(frozen=True, slots=True)
class Scores:
    """Rows of logits after all that changes them.

    scores: float32 [num_rows, vocab_size], -inf for what is not allowed. best: int64 [num_rows,
    num_blocks], each block's highest rank; -1 for one with a NaN.
    """

    scores: torch.Tensor
    best: torch.Tensor


def sample_rows(
    logits: torch.Tensor,
    params: RowParams,
    *,
    seen: Seen | None = None,
    biases: Biases | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Choose a token for each row: int64 [num_rows], on the device.

    logits: float32 [num_rows, vocab_size], rows may lie apart, not changed. seen: where some row
    has a penalty. mask: int32 [num_rows, ceil(vocab_size / 32)], bit set = allowed. `NO_NUMBER` and
    `NO_TOKEN` stand for what `sample` raises. Nothing waits for the device.
    """
    return draw_tokens(adjust_rows(logits, params, seen=seen, biases=biases, mask=mask), params)


def adjust_rows(
    logits: torch.Tensor,
    params: RowParams,
    *,
    seen: Seen | None = None,
    biases: Biases | None = None,
    mask: torch.Tensor | None = None,
) -> Scores:
    """Bias, penalties and mask, in this order; see `sample_rows`."""
    if biases is not None:
        logits = logits.index_put((biases.rows, biases.token_ids), biases.values, accumulate=True)
    num_rows, vocab_size = logits.shape
    assert vocab_size <= 1 << _ID_BITS, "an id does not fit a rank"
    num_blocks = cdiv(vocab_size, _BLOCK)
    scores = torch.empty((num_rows, vocab_size), dtype=logits.dtype, device=logits.device)
    best = torch.empty((num_rows, num_blocks), dtype=torch.int64, device=logits.device)
    is_penalised = params.has_penalties
    assert not is_penalised or seen is not None, "penalties are for ids that were seen"
    _adjust_kernel[(num_rows, num_blocks)](
        logits,
        params.numbers,
        seen.is_seen if seen is not None else logits,
        seen.counts if seen is not None else logits,
        mask if mask is not None else logits,
        scores,
        best,
        logits.stride(0),
        vocab_size,
        HAS_PENALTIES=is_penalised,
        HAS_MASK=mask is not None,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return Scores(scores, best)


def draw_tokens(scores: Scores, params: RowParams) -> torch.Tensor:
    """The tokens that `sample` draws; see `sample_rows`."""
    cut = _cuts(scores, params)
    if not params.is_greedy:
        cut = _search(scores, params, cut, "draw")
    return _picked(scores, params, cut)


def gumbel_tokens(scores: Scores, params: RowParams) -> torch.Tensor:
    """Tokens by the largest of log probability and Gumbel noise: other than `draw_tokens`' ones.

    The noise is Philox 4x32's, keyed by the seed's low word, at (id, position, branch).
    """
    cut = _cuts(scores, params)
    num_rows, vocab_size = scores.scores.shape
    num_blocks = scores.best.shape[1]
    device = scores.scores.device
    values = torch.empty((num_rows, num_blocks), dtype=torch.float32, device=device)
    ids = torch.empty((num_rows, num_blocks), dtype=torch.int64, device=device)
    _gumbel_kernel[(num_rows, num_blocks)](
        scores.scores,
        scores.best,
        params.numbers,
        params.counters,
        cut,
        values,
        ids,
        vocab_size,
        num_blocks,
        BLOCK=_BLOCK,
        BLOCK_B=block_of(num_blocks, 1),
        num_warps=8,
    )
    drawn = ids.gather(1, values.argmax(dim=1, keepdim=True)).squeeze(1)
    # Of a rank only the id behind the score is read.
    return _picked(scores, params, (1 << _ID_BITS) - 1 - drawn)


def _cuts(scores: Scores, params: RowParams) -> torch.Tensor:
    """The lowest rank of each row that top-k and top-p keep."""
    cut = torch.zeros(len(scores.best), dtype=torch.int64, device=scores.best.device)
    if params.has_top_k:
        cut = _search(scores, params, cut, "top_k")
    if params.has_top_p:
        cut = _search(scores, params, cut, "top_p")
    return cut


def _picked(scores: Scores, params: RowParams, ranks: torch.Tensor) -> torch.Tensor:
    """The tokens of ranks; of greedy rows the best ones."""
    num_rows, num_blocks = scores.best.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=ranks.device)
    _pick_kernel[(num_rows,)](
        scores.best,
        params.numbers,
        ranks,
        tokens,
        num_blocks,
        BLOCK_B=block_of(num_blocks, 1),
        num_warps=1,
    )
    return tokens


def _search(scores: Scores, params: RowParams, cut: torch.Tensor, wanted: str) -> torch.Tensor:
    """The largest rank of each row, not below its cut, at and above which there is enough.

    wanted: what is enough: so many tokens (top_k), such a share of the kept weight reached (top_p),
    or, by the uniform number, exceeded (draw).
    """
    num_rows, vocab_size = scores.scores.shape
    num_blocks = scores.best.shape[1]
    num_passes = cdiv(32 + _ID_BITS, _BITS)
    device = cut.device
    sums = torch.empty((2, num_rows, num_blocks, _WAYS), dtype=torch.float64, device=device)
    prefixes = torch.empty((num_passes + 1, num_rows), dtype=torch.int64, device=device)
    targets = torch.empty(num_rows, dtype=torch.float64, device=device)
    found = torch.empty_like(cut)
    for idx in range(num_passes + 1):
        is_last = idx == num_passes
        _search_kernel[(num_rows, 1 if is_last else num_blocks)](
            scores.scores,
            scores.best,
            params.numbers,
            params.counters,
            cut,
            sums[(idx + 1) % 2],
            sums[idx % 2],
            prefixes[max(0, idx - 1)],
            prefixes[idx],
            targets,
            found,
            vocab_size,
            num_blocks,
            (num_passes - 1 - idx) * _BITS,
            PASS=min(idx, 2),
            IS_LAST=is_last,
            WANTED={"top_k": 0, "top_p": 1, "draw": 2}[wanted],
            BITS=_BITS,
            WAYS=_WAYS,
            BLOCK=_BLOCK,
            BLOCK_B=block_of(num_blocks, 1),
            num_warps=16,
        )
    return found


@jit
def _ranks(scores: Tensor, ids: Tensor) -> Tensor:
    """int64 from 0, rising with scores, falling with ids."""
    bits = tl.where(scores == 0, 0.0, scores).to(tl.int32, bitcast=True)  # one zero
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    raised = ordered.to(tl.int64) + 2147483648
    return (raised << _ID_SHIFT) | (-ids + _LAST_ID)


@jit
def _score_of(rank: Tensor) -> Tensor:
    ordered = ((rank >> _ID_SHIFT) - 2147483648).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@jit
def _best_score(best: Tensor, row: Tensor, num_blocks: int, BLOCK_B: tl.constexpr) -> Tensor:
    at = tl.arange(0, BLOCK_B)
    ranks = tl.load(best + row * num_blocks + at, mask=at < num_blocks, other=0)
    score = _score_of(tl.max(ranks, axis=0))
    # Of a row in which nothing is allowed: any number, so that differences are numbers.
    return tl.where(score == float("-inf"), 0.0, score)


@jit
def _adjust_kernel(
    logits: Tensor,
    numbers: Tensor,
    is_seen: Tensor,
    counts: Tensor,
    mask: Tensor,
    scores: Tensor,
    best: Tensor,
    row_stride: int,
    vocab_size: int,
    HAS_PENALTIES: tl.constexpr,
    HAS_MASK: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_id = ids < vocab_size
    score = tl.load(logits + row * row_stride + ids, mask=is_id, other=float("-inf"))
    if HAS_PENALTIES:
        seen = tl.load(is_seen + row * vocab_size + ids, mask=is_id, other=0) != 0
        penalty = tl.load(numbers + row * 8 + _REPETITION).to(tl.float32)
        score = tl.where(seen, tl.where(score > 0, score / penalty, score * penalty), score)
        count = tl.load(counts + row * vocab_size + ids, mask=is_id, other=0)
        frequency = tl.load(numbers + row * 8 + _FREQUENCY)
        taken = tl.load(numbers + row * 8 + _PRESENCE) + frequency * count.to(tl.float64)
        score -= tl.where(count > 0, taken.to(tl.float32), 0.0)
    if HAS_MASK:
        num_words = (vocab_size + 31) // 32
        word = tl.load(mask + row * num_words + ids // 32, mask=is_id, other=0)
        score = tl.where((word >> (ids % 32)) & 1 != 0, score, float("-inf"))
    tl.store(scores + row * vocab_size + ids, score, mask=is_id)
    ranks = tl.where(is_id, _ranks(score, ids), 0)
    has_nan = tl.max((score != score).to(tl.int32), axis=0) > 0
    rank = tl.where(has_nan, _NAN_RANK, tl.max(ranks, axis=0))
    tl.store(best + row * tl.num_programs(1) + tl.program_id(1), rank)


@jit
def _pick_kernel(
    best: Tensor,
    numbers: Tensor,
    ranks: Tensor,
    tokens: Tensor,
    num_blocks: int,
    BLOCK_B: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK_B)
    of_blocks = tl.load(best + row * num_blocks + at, mask=at < num_blocks, other=0)
    highest = tl.max(of_blocks, axis=0)
    is_greedy = tl.load(numbers + row * 8 + _IS_GREEDY) != 0
    rank = tl.where(is_greedy, highest, tl.load(ranks + row))
    token = -(rank & _LAST_ID) + _LAST_ID
    token = tl.where(_score_of(highest) == float("-inf"), -2, token)
    tl.store(tokens + row, tl.where(tl.min(of_blocks, axis=0) < 0, -1, token))


@jit
def _weights(scores: Tensor, best: Tensor, numbers: Tensor, row: Tensor) -> Tensor:
    """Relative to the best one's, float64; 0 for what min-p drops."""
    temperature = tl.load(numbers + row * 8 + _TEMPERATURE)
    weights = tl.exp((scores.to(tl.float64) - best.to(tl.float64)) / temperature)
    return tl.where(weights < tl.load(numbers + row * 8 + _MIN_P), 0.0, weights)


@jit
def _uniform(counters: Tensor, row: Tensor) -> Tensor:
    """NumPy's first double of Philox with this key and counter."""
    low = tl.load(counters + row * 4).to(tl.uint64, bitcast=True)
    high = tl.load(counters + row * 4 + 1).to(tl.uint64, bitcast=True)
    branch = tl.load(counters + row * 4 + 2).to(tl.uint64, bitcast=True)
    # NumPy counts up before it draws.
    position = (tl.load(counters + row * 4 + 3) + 1).to(tl.uint64, bitcast=True)
    zero = position ^ position
    word, _, _, _ = _philox_impl(position, branch, zero, zero, low, high)
    return (word >> 11).to(tl.float64) * _UNIT_53


@jit
def _search_kernel(
    scores: Tensor,
    best: Tensor,
    numbers: Tensor,
    counters: Tensor,
    cut: Tensor,
    last_sums: Tensor,
    sums: Tensor,
    last_prefix: Tensor,
    prefix: Tensor,
    targets: Tensor,
    found: Tensor,
    vocab_size: int,
    num_blocks: int,
    shift: int,
    PASS: tl.constexpr,
    IS_LAST: tl.constexpr,
    WANTED: tl.constexpr,
    BITS: tl.constexpr,
    WAYS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_B: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    ways = tl.arange(0, WAYS)
    begin = tl.zeros([1], tl.int64)
    lowest = tl.load(cut + row)
    if PASS > 0:
        # Every program of a row sums up the last pass for itself, in the same order.
        at = tl.arange(0, BLOCK_B)
        last = tl.load(
            last_sums + (row * num_blocks + at[:, None]) * WAYS + ways[None, :],
            mask=(at < num_blocks)[:, None],
            other=0,
        )
        there = tl.sum(last, axis=0)  # [ways]
        if PASS == 1:
            if WANTED == 0:
                target = tl.load(numbers + row * 8 + _TOP_K)
            else:
                # At the first pass, way 0 begins at rank 0.
                everything = tl.max(there, axis=0)
                if WANTED == 1:
                    target = tl.load(numbers + row * 8 + _TOP_P) * everything
                else:
                    target = _uniform(counters, row) * everything
            if block == 0:
                tl.store(targets + row, target)
        else:
            target = tl.load(targets + row)
        is_enough = there > target if WANTED == 2 else there >= target
        way = tl.maximum(tl.sum(is_enough.to(tl.int64), axis=0) - 1, 0)
        begin = tl.zeros([1], tl.int64) + (
            (tl.load(last_prefix + row) if PASS > 1 else tl.zeros([], tl.int64))
            + (way << (shift + BITS))
        )
        if block == 0:
            tl.store(prefix + row + tl.arange(0, 1), begin)
    if IS_LAST:
        tl.store(found + row + tl.arange(0, 1), tl.maximum(begin, lowest))
    else:
        ids = block * BLOCK + tl.arange(0, BLOCK)
        is_id = ids < vocab_size
        score = tl.load(scores + row * vocab_size + ids, mask=is_id, other=float("-inf"))
        ranks = tl.where(is_id, _ranks(score, ids), -1)
        if WANTED == 0:
            weight = (score > float("-inf")).to(tl.float64)
        else:
            highest = _best_score(best, row, num_blocks, BLOCK_B)
            weight = _weights(score, highest, numbers, row)
        weight = tl.where(ranks >= lowest, weight, 0.0)
        borders = begin + (ways.to(tl.int64) << shift)  # [ways]
        above = tl.where(ranks[:, None] >= borders[None, :], weight[:, None], 0.0)
        tl.store(sums + (row * num_blocks + block) * WAYS + ways, tl.sum(above, axis=0))


@jit
def _gumbel_kernel(
    scores: Tensor,
    best: Tensor,
    numbers: Tensor,
    counters: Tensor,
    cut: Tensor,
    values: Tensor,
    token_ids: Tensor,
    vocab_size: int,
    num_blocks: int,
    BLOCK: tl.constexpr,
    BLOCK_B: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    is_id = ids < vocab_size
    score = tl.load(scores + row * vocab_size + ids, mask=is_id, other=float("-inf"))
    highest = _best_score(best, row, num_blocks, BLOCK_B)
    weight = _weights(score, highest, numbers, row)
    is_kept = (_ranks(score, ids) >= tl.load(cut + row)) & (weight > 0)
    branch = tl.load(counters + row * 4 + 2)
    position = tl.load(counters + row * 4 + 3)
    zeros = (ids ^ ids).to(tl.uint32)
    word, _, _, _ = _philox(
        tl.load(counters + row * 4),
        ids.to(tl.uint32),
        zeros + position.to(tl.uint32),
        zeros + branch.to(tl.uint32),
        zeros + (branch >> 32).to(tl.uint32),
    )
    uniform = (word.to(tl.float64) + 0.5) * _UNIT_32
    noise = -tl.log(-tl.log(uniform))
    temperature = tl.load(numbers + row * 8 + _TEMPERATURE)
    value = (score - highest).to(tl.float64) / temperature + noise
    value = tl.where(is_kept, value, float("-inf")).to(tl.float32)
    chosen = tl.argmax(value, axis=0)
    tl.store(values + row * num_blocks + block, tl.max(value, axis=0))
    tl.store(token_ids + row * num_blocks + block, block * BLOCK + chosen)
