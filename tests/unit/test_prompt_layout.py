"""Values that change stand behind text that does not: `check` says where they stand before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flowforge.language.loader import load

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.language.diagnostics import Diagnostic

LONG = "Weigh what is said against what is known, and say what you doubt. " * 8
"""132 tokens, by 4 characters a token."""

FILE = """
flowforge: 1
name: layout
inputs: {{ topic: string }}
steps:
  intro: {{ user: "About ${{ inputs.topic }}: {long}", gen: {{ max_tokens: 9 }} }}
{steps}
outputs: {{ intro: "${{ intro }}", end: "${{ end }}" }}
"""


def warnings_of(tmp_path: Path, steps: str) -> list[Diagnostic]:
    path = tmp_path / "layout.yaml"
    path.write_text(FILE.format(steps=steps, long=LONG), encoding="utf-8")
    result = load(path)
    assert result.program is not None, result.diagnostics
    return [one for one in result.diagnostics if one.code == "WF158"]


def each(prompt: str, keys: str = "") -> str:
    return f"""
  end:
    for: x in [1, 2]
    do:
      one: {{ {keys} user: "{prompt}", gen: {{ max_tokens: 9 }} }}"""


@pytest.mark.parametrize(
    ("prompt", "keys"),
    [
        (f"On ${{ x }}. {LONG}", ""),
        (f"On ${{ x }}. {LONG} ${{ inputs.topic }}", "from: intro,"),
        (f"${{ inputs.topic }} on ${{ x }}. {LONG}", ""),
        ("Go on.", f"system: 'On ${{ x }}. {LONG}',"),
        ("Go on.", f"turns: [ {{ user: 'On ${{ x }}. {LONG}' }} ],"),
    ],
)
def test_a_value_of_the_branch_before_long_text_is_told_with_its_place_and_cost(
    prompt: str, keys: str, tmp_path: Path
) -> None:
    (found,) = warnings_of(tmp_path, each(prompt, keys))

    assert "${ x } is another value in each branch, and about 13" in found.message
    assert "x" == found.source.text[found.span.start : found.span.end].strip("${ }")
    assert found.help is not None and "before ${ x }" in found.help


@pytest.mark.parametrize(
    ("prompt", "keys"),
    [
        (f"{LONG} On ${{ x }}.", ""),
        ("On ${ x }. Say what you doubt, in a few words.", ""),
        (f"On ${{ inputs.topic }}: {LONG}, ${{ x }}", ""),
        (f"{LONG}", "system: 'On ${ x }.',"),
    ],
)
def test_values_behind_the_text_or_before_a_few_words_are_left_alone(
    prompt: str, keys: str, tmp_path: Path
) -> None:
    assert [] == warnings_of(tmp_path, each(prompt, keys))


def test_what_continues_a_step_of_its_own_branch_has_nothing_to_share(tmp_path: Path) -> None:
    steps = f"""
  end:
    for: x in [1, 2]
    do:
      one: {{ user: "${{ x }}", gen: {{ max_tokens: 9 }} }}
      two: {{ from: one, user: "${{ x }} {LONG}", gen: {{ max_tokens: 9 }} }}
    yield: "${{ two }}" """

    assert [] == warnings_of(tmp_path, steps)


def test_a_value_of_the_outer_loop_stands_rightly_before_that_of_the_inner(tmp_path: Path) -> None:
    steps = """
  end:
    for: x in [1, 2]
    do:
      inner:
        for: y in [1, 2]
        do:
          one: {{ user: "{prompt}", gen: {{ max_tokens: 9 }} }}"""

    right = warnings_of(tmp_path, steps.format(prompt=f"{LONG} ${{ x }}, ${{ y }}"))
    (wrong,) = warnings_of(tmp_path, steps.format(prompt=f"${{ y }}, {LONG} ${{ x }}"))

    assert [] == right
    assert "${ y }" in wrong.message


def test_a_carried_value_of_a_loop_before_long_text_is_told(tmp_path: Path) -> None:
    steps = f"""
  end:
    loop: {{ text: "" }}
    max: 3
    do:
      better: {{ user: "${{ text }} {LONG}", gen: {{ max_tokens: 9 }} }}
    next: {{ text: "${{ better }}" }}"""

    (found,) = warnings_of(tmp_path, steps)

    assert "in each round" in found.message


def test_steps_with_the_same_text_behind_other_values_are_told_once(tmp_path: Path) -> None:
    steps = """
  mid: {{ {keys} user: "{mid}", gen: {{ max_tokens: 9 }} }}
  end: {{ {keys} user: "{end}", gen: {{ max_tokens: 9 }} }}"""

    def found(mid: str, end: str, keys: str = "system: be kind,") -> list[Diagnostic]:
        return warnings_of(tmp_path, steps.format(mid=mid, end=end, keys=keys))

    (one,) = found(f"On ${{ intro }}. {LONG}", f"On ${{ mid }}. {LONG}")
    assert "'mid' and 'end' have about 13" in one.message
    assert [] == found(f"{LONG} on ${{ intro }}", f"{LONG} on ${{ mid }}")
    assert [] == found(f"Of ${{ intro }}. {LONG}", f"Of ${{ intro }}. {LONG} ${{ mid }}")
    assert [] == found(f"One. {LONG} ${{ intro }}", f"Two. {LONG} ${{ mid }}")
