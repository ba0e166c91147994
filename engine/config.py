"""The engine's settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from flowforge.engine.arguments import require, require_integer
from flowforge.engine.devices import DEVICE_PATTERN
from flowforge.engine.policy import SchedulingPolicy
from flowforge.errors import EngineError

SharedAttention: TypeAlias = Literal["auto", "off", "on"]
Speculation: TypeAlias = Literal["lookup", "off"]
Overlap: TypeAlias = Literal["auto", "on", "off"]
Graphs: TypeAlias = Literal["auto", "off"]
Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "int4", "int8", "float8"]
KvDtype: TypeAlias = Literal["auto", "float8"]

# More only cost: torch starts them all, and the system's limit ends the process.
_MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an operator may choose.

    Raises EngineError EN230 for a value out of range, EN234 for what cannot be deterministic.

    page_size: tokens a KV page. kv_bytes: memory for KV pages; None takes a quarter of what the
    weights and a margin of 256 MiB leave free, at most 2 GiB, but as much as one context when
    `context_len` is given. It is never more than `max_running` full contexts. num_pages: instead of
    kv_bytes, an exact count. max_step_tokens: rows of one forward pass; longer prompts are computed
    in chunks. max_running: sequences in one step. num_threads: torch's CPU threads; None takes
    OMP_NUM_THREADS or else the cores this process may use.
    context_len: tokens of one sequence to load the model for; None for what it knows as it is. More
    turns on the long form of its rope scaling, for texts of any length.
    device: where it computes: cpu; cuda, the GPU with the most free memory; cuda:N, that one; auto,
    a GPU where there is one.
    tp: processes that the model is split over (tensor parallel), each with its part of every layer;
    on GPUs one for each, from the chosen one on.
    host_cache_bytes: memory of the machine for KV pages that were evicted: they are copied back
    instead of computed again. 0 keeps none.
    dtype: what weights and activations are computed in. auto: in what the model was published in,
    float32 where the CPU has no bfloat16; float32 products of few rows are taken from the weights
    as they are stored (4 and 8 bits of a GGUF file, bfloat16) by the engine's own kernels, where
    that is quicker; the numbers are the same, the order of sums is not. int4, int8: for a model
    with weights of so many bits. On a CPU its products with weights of 4 and 8 bits are of
    integers: what they are multiplied with is rounded to 8 bits, one scale for 32 numbers; quicker,
    and not exact. On a GPU these weights are kept alone, without a wider form, and activations are
    in bfloat16. float8: on a GPU the same with all matrices rounded to float8; not on a CPU.
    float32, bfloat16: by torch alone.
    kernel_rows: products of up to so many rows are left to the engine's own kernels, where it has
    some for the weights; 0 for none. None: as many as was measured to be quicker at the first load.
    kv_dtype: what KV rows are kept in. auto: in what activations are. float8: e4m3 with a scale for
    each head of a row, about half the bytes of bfloat16; rows are rounded, and on a CPU they
    are read more slowly.
    is_deterministic: results have the same bits whatever else is in a step, was cached, forked or
    evicted: every product and all attention by the engine's kernels, whose order of sums depends on
    nothing else. Needs float32 arithmetic and a C compiler, and a model without experts. Unasked it
    is so, too, where it costs less than 3 %; statistics say it.
    shared_attention: whether KV rows that several sequences of a step have in common are read once
    for all of them. auto: where that is quicker. It changes the order of sums and so last bits.
    speculation: whether tokens are guessed, and several checked in one step. lookup: from the text
    itself, and from what texts of its kind said before; left off where guesses are wrong.
    draft_model: a smaller model that guesses instead, as `resolve_model` names it; it must have the
    same tokens. For few texts at a time, and a model that is many times as large.
    overlap: whether a step's forward pass is launched before the tokens of the last one are read,
    for texts without a constraint and without guesses: what the host does is then hidden behind
    what the device computes. No text changes by it; a text that ends costs one row. auto: on a GPU
    with the engine's kernels, for one process.
    graphs: whether decode steps are repeated as CUDA graphs. auto: on a GPU, where they can be.
    policy: see `SchedulingPolicy`.
    is_debug: free pages are filled with NaN and every KV row is tagged with the text that it stands
    for, so that a wrong read fails (IN203) and cannot pass for a right one. Slow.
    """

    page_size: int = 16
    kv_bytes: int | None = None
    num_pages: int | None = None
    max_step_tokens: int = 512
    max_running: int = 64
    num_threads: int | None = None
    context_len: int | None = None
    device: str = "auto"
    tp: int = 1
    host_cache_bytes: int = 0
    dtype: Dtype = "auto"
    kernel_rows: int | None = None
    kv_dtype: KvDtype = "auto"
    is_deterministic: bool = False
    shared_attention: SharedAttention = "auto"
    speculation: Speculation = "lookup"
    draft_model: str | None = None
    overlap: Overlap = "auto"
    graphs: Graphs = "auto"
    policy: SchedulingPolicy = field(default_factory=SchedulingPolicy)
    is_debug: bool = False

    def __post_init__(self) -> None:
        for name in ("page_size", "max_step_tokens", "max_running", "tp"):
            self._require_at_least(name, getattr(self, name), 1)
        for name in ("kv_bytes", "num_pages", "num_threads", "context_len"):
            if getattr(self, name) is not None:
                self._require_at_least(name, getattr(self, name), 1)
        for name, choices in (
            ("dtype", Dtype),
            ("kv_dtype", KvDtype),
            ("shared_attention", SharedAttention),
            ("speculation", Speculation),
            ("overlap", Overlap),
            ("graphs", Graphs),
        ):
            words, value = get_args(choices), getattr(self, name)
            require(value in words, name, f"one of {words}", value, "EN230")
        self._require_at_least("host_cache_bytes", self.host_cache_bytes, 0)
        if self.kernel_rows is not None:
            self._require_at_least("kernel_rows", self.kernel_rows, 0)
        is_met = DEVICE_PATTERN.fullmatch(str(self.device)) is not None
        require(is_met, "device", "auto, cpu, cuda or cuda:N", self.device, "EN230")
        if self.kv_bytes is not None and self.num_pages is not None:
            raise EngineError(
                "EN230", "kv_bytes and num_pages are both set", help="set one of them"
            )
        if self.overlap == "on" and self.tp > 1:
            raise EngineError(
                "EN230",
                f"overlap is for one process, and tp is {self.tp}",
                help="leave overlap or tp out",
            )
        if self.num_threads is not None:
            most = f"at most {_MOST_THREADS:,}"
            is_met = self.num_threads <= _MOST_THREADS
            require(is_met, "num_threads", most, self.num_threads, "EN230")
        if self.is_deterministic:
            self._require_exact_order()

    def _require_exact_order(self) -> None:
        """Refuse what is_deterministic cannot be together with, whatever the model."""
        for name, value in (("kv_dtype", self.kv_dtype), ("kernel_rows", self.kernel_rows)):
            if value not in ("auto", None):
                raise EngineError(
                    "EN234",
                    f"is_deterministic leaves all to kernels in float32, and {name} is {value!r}",
                    help=f"leave is_deterministic or {name} out",
                )

    @staticmethod
    def _require_at_least(name: str, value: int, least: int) -> None:
        require_integer(name, value, "EN230")
        require(value >= least, name, f"at least {least}", value, "EN230")
