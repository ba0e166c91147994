"""Attention over segments of random trees against the written-out reference.

A step is a random tree of texts in pages: some nodes have readers, each with a tail and some new
tokens of its own. Whatever is shared, split, copied or cut by a window, results are those of each
text alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowforge.engine.attention.compiled import CompiledAttention, find_attention_library
from flowforge.engine.attention.interface import LayerAttention
from flowforge.engine.attention.paged import PagedAttention
from flowforge.engine.attention.reads import (
    NEVER_SPLIT,
    Segment,
    Span,
    SplitPolicy,
    num_rows_read,
    plan_reads,
)
from flowforge.engine.attention.reference import dense_attention
from flowforge.engine.kv.nodes import Node
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.kv.sharing import shared_runs

if TYPE_CHECKING:
    from flowforge.engine.attention.interface import AttentionStep
    from flowforge.engine.attention.reads import Ranges

Attention: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, tuple[Span, ...], tuple[Segment, ...], SplitPolicy],
    "AttentionStep",
]

PAGE = 8
NUM_PAGES = 120
HEAD_DIM = 8
# float32 sums in another order, over rows of some hundreds.
TOLERANCE = 2e-5
# The fixture is a function without a state.
STATELESS = [HealthCheck.function_scoped_fixture]


@dataclass(frozen=True)
class Text:
    """pages: of the whole context, the first num_shared in the tree; start: of its new tokens."""

    nodes: list[Node]
    pages: list[int]
    start: int
    stop: int


@dataclass(frozen=True)
class Case:
    texts: list[Text]
    group: int
    num_kv_heads: int
    layers: list[LayerAttention]
    policy: SplitPolicy
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Trees up to four levels deep on scattered or adjacent pages, with up to seven readers."""
    num_texts = draw(st.integers(1, 7))
    order = list(range(NUM_PAGES))
    if draw(st.booleans()):
        order = draw(st.permutations(order))
    free = iter(order)
    nodes = [Node((), None, None, 0, Namespace())]
    for _ in range(draw(st.integers(0, 12))):
        parent = nodes[draw(st.integers(max(0, len(nodes) - 4), len(nodes) - 1))]
        page = next(free)
        nodes.append(Node((page,), page, parent, parent.depth + 1, Namespace()))  # type: ignore[arg-type]  # a PageId
    texts = []
    for _ in range(num_texts):
        node: Node | None = draw(st.sampled_from(nodes[-4:]))
        path: list[Node] = []
        while node is not None and node.page is not None:
            path.insert(0, node)
            node = node.parent
        start = len(path) * PAGE + draw(st.integers(0, 2 * PAGE))
        stop = start + draw(st.sampled_from([1, 1, 1, 2, PAGE, PAGE + 3]))
        num_private = -(-stop // PAGE) - len(path)
        pages = [int(node.page or 0) for node in path] + [next(free) for _ in range(num_private)]
        texts.append(Text(path, pages, start, stop))
    windows = st.sampled_from([None, 1, PAGE, 3 * PAGE + 1, 1000])
    caps = st.sampled_from([None, 0.5])
    layers = [LayerAttention(0.4, draw(windows), draw(caps)) for _ in range(3)]
    rows = st.sampled_from([None, 1, 2 * PAGE, 30])
    return Case(
        texts,
        draw(st.integers(1, 8)),
        draw(st.integers(1, 3)),
        layers,
        SplitPolicy(draw(rows), draw(rows)),
        draw(st.integers(0, 2**20)),
    )


def slots_of(text: Text) -> list[int]:
    return [text.pages[at // PAGE] * PAGE + at % PAGE for at in range(text.stop)]


def ranges_of(slots: list[int]) -> Ranges:
    ranges: list[tuple[int, int]] = []
    for slot in slots:
        if ranges and sum(ranges[-1]) == slot:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((slot, 1))
    return tuple(ranges)


def step_of(case: Case) -> tuple[tuple[Span, ...], tuple[Segment, ...]]:
    spans: list[Span] = []
    query_start = 0
    for text in case.texts:
        query_len = text.stop - text.start
        spans.append(Span(query_start, query_len, ranges_of(slots_of(text))))
        query_start += query_len
    runs = shared_runs([text.nodes for text in case.texts])
    segments = [Segment(run.first_page * PAGE, run.stop_page * PAGE, run.readers) for run in runs]
    return tuple(spans), tuple(segments)


@pytest.fixture(params=["torch", "compiled"])
def attention(request: pytest.FixtureRequest) -> Attention:
    """PagedAttention, or the kernel behind the same door."""
    if request.param == "torch":
        return PagedAttention
    library = find_attention_library()
    if library is None:
        pytest.skip("there is no C compiler here")

    def compiled(
        rows: torch.Tensor,
        slots: torch.Tensor,
        spans: tuple[Span, ...],
        segments: tuple[Segment, ...],
        _: SplitPolicy,
    ) -> CompiledAttention:
        return CompiledAttention(library, rows, slots, spans, segments)

    return compiled


@settings(max_examples=70, deadline=None, suppress_health_check=STATELESS)
@given(case=cases())
def test_segments_give_what_each_text_gives_alone(attention: Attention, case: Case) -> None:
    generator = torch.Generator().manual_seed(case.seed)
    spans, segments = step_of(case)
    num_heads = case.num_kv_heads * case.group
    # Rows that nobody may read are NaN: whatever reads one shows.
    shape = (len(case.layers), 2, case.num_kv_heads, NUM_PAGES * PAGE, HEAD_DIM)
    rows = torch.full(shape, torch.nan)
    for text in case.texts:
        old = slots_of(text)[: text.start]
        fresh = torch.randn((*shape[:3], len(old), HEAD_DIM), generator=generator)
        rows[:, :, :, old] = torch.where(rows[:, :, :, old].isnan(), fresh, rows[:, :, :, old])
    new_slots = [slot for text in case.texts for slot in slots_of(text)[text.start :]]
    step = attention(rows, torch.tensor(new_slots), spans, segments, case.policy)

    for layer_idx, layer in enumerate(case.layers):
        q = 2 * torch.randn(len(new_slots), num_heads, HEAD_DIM, generator=generator)
        k, v = torch.randn(2, len(new_slots), case.num_kv_heads, HEAD_DIM, generator=generator)
        found = step.attend(layer_idx, q, k, v, layer)

        for text, span in zip(case.texts, spans, strict=True):
            context = rows[layer_idx, :, :, slots_of(text)].transpose(1, 2)
            queries = slice(span.query_start, span.query_start + span.query_len)
            expected = dense_attention(q[queries], context[0], context[1], layer)
            assert (found[queries] - expected).abs().max().item() < TOLERANCE


@settings(max_examples=80, deadline=None)
@given(case=cases())
def test_every_row_is_read_as_often_as_the_plan_must(case: Case) -> None:
    spans, segments = step_of(case)
    alone = sum(span.context_len for span in spans)
    again = sum((len(one.readers) - 1) * (one.stop - one.start) for one in segments)

    assert alone == num_rows_read(plan_reads(spans, segments, NEVER_SPLIT), spans)
    shared = plan_reads(spans, segments, SplitPolicy(1, 2))
    assert alone - again == num_rows_read(shared, spans)
    some = num_rows_read(plan_reads(spans, segments, case.policy), spans)
    assert alone - again <= some <= alone


@settings(max_examples=50, deadline=None, suppress_health_check=STATELESS)
@given(case=cases())
def test_without_splits_results_do_not_depend_on_the_others_or_on_where_pages_lie(
    attention: Attention, case: Case
) -> None:
    generator = torch.Generator().manual_seed(case.seed)
    spans, segments = step_of(case)
    shape = (1, 2, case.num_kv_heads, NUM_PAGES * PAGE, HEAD_DIM)
    rows = torch.randn(shape, generator=generator)
    num_tokens = sum(span.query_len for span in spans)
    num_heads = case.num_kv_heads * case.group
    q = torch.randn(num_tokens, num_heads, HEAD_DIM, generator=generator)
    k, v = torch.randn(2, num_tokens, case.num_kv_heads, HEAD_DIM, generator=generator)
    slots = torch.tensor([at for text in case.texts for at in slots_of(text)[text.start :]])
    layer = case.layers[0]
    together = attention(rows, slots, spans, segments, NEVER_SPLIT).attend(0, q, k, v, layer)

    for text, span in zip(case.texts, spans, strict=True):
        queries = slice(span.query_start, span.query_start + span.query_len)
        lone_rows = rows[:, :, :, slots_of(text)].contiguous()
        lone = Span(0, span.query_len, ((0, text.stop),))
        lone_slots = torch.arange(text.start, text.stop)
        step = attention(lone_rows, lone_slots, (lone,), (), NEVER_SPLIT)
        found = step.attend(0, q[queries], k[queries], v[queries], layer)
        assert torch.equal(together[queries], found)
