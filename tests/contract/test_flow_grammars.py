"""`chat.parse`: answers under Lark grammars in Python flows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lark import Token, Transformer

import flowforge as ff
from flowforge.errors import FlowForgeError
from flowforge.testing import in_turn, script

if TYPE_CHECKING:
    from pathlib import Path

SUM = 'start: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]+/\n'


class Adder(Transformer[Token, int]):
    def start(self, numbers: list[Token]) -> int:
        return sum(map(int, numbers))


@ff.flow
async def add(run: ff.Run) -> int:
    async with run.chat() as chat:
        chat.user("Add something.")
        return await chat.parse(SUM, transformer=Adder(), retry=2, max_tokens=9)


@ff.flow
async def date(run: ff.Run) -> str:
    async with run.chat() as chat:
        chat.user("Which day?")
        answer = await chat.parse("flowforge/iso_datetime", max_tokens=20)
        return f"{answer.text} {answer.tree.data}"


@ff.flow
async def from_file(run: ff.Run, file: str) -> str:
    async with run.chat() as chat:
        chat.user("Write.")
        return (await chat.parse(file, start="word", name="word", max_tokens=9)).text


def test_a_transformer_makes_the_value() -> None:
    assert 6 == ff.run_sync(add, backend=script({"parse": "1+2+3"}))


def test_a_text_that_lark_refuses_is_tried_again() -> None:
    assert 3 == ff.run_sync(add, backend=script({"parse*": in_turn("1+", "1+2")}))


def test_an_answer_comes_with_its_tree() -> None:
    assert "2024-02-29 start" == ff.run_sync(date, backend=script({"parse": "2024-02-29"}))


def test_a_grammar_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "words.lark"
    file.write_text("start: word+\nword: /[a-z]+/\n")

    assert "abc" == ff.run_sync(from_file, backend=script({"word": "abc"}), file=str(file))


def test_what_is_no_grammar_is_refused() -> None:
    with pytest.raises(FlowForgeError, match="neither a grammar nor a file"):
        ff.run_sync(from_file, backend=script({"word": "abc"}), file="word")
