"""What a GPU reaches of its bounds: kernels, memory, matrices, decoding, prefill, few bits.

    python benchmarks/gpu.py [--json FILE] [--budget 330]
    python benchmarks/gpu.py --tiny          # everything at a tiny shape, on the CPU: does it run?

Weights are random and made on the device, so nothing is fetched. A decode step cannot be quicker
than its weights and KV rows are read, a prefill not quicker than its products are multiplied: each
figure comes with its fraction of that bound, by the rates that this card reached just before. Parts
that the budget has no time for are left out, and said so. The table comes last.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if "--tiny" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported

import torch
from gpu_engine import PROMPT, EngineSteps
from gpu_models import (
    PAGE_SIZE,
    Shape,
    branch_batch,
    decode_batch,
    prefill_batch,
    random_model,
    random_packed,
)

from flowforge.engine.attention.graph_attention import GraphTables
from flowforge.engine.attention.kernel_attention import kernel_backend
from flowforge.engine.forward import ForwardPass
from flowforge.engine.graphs import Capture, CudaCapture, DecodeGraphs
from flowforge.engine.kernels.checks import check_float8_kernels, check_kernels
from flowforge.engine.kernels.linears import packed_linear
from flowforge.engine.kv.store import KvStore
from flowforge.engine.models.packed import packed_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpu_models import RandomModel

    from flowforge.engine.config import SharedAttention
    from flowforge.engine.graphs import Replay
    from flowforge.engine.kernels.checks import KernelCheck
    from flowforge.engine.models.decoder import Decoder
    from flowforge.engine.models.packed import PackedKind
    from flowforge.engine.step_batch import StepBatch

KINDS: tuple[PackedKind, ...] = ("int4", "int8", "float8")
WARM_UPS, MOST_REPEATS, MOST_SECONDS = 3, 20, 6.0


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    context: tokens of each stream; prefix, suffix: of each branch;
    long_context: of each stream whose rows are kept in two types.
    """

    decode_rows: tuple[int, ...]
    context: int
    prompt: int
    branches: int
    prefix: int
    suffix: int
    long_context: int
    bandwidth_bytes: int
    matrix: int


@dataclass(frozen=True)
class Row:
    """A line of the table. bound: what cannot be beaten, in the unit of value; None where none."""

    what: str
    value: float
    unit: str
    bound: float | None = None
    fraction: float | None = None
    note: str = ""


SHAPES = (
    Shape("8B", "LlamaForCausalLM", 4096, 14336, 32, 32, 8, 128, 128256),
    Shape("0.6B", "Qwen3ForCausalLM", 1024, 3072, 28, 16, 8, 128, 151936, is_tied=True),
)
SIZES = Sizes((1, 8, 64), 1024, 4096, 128, 4096, 64, 4096, 2 << 30, 8192)
TINY_SHAPES = (
    Shape("tiny", "LlamaForCausalLM", 64, 96, 2, 4, 2, 16, 256),
    Shape("tiny tied", "Qwen3ForCausalLM", 64, 96, 2, 4, 2, 16, 256, is_tied=True),
)
TINY_SIZES = Sizes((1, 4), 24, 24, 4, 32, 8, 40, 1 << 20, 128)


class Bench:
    """Measures on one device within a budget, and keeps the table."""

    def __init__(self, device: torch.device, sizes: Sizes, budget_s: float) -> None:
        self.device = device
        self.sizes = sizes
        self.rows: list[Row] = []
        self._ends_at = time.monotonic() + budget_s
        self.read_rate = 0.0  # bytes a second
        self.matrix_rate = 0.0  # floating-point operations a second

    @property
    def dtype(self) -> torch.dtype:
        """What everything is computed in."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def part(self, name: str, measure: Callable[[], None], expected_s: float) -> None:
        """Measure something if there is time for it; a failure ends this part alone."""
        left = self._ends_at - time.monotonic()
        if left < expected_s:
            self.rows.append(Row(name, 0, "", note=f"left out: {left:.0f} s were left"))
            return
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            measure()
        except (RuntimeError, ValueError, AssertionError) as error:
            told = f"{type(error).__name__}: {error}".splitlines()[0]
            self.rows.append(Row(name, 0, "", note=f"failed: {told}"))

    def seconds(self, run: Callable[[], object]) -> float:
        """The median of some runs; each is waited for."""
        # In the interpreter only whether it runs is of interest.
        is_real = self.device.type == "cuda"
        for _ in range(WARM_UPS if is_real else 0):
            run()
        self._wait()
        taken: list[float] = []
        ends_at = time.monotonic() + MOST_SECONDS
        most = MOST_REPEATS if is_real else 1
        while len(taken) < most and (not taken or time.monotonic() < ends_at):
            started_at = time.perf_counter()
            run()
            self._wait()
            taken.append(time.perf_counter() - started_at)
        return statistics.median(taken)

    def kernels(self) -> None:
        """The kernels against torch."""
        self._told(check_kernels(str(self.device), self.dtype))

    def float8_kernels(self) -> None:
        """Those that read float8, which not every card has."""
        self._told(check_float8_kernels(str(self.device), self.dtype))

    def _told(self, checks: Iterable[KernelCheck]) -> None:
        for check in checks:
            note = "" if check.is_right else "WRONG"
            what = f"kernel against torch: {check.name}"
            self.rows.append(Row(what, check.error, "‖Δ‖/‖ref‖", check.tolerance, note=note))

    def card(self) -> None:
        """Copies, reads and products: the rates that bounds are made of."""
        size = self.sizes.bandwidth_bytes
        source = torch.ones(size // 2, dtype=torch.bfloat16, device=self.device)
        target = torch.empty_like(source)
        copied = 2 * size / self.seconds(partial(target.copy_, source))
        del target
        # A product with one row reads each weight once, as decoding does.
        width = 16384 if size > 1 << 29 else 256
        matrix = source.view(-1, width)
        x = torch.ones((1, width), dtype=torch.bfloat16, device=self.device)
        read = size / self.seconds(lambda: x @ matrix.T)
        self.read_rate = max(copied, read)
        side = self.sizes.matrix
        a, b = torch.ones((2, side, side), dtype=self.dtype, device=self.device).unbind(0)
        self.matrix_rate = 2 * side**3 / self.seconds(lambda: a @ b)
        self.rows += [
            Row("copy", copied / 1e9, "GB/s"),
            Row("read by a product of one row", read / 1e9, "GB/s"),
            Row(f"product of {side}³", self.matrix_rate / 1e12, "TFLOP/s"),
        ]

    def model(self, shape: Shape) -> None:
        """Decoding with and without graphs, and prefill."""
        sizes, made = self.sizes, random_model(shape, self.device, self.dtype)
        most = max(sizes.decode_rows)
        num_tokens = max(most * (sizes.context + PAGE_SIZE), sizes.prompt + PAGE_SIZE)
        store = self._store(made.decoder, num_tokens)
        backend = kernel_backend(store, shape.heads, "auto")
        eager = ForwardPass(made.decoder, store, backend)
        self._decodes(f"{shape.name}", made, store, sizes.decode_rows, sizes.context)
        for num_rows in sizes.decode_rows:
            taken = self.seconds(partial(step, eager, decode_batch([sizes.context] * num_rows)))
            self._decoded(f"{shape.name}", made, store, num_rows, sizes.context, taken, "no graph")
        batch = prefill_batch(sizes.prompt)
        taken = self.seconds(partial(step, eager, batch))
        # Scores and weighted sums of the lower triangle, beside the products with the weights.
        attended = 2 * shape.layers * shape.heads * shape.head_dim * sizes.prompt**2
        bound = (2 * made.num_weights * sizes.prompt + attended) / self.matrix_rate
        note = f"{sizes.prompt / taken:,.0f} tokens/s"
        self._timed(f"{shape.name} prefill of {sizes.prompt} tokens", taken, bound, note)

    def fan_out(self, shape: Shape) -> None:
        """A step of branches over one prefix, read once for all or by each."""
        sizes = self.sizes
        made = random_model(shape, self.device, self.dtype)
        room = -(-(sizes.suffix + 1) // PAGE_SIZE) * PAGE_SIZE
        store = self._store(made.decoder, sizes.prefix + sizes.branches * room)
        batch = branch_batch(sizes.branches, sizes.prefix, sizes.suffix, room)
        row_bytes = store.row_bytes * shape.layers
        taken: dict[SharedAttention, float] = {}
        bounds: dict[SharedAttention, float] = {}
        choices: tuple[SharedAttention, ...] = ("on", "off")
        for choice in choices:
            forward = ForwardPass(made.decoder, store, kernel_backend(store, shape.heads, choice))
            taken[choice] = self.seconds(partial(step, forward, batch))
            prefixes = 1 if choice == "on" else sizes.branches
            rows = prefixes * sizes.prefix + sizes.branches * sizes.suffix
            bounds[choice] = (made.num_bytes + rows * row_bytes) / self.read_rate
            what = f"{shape.name} step, {sizes.branches} branches × {sizes.prefix}, shared {choice}"
            self._timed(what, taken[choice], bounds[choice], "")
        gain, most = taken["off"] / taken["on"], bounds["off"] / bounds["on"]
        self.rows.append(Row("shared against unshared", gain, "×", most, gain / most))

    def products(self, shape: Shape) -> None:
        """Products of few rows from few bits, beside cuBLAS."""
        matrices = ((2 * shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate))
        for rows_out, columns in matrices:
            wide = torch.empty((4, rows_out, columns), dtype=self.dtype, device=self.device)
            wide.normal_(0, 0.02)
            for num_rows in self.sizes.decode_rows:
                x = torch.ones((num_rows, columns), dtype=self.dtype, device=self.device)
                by_torch = self._replayed([partial(torch.matmul, x, one.T) for one in wide])
                what = f"{rows_out} × {columns}, {num_rows} rows"
                bound = rows_out * columns * self.dtype.itemsize / self.read_rate
                self._timed(f"product {what}, cuBLAS", by_torch, bound, "")
                for kind in KINDS:
                    some = [random_packed(kind, rows_out, columns, self.device) for _ in range(4)]
                    taken = self._replayed([partial(packed_linear, x, one) for one in some])
                    bound = packed_bytes(kind, rows_out, columns) / self.read_rate
                    note = f"{by_torch / taken:.2f} × cuBLAS"
                    self._timed(f"product {what}, {kind}", taken, bound, note)

    def few_bits(self, shape: Shape) -> None:
        """Decoding with weights in few bits."""
        sizes = self.sizes
        for kind in ("int4", "float8"):
            made = random_model(shape, self.device, self.dtype, kind)
            store = self._store(made.decoder, max(sizes.decode_rows) * (sizes.context + PAGE_SIZE))
            self._decodes(f"{shape.name} {kind}", made, store, sizes.decode_rows, sizes.context)
            del made, store

    def float8_kv(self, shape: Shape) -> None:
        """Decoding behind long contexts whose rows are kept in float8, and as they are."""
        sizes, made = self.sizes, random_model(shape, self.device, self.dtype)
        rows = sizes.decode_rows[-1:]
        for name, is_float8 in (("", False), (" KV float8", True)):
            num_tokens = rows[0] * (sizes.long_context + PAGE_SIZE)
            store = self._store(made.decoder, num_tokens, is_float8=is_float8)
            self._decodes(f"{shape.name}{name}", made, store, rows, sizes.long_context)
            del store

    def engine(self, shape: Shape) -> None:
        """Whole steps that sample: launched ahead or read first, from graphs or without."""
        rows, made = self.sizes.decode_rows[-1], random_model(shape, self.device, self.dtype)
        # Interpreted, a draw takes seconds.
        num_steps, temperature = (64, 0.8) if self.device.type == "cuda" else (1, 0.0)
        most = PROMPT + num_steps + 2 * PAGE_SIZE
        store = self._store(made.decoder, rows * most)
        backend = kernel_backend(store, shape.heads, "auto")

        def make_graphs(drawn: torch.Tensor) -> DecodeGraphs:
            return DecodeGraphs(
                made.decoder,
                lambda size: GraphTables(backend, size, most, (None,)),
                (rows,),
                self._capture(),
                drawn=drawn,
            )

        for name, graphs in (("graph", make_graphs), ("no graph", None)):
            steps = EngineSteps(made.decoder, store, backend, rows, num_steps, temperature, graphs)
            taken: dict[str, float] = {}
            for how, overlaps in (("overlap", True), ("no overlap", False)):
                taken[how], host_s = steps.seconds(overlaps=overlaps)
                what = f"{shape.name} engine step, {rows} rows, {name}, {how}"
                note = f"{rows / taken[how]:,.0f} tokens/s, host {host_s * 1e3:.2f} ms"
                self._timed(what, taken[how], made.num_bytes / self.read_rate, note)
            gain = taken["no overlap"] / taken["overlap"]
            self.rows.append(Row(f"{shape.name}, {name}: overlap against none", gain, "×"))

    def _decodes(
        self, name: str, made: RandomModel, store: KvStore, rows: tuple[int, ...], context: int
    ) -> None:
        """Steps from graphs."""
        backend = kernel_backend(store, made.decoder.config.num_heads, "auto")

        def make_tables(size: int) -> GraphTables:
            return GraphTables(backend, size, context + 1, (None,))

        graphs = DecodeGraphs(made.decoder, make_tables, rows, self._capture())
        forward = ForwardPass(made.decoder, store, backend, graphs)
        for num_rows in rows:
            taken = self.seconds(partial(step, forward, decode_batch([context] * num_rows)))
            self._decoded(name, made, store, num_rows, context, taken, "graph")

    def _decoded(
        self,
        name: str,
        made: RandomModel,
        store: KvStore,
        num_rows: int,
        context: int,
        taken_s: float,
        how: str,
    ) -> None:
        num_bytes = made.num_bytes + num_rows * context * store.kind.token_bytes
        what = f"{name} decode, {num_rows} rows, context {context}, {how}"
        note = f"{num_rows / taken_s:,.0f} tokens/s"
        self._timed(what, taken_s, num_bytes / self.read_rate, note)

    def _replayed(self, runs: list[Callable[[], torch.Tensor]]) -> float:
        """Seconds of one of some runs, one after the other in a graph."""
        _, replay = self._capture()(lambda: [run() for run in runs][-1])
        return self.seconds(replay) / len(runs)

    def _capture(self) -> Capture:
        return CudaCapture(self.device) if self.device.type == "cuda" else again

    def _timed(self, what: str, taken_s: float, bound_s: float, note: str) -> None:
        fraction = bound_s / taken_s
        self.rows.append(Row(what, taken_s * 1e3, "ms", bound_s * 1e3, fraction, note))

    def _store(self, decoder: Decoder, num_tokens: int, *, is_float8: bool = False) -> KvStore:
        config = decoder.config
        store = KvStore(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            num_pages=-(-num_tokens // PAGE_SIZE),
            page_size=PAGE_SIZE,
            dtype=self.dtype,
            device=self.device,
            is_float8=is_float8,
        )
        if store.scales is None:
            store.rows.normal_()
        else:
            # Bits without the highest of the exponent: numbers below 2.
            store.rows.view(torch.uint8).random_(0, 64)
            store.scales.fill_(1.0)
        return store

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def again(compute: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Replay]:
    """A capture that is none, for machines without a GPU."""
    found = compute()

    def replay() -> None:
        found.copy_(compute())

    return found, replay


def step(forward: ForwardPass, batch: StepBatch) -> torch.Tensor:
    """One step to its greedy tokens."""
    hidden = forward.hidden(batch)
    found = [forward.logits(hidden, rows).argmax(-1) for rows in batch.logit_rows]
    return torch.cat(found).cpu()


def table(rows: list[Row]) -> str:
    """For people."""
    lines = [f"{'what':62} {'value':>10} {'':9} {'bound':>10} {'of bound':>9}"]
    for row in rows:
        value = f"{row.value:10.3g}" if row.unit else f"{'':10}"
        bound = f"{row.bound:10.3g}" if row.bound is not None else f"{'':10}"
        share = f"{row.fraction:9.1%}" if row.fraction is not None else f"{'':9}"
        lines.append(f"{row.what:62} {value} {row.unit:9} {bound} {share} {row.note}".rstrip())
    return "\n".join(lines)


@torch.inference_mode()
def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tiny", action="store_true", help="a tiny shape on the CPU")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    parser.add_argument("--budget", type=float, default=330.0, metavar="SECONDS")
    options = parser.parse_args()
    if not options.tiny and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --tiny tries everything on the CPU")
    device = torch.device("cpu" if options.tiny else "cuda:0")
    shapes, sizes = (TINY_SHAPES, TINY_SIZES) if options.tiny else (SHAPES, SIZES)
    name = platform.machine() if options.tiny else torch.cuda.get_device_name(device)
    started_at = time.monotonic()
    bench = Bench(device, sizes, options.budget)
    bench.part("kernels against torch", bench.kernels, 5)
    bench.part("kernels for float8 against torch", bench.float8_kernels, 5)
    bench.part("the card", bench.card, 5)
    if bench.read_rate > 0 and bench.matrix_rate > 0:
        for shape in shapes:
            bench.part(f"{shape.name} model", partial(bench.model, shape), 60)
            bench.part(f"{shape.name} engine steps", partial(bench.engine, shape), 30)
        bench.part("fan-out", partial(bench.fan_out, shapes[0]), 45)
        bench.part("products from few bits", partial(bench.products, shapes[0]), 30)
        bench.part("weights of few bits", partial(bench.few_bits, shapes[0]), 45)
        bench.part("KV in float8", partial(bench.float8_kv, shapes[0]), 40)
    took_s = time.monotonic() - started_at
    machine = f"{name}, torch {torch.__version__}, {bench.dtype}, {took_s:.0f} s"
    if options.json:
        told = {"machine": machine, "rows": [asdict(row) for row in bench.rows]}
        Path(options.json).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    print(f"{machine}\n\n{table(bench.rows)}")


if __name__ == "__main__":
    main()
