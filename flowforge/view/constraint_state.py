"""How far a constrained answer is: whether it may end here, and what could follow.

Found from the recorded request and the text so far, where the viewer is: the run does nothing
for it, and it can be asked of any time of a run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from flowforge.errors import WorkflowError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llguidance import LLMatcher

MAX_CHARS = 50_000
"""Of a text that is followed: a viewer looks twice a second."""

_MAX_NAME_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class ConstraintState:
    """name: of the form. may_end: whether the text so far is a whole answer.

    following: in words, what could come next. num_taken: characters that the form takes; fewer than
    there are where the text broke it. None of the three where the form cannot be followed here.
    """

    name: str
    may_end: bool | None = None
    following: str | None = None
    num_taken: int | None = None


def constraint_state(asked: Mapping[str, Any], text: str) -> ConstraintState | None:
    """The state of a request of the journal (`WorkRow.request`'s own); None without a form."""
    form = next((one for one in _NAMES if asked.get(one) is not None), None)
    if form is None:
        return None
    name = _name(form, asked[form])
    if len(text) > MAX_CHARS:
        return ConstraintState(name)
    options = cast("dict[str, Any]", asked.get("options", {}))
    told = json.dumps([form, asked[form], options.get("on_unsupported"), options.get("whitespace")])
    matcher = _matcher(told)
    if matcher is None:
        return ConstraintState(name)
    from flowforge.grammars.lark.following import describe_following, reach_of

    reach = reach_of(matcher.deep_copy(), text)
    return ConstraintState(name, reach.may_end, describe_following(reach), reach.num_chars)


_NAMES = {"json_schema": "JSON Schema", "choice": "choice of", "regex": "regex", "grammar": ""}


def _name(form: str, told: Any) -> str:
    if form == "grammar":
        return f"grammar {told['file']}, from rule {told.get('start', 'start')!r}"
    shown = json.dumps(told, ensure_ascii=False)
    cut = shown if len(shown) <= _MAX_NAME_CHARS else f"{shown[:_MAX_NAME_CHARS]}…"
    return f"{_NAMES[form]} {cut}"


@lru_cache(maxsize=32)
def _matcher(told: str) -> LLMatcher | None:
    """A matcher at its start; None for a form that cannot be compiled here."""
    from flowforge.grammars.compilation import GrammarRefused
    from flowforge.grammars.form_matching import choice_matcher, regex_matcher, schema_matcher
    from flowforge.grammars.json_options import JsonOptions

    form, asked, on_unsupported, whitespace = json.loads(told)
    try:
        match form:
            case "json_schema":
                options = JsonOptions(on_unsupported or "error", whitespace or "compact")
                return schema_matcher(asked, options)
            case "choice":
                return choice_matcher(asked)
            case "regex":
                return regex_matcher(asked)
            case _:
                return _grammar_matcher(asked)
    except (GrammarRefused, WorkflowError):
        # A shipped file that has gone since, for example: the run said so if it mattered.
        return None


def _grammar_matcher(asked: dict[str, Any]) -> LLMatcher | None:
    from flowforge.backends.answer_grammars import load_grammar
    from flowforge.grammars.lark.grammar import LarkGrammar
    from flowforge.language.answer_specs import GrammarSpec

    grammar = load_grammar(GrammarSpec(**asked))
    return grammar.byte_matcher() if isinstance(grammar, LarkGrammar) else None
