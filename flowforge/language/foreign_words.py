"""Words of other systems, each with the one that stands for it here: better help than a guess."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.diagnostics import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection

_KEYS: dict[str, tuple[str, ...]] = {
    "arguments": ("with",),
    "args": ("with",),
    "body": ("do",),
    "content": ("user",),
    "depends_on": ("after",),
    "input": ("user", "with"),
    "inputs": ("with",),
    "instructions": ("system",),
    "max_iterations": ("max",),
    "max_rounds": ("max",),
    "messages": ("turns",),
    "needs": ("after",),
    "on_error": ("catch",),
    "on_failure": ("catch",),
    "params": ("with",),
    "parameters": ("with",),
    "prompt": ("user",),
    "retries": ("retry",),
    "return": ("yield", "outputs"),
    "role": ("user",),
    "schema": ("json",),
    "steps": ("do",),
    "stop_sequences": ("stop",),
    "unless": ("when",),
    "version": ("flowforge",),
}
_FILTERS = {
    "attr": "pluck",
    "dump": "json",
    "extract": "pluck",
    "filter": "where",
    "float": "number",
    "format": "text",
    "fromjson": "from_json",
    "int": "number",
    "length": "len",
    "loads": "from_json",
    "lowercase": "lower",
    "map": "pluck",
    "parse": "from_json",
    "reject": "where",
    "select": "where",
    "selectattr": "where",
    "size": "len",
    "str": "text",
    "string": "text",
    "strip": "trim",
    "take": "head",
    "tojson": "json",
    "to_json": "json",
    "uppercase": "upper",
    "word_count": "tokens",
}


def help_for_key(word: str, known: Collection[str], otherwise: str) -> str | None:
    """The help for a key that is not known."""
    meant = next((key for key in _KEYS.get(word, ()) if key in known), None)
    if meant is not None:
        return f"{meant!r} is what says it here"
    return did_you_mean(word, known, otherwise)


def help_for_filter(word: str, known: Collection[str]) -> str | None:
    """The help for a filter that is not known."""
    if word in _FILTERS:
        return f"the filter for it is {_FILTERS[word]!r}"
    return did_you_mean(word, known, "filters: " + ", ".join(sorted(known)))
