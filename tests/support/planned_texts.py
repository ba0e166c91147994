"""Small stand-ins for a model's text, for plans, and runs to hold plans against."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from flowforge.language.inputs import resolve_inputs
from flowforge.language.loader import load_text, require_program
from flowforge.planning import plan_program
from flowforge.planning.prefixes import Recomputation
from flowforge.runtime.events import RunFinished
from flowforge.runtime.run import start

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowforge.backends.protocol import Backend
    from flowforge.language.program import JsonValue
    from flowforge.planning import Plan, Tokenizing, Turn
    from flowforge.runtime.events import Accounting

_WORD = re.compile(r"\S+\s*|\s+")
_ROLES = {"system": -1, "user": -2, "assistant": -3}
_CLOSE = -9
HEAD = "flowforge: 1\nname: planned\n"

# Programs in which every prompt follows from the inputs.
KNOWN: dict[str, str] = {
    "one step": """
steps:
  a: { system: Be brief., user: "Say ${ inputs.topic }.", gen: { max_tokens: 6 } }
inputs: { topic: { type: string, default: hello there } }
outputs: { a: "${ a }" }
""",
    "branches that share a beginning": """
steps:
  a:
    for: word in ["cost and range", "cost and law", "weight"]
    do: { b: { system: Be brief., user: "Explore ${ word } at once", gen: { max_tokens: 6 } } }
outputs: { a: "${ a }" }
""",
    "values set and lists known": """
inputs: { words: { type: array, items: { type: string }, default: [red, blue] } }
steps:
  doubled: { set: "${ inputs.words | concat(inputs.words) | join(', ') }" }
  a: { user: "First ${ doubled }", gen: { max_tokens: 6 } }
  b: { user: "First ${ doubled } and ${ inputs.words | len } more", gen: { max_tokens: 6 } }
outputs: { a: "${ a }", b: "${ b }" }
""",
    "a known condition and a known case": """
inputs: { mode: { type: string, default: long } }
steps:
  a:
    if: ${ inputs.mode == "long" }
    then: { b: { user: Say much., gen: { max_tokens: 6 } } }
    else: { c: { user: Say little to me., gen: { max_tokens: 6 } } }
  d: { when: "${ inputs.mode == 'short' }", user: Never asked., gen: { max_tokens: 6 } }
outputs: { a: "${ a }" }
""",
    "rounds of a loop that are known": """
steps:
  a:
    loop: { idx: 0 }
    while: ${ idx < 3 }
    max: 9
    do: { b: { user: "Round ${ idx } of three", gen: { max_tokens: 6 } } }
    next: { idx: "${ idx + 1 }" }
outputs: { a: "${ a.idx }" }
""",
    "samples, given turns and a prefill": """
steps:
  a:
    user: Name a town.
    gen: { n: 3, pick: all, temperature: 1, max_tokens: 6 }
  b:
    turns: [{ user: One and one? }, { assistant: Two. }]
    user: Two and two?
    prefill: "It is "
    gen: { max_tokens: 6 }
outputs: { a: "${ a }", b: "${ b }" }
""",
    "texts cut to tokens": """
inputs: { story: { type: string, default: "Once there was a small town by a very wide river." } }
steps:
  a:
    for: part in inputs.story | split_tokens(4)
    do: { b: { user: "Retell ${ part | truncate_tokens(3) }", gen: { max_tokens: 6 } } }
  c:
    when: ${ (inputs.story | tokens) > 5 }
    user: "Retell ${ inputs.story | truncate_tokens(5) }"
    gen: { max_tokens: 6 }
outputs: { a: "${ a }", c: "${ c }" }
""",
}

# Programs in which prompts, or which ones there are, follow from answers.
OPEN: dict[str, str] = {
    "a fork and a text read again": """
steps:
  a: { system: Be brief., user: Name three., gen: { max_tokens: 9 } }
  b: { from: a, user: Say more about it, gen: { max_tokens: 9 } }
  c: { user: "Merge ${ a } and ${ b } now", gen: { max_tokens: 9 } }
outputs: { c: "${ c }" }
""",
    "a condition that the model decides": """
steps:
  a: { user: Yes or no?, gen: { choice: ["yes", "no"] } }
  b:
    if: ${ a == "yes" }
    then: { c: { from: a, user: Why is that so?, gen: { max_tokens: 4 } } }
    else: { d: { user: Begin with something else, gen: { max_tokens: 6 } } }
  e: { user: "Begin with ${ b }", gen: { max_tokens: 3 } }
outputs: { e: "${ e }" }
""",
    "a loop that the model ends": """
steps:
  a:
    loop: { text: nothing }
    max: 3
    do:
      b: { user: "Better than ${ text } please", gen: { max_tokens: 5 } }
      c: { from: b, user: Good enough?, gen: { choice: ["yes", "no"] } }
    next: { text: "${ b }" }
    until: ${ c == "yes" }
    on_max: keep
outputs: { a: "${ a.text }" }
""",
    "a list of open length": """
steps:
  a:
    user: List some.
    gen: { json: { type: array, items: { type: string, maxLength: 9 }, maxItems: 4 } }
  b:
    for: item in a
    do: { c: { user: "About ${ item } a word", gen: { max_tokens: 4 } } }
  d: { from: a, user: "Now ${ b | bullets }", gen: { max_tokens: 2 } }
outputs: { d: "${ d }" }
""",
    "branches of which one fails": """
steps:
  a:
    for: number in [2, 0, 1]
    join: settle
    do:
      b: { user: "Round ${ number } of three", gen: { max_tokens: 4 } }
      c: { user: "Of ${ b } and ${ 6 / number }", gen: { max_tokens: 4 } }
    yield: ${ c }
  d: { user: "All ${ a | where('ok') | pluck('value') | json }", gen: { max_tokens: 2 } }
outputs: { d: "${ d }" }
""",
    "answers that are cut, flattened and paired": """
steps:
  a:
    for: word in ["red", "blue"]
    do: { c: { user: "Say two words of ${ word }", gen: { max_tokens: 9 } } }
  b:
    for: pair in a | zip(["one", "two"])
    do: { d: { user: "Of ${ pair | join(' ') | truncate_tokens(4) }", gen: { max_tokens: 4 } } }
  e: { user: "All ${ [a, b] | flatten | join(', ') }", gen: { max_tokens: 3 } }
outputs: { e: "${ e }" }
""",
}  # fmt: skip


class CharText:
    """Tokens are characters; a turn is a role, its text and a close. One is always computed."""

    context_len = 1_000
    recomputation = Recomputation(num_tokens=1, num_kept_prompts=0)

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))

    def prompt(self, turns: Sequence[Turn]) -> list[int]:
        closed = [[_ROLES[role], *self.encode(text), _CLOSE] for role, text in turns]
        return [*(token for turn in closed for token in turn), _ROLES["assistant"]]

    def until_content(self, turns: Sequence[Turn]) -> list[int]:
        return self.prompt(turns)[:-2]

    def closes_turn(self, token_id: int) -> bool:
        return token_id == _CLOSE


class WordText:
    """Tokens and template of the scripted backend, which finds all that it ever computed."""

    context_len = 10_000
    recomputation = Recomputation(num_tokens=0, num_kept_prompts=0)

    def __init__(self) -> None:
        self._vocabulary: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        return [
            self._vocabulary.setdefault(word, len(self._vocabulary)) for word in _WORD.findall(text)
        ]

    def prompt(self, turns: Sequence[Turn]) -> list[int]:
        closed = "".join(f"<{role}> {text} </{role}> " for role, text in turns)
        return self.encode(closed + "<assistant> ")

    def until_content(self, turns: Sequence[Turn]) -> list[int]:
        *before, (role, text) = turns
        closed = "".join(f"<{role}> {text} </{role}> " for role, text in before)
        return self.encode(closed + f"<{role}> {text} ")

    def closes_turn(self, token_id: int) -> bool:
        return False


def plan_of(
    text: str,
    tokens: Tokenizing | None = None,
    *,
    num_pages: int | None = None,
    **inputs: JsonValue,
) -> Plan:
    """The plan of a workflow text without its head."""
    program = require_program(load_text(HEAD + text))
    values = resolve_inputs(program, inputs)
    return plan_program(program, values, tokens or CharText(), num_pages=num_pages)


async def accounting_of(
    text: str, backend: Backend, inputs: Mapping[str, JsonValue] | None = None
) -> Accounting:
    """What a run of the same text is counted to cost."""
    program = require_program(load_text(HEAD + text))
    async with start(program, resolve_inputs(program, inputs or {}), backend, seed=3) as run:
        facts = [event.fact async for event in run.events()]
    finished = facts[-1]
    assert isinstance(finished, RunFinished), finished
    return finished.accounting
