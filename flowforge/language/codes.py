"""Every code of the language, with its meaning in one line; documentation is made from this."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

CODES: Mapping[str, str] = {
    # The file and its YAML.
    "WF001": "the file cannot be read",
    "WF002": "the file is not UTF-8 text, or holds a control character",
    "WF003": "the file is too large",
    "WF004": "the file is empty",
    "WF005": "the top level is not a mapping",
    "WF006": "the file holds more than one document",
    "WF007": "the YAML cannot be parsed",
    "WF008": "a key is written twice in one mapping",
    "WF009": "a key is not a text",
    "WF010": "the YAML is nested too deep",
    "WF011": "aliases expand to too many nodes",
    "WF012": "an alias stands inside what it names",
    "WF013": "an alias names no anchor",
    "WF014": "a YAML tag that is not supported",
    "WF015": "a number that JSON cannot say",
    "WF016": "braces or brackets that were probably meant as text",
    "WF017": "a merge key that does not merge mappings",
    "WF018": "a comment cuts a text off (warning)",
    "WF019": "'{{ … }}' is plain text here (warning)",
    # The program.
    "WF100": "the language version is missing or unknown",
    "WF101": "an unknown key",
    "WF102": "a part of the language that is not built yet",
    "WF103": "a required key is missing",
    "WF104": "a step continues a step that is not in scope",
    "WF105": "a name that is not allowed",
    "WF106": "a name hides another one",
    "WF107": "a value of the wrong kind",
    "WF108": "a value out of range",
    "WF109": "a step without a verb",
    "WF110": "a step with several verbs",
    "WF111": "a step continues a step that has no conversation",
    "WF112": "a step with both 'from' and 'system'",
    "WF113": "a step that gives the model nothing to answer",
    "WF114": "an empty text",
    "WF115": "steps that wait for each other",
    "WF116": "a block of several steps that does not say what it yields",
    "WF117": "an input's default does not fit its type",
    "WF118": "an input's type or JSON Schema is not valid",
    "WF119": "a JSON Schema of a step cannot be used",
    # Expressions.
    "WF201": "an expression that cannot be parsed",
    "WF202": "an unknown name",
    "WF203": "an unknown field",
    "WF204": "an unknown filter",
    "WF205": "a filter on a value or argument of the wrong type",
    "WF206": "an operation on a value of the wrong type",
    "WF207": "an expression is not closed, or empty",
    "WF208": "a value that may be null is written into text",
    "WF209": "an expression that is too large",
    "WF210": "a loop over something that is not a list",
    "WF211": "text around an expression where only an expression may stand",
    "WF212": "a comparison that can never hold (warning)",
    # Inputs.
    "WF301": "an input is missing",
    "WF302": "an unknown input",
    "WF303": "an input's value does not fit its type",
    # Values met while running.
    "WF401": "null is written into text",
    "WF402": "an index beyond the end of a list",
    "WF403": "a value that grows too large or too deep",
    "WF404": "a value of the wrong kind in an expression",
}
