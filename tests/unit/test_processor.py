"""What cpuinfo says of a processor: on x86, on ARM with cores of two kinds, and without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.engine.processor import Processor, find_processor

if TYPE_CHECKING:
    from pathlib import Path

EPYC = """processor\t: 0
model name\t: AMD EPYC
flags\t\t: fpu sse2 avx2 avx512f avx512_bf16

processor\t: 1
model name\t: AMD EPYC
flags\t\t: fpu sse2 avx2 avx512f avx512_bf16
"""
BIG_LITTLE = """processor\t: 0
Features\t: fp asimd
CPU part\t: 0xd05

processor\t: 1
Features\t: fp asimd sve
CPU part\t: 0xd0b
"""


def found(text: str, folder: Path) -> Processor:
    file = folder / "cpuinfo"
    file.write_text(text, encoding="utf-8")
    return find_processor(file)


def test_an_x86_processor_has_its_name_and_instructions(tmp_path: Path) -> None:
    processor = found(EPYC, tmp_path)

    assert processor.name == "AMD EPYC"
    assert processor.wide_instructions == ("avx2", "avx512f", "avx512_bf16")
    assert processor.has_bfloat16


def test_cores_of_two_kinds_have_the_instructions_of_both(tmp_path: Path) -> None:
    processor = found(BIG_LITTLE, tmp_path)

    assert processor.name == "0xd05, 0xd0b"
    assert processor.wide_instructions == ("asimd",)
    assert not processor.has_bfloat16


def test_without_cpuinfo_no_instruction_is_known(tmp_path: Path) -> None:
    processor = find_processor(tmp_path / "nothing")

    assert processor.name
    assert processor.instructions == frozenset()


@pytest.mark.parametrize(
    "other", [Processor("AMD EPYC", frozenset({"avx2"})), Processor("Xeon", frozenset({"avx512f"}))]
)
def test_code_is_kept_apart_for_processors_that_differ(other: Processor) -> None:
    assert Processor("AMD EPYC", frozenset({"avx512f"})).key != other.key
