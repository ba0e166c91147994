"""What an engine computes with: planned from headers and free memory, then read, whole or split."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from flowforge.engine.attention.backends import CompiledBackend
from flowforge.engine.device_step import DrawnTokens
from flowforge.engine.devices import (
    CudaFinding,
    choose_device,
    find_cuda_devices,
    make_current,
)
from flowforge.engine.forward import ForwardPass
from flowforge.engine.kernels.presence import has_kernels
from flowforge.engine.kv.store import RowKind
from flowforge.engine.memory import free_memory, plan_host_slots, plan_pages
from flowforge.engine.models.config import read_model_config
from flowforge.engine.models.weight_size import weight_size
from flowforge.engine.models.weights import load_decoder
from flowforge.engine.paged_rows import RowsPlan, make_rows
from flowforge.engine.row_sampler import HostSampler, KernelSampler
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from contextlib import ExitStack

    from flowforge.engine.attention.kernel_attention import KernelBackend
    from flowforge.engine.config import EngineConfig
    from flowforge.engine.devices import ChosenDevice
    from flowforge.engine.forward import StepForward
    from flowforge.engine.graphs import DecodeGraphs
    from flowforge.engine.kv.store import KvStore
    from flowforge.engine.models.config import ModelConfig
    from flowforge.engine.models.decoder import Decoder
    from flowforge.engine.models.weight_size import WeightSize
    from flowforge.engine.parallel.messages import PartTask
    from flowforge.engine.prefix_rows import MovableRows
    from flowforge.engine.row_sampler import RowSampler

_logger = logging.getLogger(__name__)

# Steps with longer contexts are not captured: room for their parts would be taken from the pages.
_MOST_GRAPH_CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class ComputePlan:
    """What is loaded where, before it is. weights, token_bytes: of the first rank of a split model.

    token_bytes: K and V of one token in all layers. rows: of every rank.
    """

    directory: Path
    model: ModelConfig
    place: ChosenDevice
    weights: WeightSize
    token_bytes: int
    rows: RowsPlan

    @property
    def kv_bytes(self) -> int:
        """Of all pages."""
        return self.rows.num_pages * self.rows.page_size * self.token_bytes


@dataclass(frozen=True, slots=True)
class Computing:
    """What computes steps, and the rows it does it on.

    store: of this process. rows: of all ranks together. drawn: draws tokens on the device.
    """

    decoder: Decoder
    store: KvStore
    rows: MovableRows
    forward: StepForward
    drawn: DrawnTokens | None = None


def plan_compute(directory: Path, config: EngineConfig) -> ComputePlan:
    """Decide device, dtype and pages. Reads headers only.

    Raises EngineError EN110 to EN126 (model), EN231 to EN236 (device, memory, split).
    """
    # Nobody looks for GPUs where the CPU is asked for.
    found = CudaFinding(()) if config.device == "cpu" else find_cuda_devices()
    place = choose_device(config.device, found)
    model = own = read_model_config(directory, config.context_len)
    part = None
    if config.tp > 1:
        from flowforge.engine.parallel.loading import PartLoading
        from flowforge.engine.parallel.places import share_places
        from flowforge.engine.parallel.split import Rank

        place = share_places(place, found, config)
        # The first rank's is the largest part.
        part = PartLoading(directory, model, Rank(0, config.tp)).cut
        own = part.config
    weights = weight_size(
        directory, config.dtype, is_deterministic=config.is_deterministic, device=place, part=part
    )
    is_float8 = config.kv_dtype == "float8"
    kind = RowKind(own.num_layers, own.num_kv_heads, own.head_dim, weights.dtype, is_float8)
    page_bytes = config.page_size * kind.token_bytes
    # On the CPU the rest is weights and pages; on a GPU it is somewhere else.
    beside = 0 if place.is_cuda else (weights.num_bytes + page_bytes) * config.tp
    num_host_slots = plan_host_slots(config, page_bytes * config.tp, free_memory() - beside)
    host_bytes = 0 if place.is_cuda else num_host_slots * page_bytes
    num_pages = plan_pages(
        config,
        context_len=model.max_context_len,
        page_bytes=page_bytes,
        weight_bytes=weights.num_bytes,
        available_bytes=place.available_bytes - host_bytes,
        rule=place.rule,
    )
    rows = RowsPlan(
        num_pages,
        config.page_size,
        weights.dtype,
        is_float8=is_float8,
        num_host_slots=num_host_slots,
        verifies=config.is_debug,
        shared_attention=config.shared_attention,
        kernels=weights.kernels,
    )
    return ComputePlan(directory, model, place, weights, kind.token_bytes, rows)


def load_whole(plan: ComputePlan, config: EngineConfig) -> Computing:
    """Everything in this process. Raises EngineError EN234 and as `load_decoder`."""
    model, weights = plan.model, plan.weights
    make_current(plan.place.name)
    decoder = load_decoder(
        plan.directory,
        model,
        dtype=weights.dtype,
        device=plan.place.name,
        kernels=weights.kernels,
        kernel_rows=config.kernel_rows,
    )
    rows = make_rows(plan.rows, model, decoder.device)
    if config.is_deterministic and not isinstance(rows.attention, CompiledBackend):
        raise EngineError(
            "EN234",
            f"heads of {model.head_dim} numbers cannot be attended to deterministically",
            help="leave is_deterministic out",
        )
    drawn = _find_drawn(config, decoder.device)
    ids = None if drawn is None else drawn.ids
    graphs = None
    if rows.kernels is not None and config.graphs != "off":
        graphs = _capture_graphs(decoder, rows.kernels, plan, config, ids)
    store = rows.store
    forward = ForwardPass(decoder, store, rows.attention, graphs, ids)
    return Computing(decoder, store, store, forward, drawn)


def _find_drawn(config: EngineConfig, device: torch.device) -> DrawnTokens | None:
    """Who draws tokens where the logits are; None where they come to the host."""
    sampler: RowSampler
    if has_kernels(device):
        sampler = KernelSampler()
    elif config.overlap == "on":
        sampler = HostSampler()
    else:
        return None
    return DrawnTokens(sampler, config.max_step_tokens + config.max_running, device)


def _capture_graphs(
    decoder: Decoder,
    kernels: KernelBackend,
    plan: ComputePlan,
    config: EngineConfig,
    drawn: torch.Tensor | None,
) -> DecodeGraphs | None:
    """Graphs of decode steps, in the margin that the pages left; None where none can be had."""
    if plan.model.experts is not None:
        # How many rows an expert gets is known on the host only.
        return None
    from flowforge.engine.attention.graph_attention import GraphTables
    from flowforge.engine.graphs import CudaCapture, DecodeGraphs, graph_sizes

    windows = tuple({layer.window: None for layer in plan.model.layers})
    most_context = min(plan.model.max_context_len, _MOST_GRAPH_CONTEXT)

    def make_tables(size: int) -> GraphTables:
        return GraphTables(kernels, size, most_context, windows)

    def told(done: int, total: int) -> None:
        _logger.info("capturing decode graphs: %d of %d", done, total)

    sizes = graph_sizes(config.max_running)
    try:
        with torch.inference_mode():
            capture = CudaCapture(decoder.device)
            return DecodeGraphs(decoder, make_tables, sizes, capture, told, drawn=drawn)
    except RuntimeError as error:
        line = str(error).splitlines()[0]
        _logger.warning("decode steps run without graphs, more slowly: %s", line)
        return None


def load_parts(plan: ComputePlan, config: EngineConfig, end: ExitStack) -> Computing:
    """The first rank's part here, the others in processes that `end` ends.

    Raises as `load_whole` does, EngineError EN237 when a process ends before all have met.
    """
    from flowforge.engine.parallel.rank_forward import RankPart
    from flowforge.engine.parallel.rank_rows import SplitRows
    from flowforge.engine.parallel.split_forward import SplitForward
    from flowforge.engine.parallel.workers import Workers, new_meeting_folder

    folder = new_meeting_folder()
    tasks = _tasks(plan, config, Path(folder.name) / "meeting")
    # Set for this process, which is one of them.
    workers = Workers(tasks[1:], torch.get_num_threads(), folder)
    end.callback(workers.close)
    part = RankPart(tasks[0])
    workers.meet()
    met = part.meet()
    workers.watch(met.group.abort)
    forward = SplitForward(met.forward, workers)
    rows = SplitRows(met.rows, forward, workers)
    # The first rank has the logits; the others could not be fed from what it draws.
    drawn = _find_drawn(config, met.decoder.device)
    return Computing(met.decoder, part.rows.store, rows, forward, drawn)


def _tasks(plan: ComputePlan, config: EngineConfig, meeting_file: Path) -> list[PartTask]:
    from flowforge.engine.parallel.messages import PartTask
    from flowforge.engine.parallel.places import device_of_rank
    from flowforge.engine.parallel.split import Rank

    return [
        PartTask(
            directory=plan.directory,
            context_len=config.context_len,
            rank=Rank(index, config.tp),
            device=device_of_rank(plan.place, index),
            rows=plan.rows,
            kernel_rows=config.kernel_rows,
            meeting_file=meeting_file,
        )
        for index in range(config.tp)
    ]
