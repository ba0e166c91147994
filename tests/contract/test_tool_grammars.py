"""Grammars of arguments: declared by type hints and files, judged before the function is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import pytest
from programs import tool

import flowforge as ff
from flowforge.language.loader import load_text, require_program
from flowforge.runtime.events import ToolReturned
from flowforge.runtime.recording import offer_from_json
from flowforge.testing import calls, in_turn, script
from flowforge.tools.definitions import definition_of_function
from flowforge.tools.function_tool import FunctionTool

if TYPE_CHECKING:
    from pathlib import Path

SUMS = 'start: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]+/\n%ignore " "\n'
HEAD = "flowforge: 1\nname: t\nsteps: { a: { set: 1 } }\ntools:\n"


@ff.tool(effect="read")
def total(sum: Annotated[str, ff.Grammar(SUMS)], times: int = 1) -> int:
    """Add up."""
    return times * added(sum)


def added(text: str) -> int:
    return sum(map(int, text.split("+")))


def made(function: Any, **options: Any) -> FunctionTool:
    return FunctionTool(tool("one", "module:one", **options), function)


async def test_lark_judges_an_argument_before_the_function_is_called() -> None:
    one = made(total.function)

    assert await one.call({"sum": "1 + 2", "times": 2}, "s") == 6
    with pytest.raises(
        ff.ToolError, match=r"do not fit: sum: the text '1 \+' is not in the"
    ) as info:
        await one.call({"sum": "1 +"}, "s")
    assert info.value.code == "TL103"


async def test_a_text_outside_its_grammar_is_told_to_the_model() -> None:
    @ff.flow
    async def agent(run: ff.Run) -> str:
        async with run.chat() as chat:
            chat.user("Add.")
            return await chat.gen(tools=[total], name="answer")

    turns = in_turn(calls(("total", {"sum": "one"})), calls(("total", {"sum": "1+1"})), "two")
    async with ff.start(agent, backend=script({"answer": turns}), seed=1) as handle:
        told = [one.fact async for one in handle.events()]

    returned = [one for one in told if isinstance(one, ToolReturned)]
    assert [one.is_error for one in returned] == [True, False]
    assert "is not in the grammar" in str(returned[0].result)
    assert returned[1].result == 2


def test_a_file_of_a_hint_counts_from_the_function_and_goes_with_the_offer() -> None:
    def query(sql: Annotated[str, ff.Grammar("flowforge/sql_select", parser="lalr")]) -> str:
        return sql

    def other(text: Annotated[str, ff.Grammar("nowhere.lark")]) -> str:
        return text

    one = made(query)
    definition = definition_of_function(one.spec, one)
    assert definition.grammars["sql"].parser == "lalr"
    assert "select" in definition.grammars["sql"].text
    with pytest.raises(ff.WorkflowError, match=r"tests.contract.nowhere\.lark' cannot be read"):
        made(other)


def test_a_grammar_is_of_a_text() -> None:
    def count(number: Annotated[int, ff.Grammar(SUMS)]) -> int:
        return number

    def several(texts: list[Annotated[str, ff.Grammar(SUMS)]]) -> int:
        return len(texts)

    for function in (count, several):
        with pytest.raises(ff.ToolError, match=r"grammar of parameter '\w+' is not of a text"):
            made(function)


async def test_a_file_declares_grammars_of_arguments(tmp_path: Path) -> None:
    (tmp_path / "sums.lark").write_text(SUMS)
    path = tmp_path / "t.yaml"
    path.write_text(f"{HEAD}  add: {{ python: 'm:add', grammars: {{ sum: sums.lark }} }}\n")
    spec = ff.load(path).tools["add"]

    one = FunctionTool(spec, total.function)

    assert one.grammars["sum"].text == SUMS
    with pytest.raises(ff.ToolError, match="is not in the grammar"):
        await one.call({"sum": "x"}, "s")
    wrong = FunctionTool(tool("one", "m:f", grammars={}), total.function)
    assert await wrong.call({"sum": "3"}, "s") == 3


def test_a_grammar_of_no_argument_is_refused() -> None:
    text = (
        f"{HEAD}  add:\n    python: m:add\n    grammars: {{ sun: flowforge/arithmetic }}\n"
        "    parameters: { type: object, properties: { sum: { type: string } } }\n"
    )
    found = load_text(text).diagnostics
    assert [(one.code, one.message) for one in found] == [("WF132", "there is no argument 'sun'")]
    assert "did you mean 'sum'" in (found[0].help or "")

    silent = f"{HEAD}  add: {{ python: 'm:add', grammars: {{ sun: flowforge/arithmetic }} }}\n"
    spec = require_program(load_text(silent)).tools["add"]
    with pytest.raises(ff.ToolError, match="has no argument 'sun' for a grammar"):
        FunctionTool(spec, total.function)


def test_an_offer_that_was_written_down_has_its_grammars_again() -> None:
    told = {
        "choice": "auto",
        "max_calls": 1,
        "tools": [
            {
                "name": "add",
                "description": "",
                "parameters": {},
                "grammars": {"sum": {"text": SUMS, "file": "<grammar>"}},
            }
        ],
    }
    offer = offer_from_json(told)
    assert offer is not None
    offer.tools[0].grammars["sum"].judge("1+1")
