"""What is asked of an answer beside its prompt: sampling, form, and how it is held to the form.

They are the words that files, flows, requests over HTTP and backends share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """What the author said about sampling; `None` where the file is silent."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How an answer is held to its form.

    on_unsupported: "relax" judges only the finished answer by the keywords of a JSON Schema that
    cannot be enforced while it is written. whitespace: "bounded" allows a little between the tokens
    of JSON. on_cut: what becomes of an answer that comes to max_tokens before its end; "close" ends
    it with the shortest valid ending that is found. think: tokens that the model may think before
    its answer; None where it does not think. scoring: how one of some texts is chosen: "masked"
    token by token, "exact" by the likelihood of each text as a whole.
    """

    on_unsupported: Literal["error", "relax"] = "error"
    whitespace: Literal["compact", "bounded"] = "compact"
    on_cut: Literal["fail", "close"] = "fail"
    think: int | None = None
    scoring: Literal["masked", "exact"] = "masked"


PLAIN_OPTIONS = AnswerOptions()


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar that an answer must be a text of.

    text: of the grammar; empty for a shipped one. file: its file or name, as messages call it.
    folder: where its relative imports look. dialect: lark's, or the mask's own. is_approximate:
    what the mask cannot do exactly is left to lark, which judges the answer. has_tree: the value is
    {text, tree} and not the text alone.
    """

    text: str
    file: str
    folder: str | None = None
    is_shipped: bool = False
    is_inline: bool = False
    start: str = "start"
    parser: Literal["earley", "lalr"] = "earley"
    dialect: Literal["lark", "llguidance"] = "lark"
    is_approximate: bool = False
    has_tree: bool = True
