"""Slips that were told without a word on how to mend them."""

from __future__ import annotations

import pytest

from flowforge.language.loader import load_text

HEAD = "flowforge: 1\nname: t\n"


@pytest.mark.parametrize(
    ("text", "code", "help"),
    [
        ("steps:\n  a: { user: hi, gen: , after: zzz }\n", "WF137", "name a step beside this one"),
        ("steps:\n  a: { user: , gen: }\n", "WF114", "write the text behind 'user:'"),
        ("steps:\n  a: { set: [1] }\n  b: { set: '${ a.0 }' }\n", "WF201", "list[0]"),
        (
            "inputs: { n: { type: integer, default: x } }\nsteps: { a: { set: 1 } }\n",
            "WF117",
            "change the default",
        ),
        ("steps:\n  a: { user: 'hi, gen: }\n", "WF007", "close the quotes"),
        (
            "steps:\n  p: { parallel: { a: { set: 1 } }, join: { quorum: 3 } }\n",
            "WF108",
            "add branches or items",
        ),
    ],
    ids=["after", "empty", "item", "default", "quotes", "quorum"],
)
def test_the_help_says_how_to_mend_it(text: str, code: str, help: str) -> None:
    found = [one for one in load_text(HEAD + text).diagnostics if one.severity == "error"]

    assert [code] == [one.code for one in found]
    assert help in (found[0].help or "")
