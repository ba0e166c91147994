"""Writes grammar text in the mask's dialect of Lark: rules, terminals, control tokens."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.grammars.schema_dialect import JsonValue

ANY_TEXT = "/(?s:.*)/"
_META = re.compile(r"[\\.^$|?*+()\[\]{}/\-&~#]")
# Around JSON inside a call: spaced as Python and most templates write it, never more.
_JSON_OPTIONS: dict[str, JsonValue] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": False,
    "lenient": False,
}


class LarkText:
    """A grammar while it is written. Each rule and terminal is written once and has one name.

    control_ids: control tokens of the model's tokenizer, by text. Where one stands in a text that
    is meant to control, only the token itself is allowed.
    """

    def __init__(self, control_ids: Mapping[str, int]) -> None:
        self._control_ids = control_ids
        longest_first = sorted(control_ids, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._bodies: dict[str, str] = {}
        self._names: dict[tuple[str, str], str] = {}

    def __str__(self) -> str:
        """All rules, `start` first."""
        rules = sorted(self._bodies.items(), key=lambda rule: rule[0] != "start")
        return "".join(f"{name}: {body}\n" for name, body in rules)

    def rule(self, stem: str, body: str) -> str:
        """A rule with this body; its name begins with `stem`."""
        return self._named(stem, body)

    def open_rule(self, stem: str) -> str:
        """The name of a rule whose body follows by `close_rule`: it may lead back to itself."""
        name = f"{stem}_{len(self._bodies)}"
        self._bodies[name] = ""
        return name

    def close_rule(self, name: str, body: str) -> None:
        """Write the body of a rule that was opened."""
        self._bodies[name] = body

    def start(self, body: str) -> None:
        """The rule that everything begins with."""
        self._bodies["start"] = body

    def terminal(self, body: str) -> str:
        """A terminal."""
        return self._named("TEXT", body)

    def pieces(self, text: str) -> list[str]:
        """Text cut into control tokens and what stands between them, nothing empty."""
        return [piece for piece in re.split(f"({self._control.pattern})", text) if piece]

    def exactly(self, text: str) -> str:
        """An expression for a text in which control tokens are meant; "" for none."""
        return " ".join(self._piece(piece) for piece in self.pieces(text))

    def is_control(self, piece: str) -> bool:
        """Whether a piece is a control token."""
        return piece in self._control_ids

    def until(self, ending: str, body: str = ANY_TEXT) -> str:
        """An expression for text that ends with the first `ending`, which it takes in.

        body: what the text before it matches, as a terminal's expression.
        """
        first, *rest = self.pieces(ending)
        inside = without(first, body)
        if self.is_control(first):
            head = f"{self.terminal(inside)} {self._piece(first)}"
        else:
            # Lazy: it ends as soon as the ending is there.
            head = self._named("until", f"{self.terminal(inside)} {quoted(first)}", "[lazy]")
        return " ".join([head, *map(self._piece, rest)])

    def json(self, schema: JsonValue) -> str:
        """An expression for the JSON of a schema."""
        if not isinstance(schema, dict):
            schema = {} if schema is True else {"not": {}}
        return self._named("json", f"%json {json.dumps({**schema, 'x-guidance': _JSON_OPTIONS})}")

    def nested(self, grammar: str) -> str:
        """An expression for the texts of a whole grammar, with what it ignores."""
        return self._named("nested", f"%lark {{\n{grammar}}}")

    def _piece(self, piece: str) -> str:
        return f"<[{self._control_ids[piece]}]>" if self.is_control(piece) else quoted(piece)

    def _named(self, stem: str, body: str, attributes: str = "") -> str:
        key = (stem, body)
        if key not in self._names:
            name = f"{stem}_{len(self._bodies)}"
            self._names[key] = name
            self._bodies[name + attributes] = body
        return self._names[key]


def quoted(text: str) -> str:
    """A literal."""
    return json.dumps(text, ensure_ascii=False)


def regex(pattern: str) -> str:
    """A terminal's expression for a regex in the syntax of Rust's regex crate."""
    # A slash that is escaped already stays as it is.
    body = re.sub(r"(\\.)|/", lambda hit: hit[1] or r"\/", pattern, flags=re.DOTALL)
    return f"/{body.replace(chr(10), chr(92) + 'n')}/"


def escaped(text: str) -> str:
    """A regex for exactly this text."""
    return (
        _META.sub(r"\\\g<0>", text).replace("\n", r"\n").replace("\r", r"\r").replace("\t", r"\t")
    )


def without(text: str, body: str = ANY_TEXT) -> str:
    """A terminal's expression for what matches `body` and does not contain `text`."""
    return f"{body} & ~/(?s:.*{escaped(text)}.*)/"
