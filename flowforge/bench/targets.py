"""What is asked of the engine, and what recorded runs show of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from flowforge.bench.engine_suite import EngineSuiteResult
from flowforge.bench.suite import SuiteResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from flowforge.bench.contestant_process import ContestantName
    from flowforge.bench.pressure import PressureResult
    from flowforge.bench.result_files import Found
    from flowforge.bench.scenes import SceneKind

Bench: TypeAlias = Literal["engine", "workflows", "pressure"]


@dataclass(frozen=True, slots=True)
class Target:
    """A figure beside what is asked of it.

    what: words for a table. bench: the command that measured it. bound: the least or, where
    `is_least` is false, the most that is asked. unit: written behind the figures.
    """

    what: str
    bench: Bench
    measured: float
    bound: float
    is_least: bool = True
    unit: str = "×"
    is_main: bool = False

    @property
    def is_reached(self) -> bool:
        """Whether the figure, as it is written, is on the right side of the bound."""
        shown = round(self.measured, self._num_digits)
        return shown >= self.bound if self.is_least else shown <= self.bound

    @property
    def measured_text(self) -> str:
        """For a table."""
        return f"{self.measured:.{self._num_digits}f}{self.unit}"

    @property
    def asked_text(self) -> str:
        """For a table."""
        return f"{'≥' if self.is_least else '≤'} {self.bound:g}{self.unit}"

    @property
    def _num_digits(self) -> int:
        return 3 if self.bound == 1 else 2


def targets_of(found: Iterable[Found]) -> list[Target]:
    """Every target of which the runs say something, those of the engine first."""
    everything = list(found)
    of_engines = [one for one in everything if isinstance(one, EngineSuiteResult)]
    of_suites = [one for one in everything if isinstance(one, SuiteResult)]
    of_pressure = [one for one in everything if isinstance(one, tuple)]
    return [
        *(target for one in of_engines for target in _of_engine(one)),
        *(target for one in of_suites for target in _of_suite(one)),
        *(target for one in of_pressure for target in _of_pressure(one)),
    ]


@dataclass(frozen=True, slots=True)
class _Comparison:
    """bound: how often as quick as `to` in a scene of this kind and number of texts."""

    kind: SceneKind
    num_streams: int
    to: ContestantName
    bound: float
    what: str
    is_main: bool = False
    contestant: ContestantName = "flowforge"


def _in_8_bits(
    kind: SceneKind,
    num_streams: int,
    bound: float,
    words: str,
    *,
    to: ContestantName = "llama.cpp",
    is_main: bool = False,
) -> _Comparison:
    what = f"{words}, over llama.cpp, both with rows in 8 bits"
    return _Comparison(kind, num_streams, to, bound, what, is_main, "flowforge-int4")


_ENGINE = (
    _Comparison(
        "decode", 1, "transformers-bf16", 3.0, "one text, over transformers in bfloat16", True
    ),
    _Comparison("decode", 1, "llama.cpp", 1.2, "one text, over llama.cpp on the same file", True),
    _Comparison("decode", 4, "llama.cpp", 1.5, "4 texts at a time, over llama.cpp"),
    _Comparison("decode", 16, "llama.cpp", 2.5, "16 texts at a time, over llama.cpp", True),
    _Comparison(
        "shared", 16, "llama.cpp", 4.0, "16 branches behind a shared prefix, over llama.cpp", True
    ),
    _Comparison(
        "shared", 16, "llama.cpp-unified", 4.0, "16 branches, llama.cpp keeping the prefix once"
    ),
    _Comparison(
        "shared",
        16,
        "transformers-bf16",
        5.0,
        "16 branches behind a shared prefix, over transformers in bfloat16",
    ),
    _Comparison(
        "prefill", 1, "transformers-bf16", 1.5, "a prompt, over transformers in bfloat16", True
    ),
    _in_8_bits("decode", 1, 1.2, "one text"),
    _in_8_bits("decode", 4, 1.5, "4 texts at a time"),
    _in_8_bits("decode", 16, 2.5, "16 texts at a time", is_main=True),
    _in_8_bits("shared", 16, 4.0, "16 branches behind a shared prefix", is_main=True),
    _in_8_bits(
        "shared", 16, 4.0, "the same, llama.cpp keeping the prefix once", to="llama.cpp-unified"
    ),
)


def _of_engine(result: EngineSuiteResult) -> Iterator[Target]:
    scenes = dict.fromkeys(one.scene for one in result.times)
    for asked in _ENGINE:
        for scene in scenes:
            ratio = result.ratio(scene, asked.contestant, asked.to)
            is_meant = (scene.kind, scene.num_streams) == (asked.kind, asked.num_streams)
            if is_meant and ratio is not None:
                yield Target(asked.what, "engine", ratio, asked.bound, is_main=asked.is_main)


def _of_suite(suite: SuiteResult) -> Iterator[Target]:
    serial = suite.geometric_mean("flow", "serial")
    block16 = suite.geometric_mean("flow", "block16")
    if serial is not None:
        yield Target(
            "programs of calls, over one call at a time with nothing shared (geometric mean)",
            "workflows",
            serial,
            6.0,
            is_main=True,
        )
    if block16 is not None:
        yield Target(
            "programs of calls, over prefixes found by full pages (geometric mean)",
            "workflows",
            block16,
            1.18,
            is_main=True,
        )
        names = dict.fromkeys(one.workload for one in suite.results)
        ratios = [suite.ratio(name, "flow", "block16") for name in names]
        least = min(ratio for ratio in ratios if ratio is not None)
        yield Target("the same, the worst workload", "workflows", least, 0.98)
    yield from _counts(suite)


def _counts(suite: SuiteResult) -> Iterator[Target]:
    """Only of runs at full length: dividing lengths changes how many rows share a tile."""
    flow = [one for one in suite.results if one.baseline == "flow"]
    if not flow or any(one.times is not None for one in flow):
        return
    counts = [one.counts for one in flow]
    computed = max(one.prefill_amplification for one in counts)
    read = max(one.read_amplification for one in counts)
    held = max(one.peak_pages / max(1, one.least_pages) for one in counts)
    for what, measured, bound, is_main in (
        ("prompt tokens computed over distinct ones", computed, 1.0, True),
        ("KV rows read over distinct ones", read, 1.15, False),
        ("pages held at the peak over the least", held, 1.05, False),
    ):
        words = f"{what}, the worst workload"
        yield Target(words, "workflows", measured, bound, False, "", is_main)


def _of_pressure(results: Sequence[PressureResult]) -> Iterator[Target]:
    flow = [one.over_clairvoyant for one in results if one.baseline == "flow"]
    if flow:
        yield Target(
            "tokens computed with too few pages, over clairvoyant eviction (the worst case)",
            "pressure",
            max(flow),
            1.25,
            is_least=False,
            unit="",
            is_main=True,
        )
