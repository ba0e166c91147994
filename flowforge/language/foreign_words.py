"""Words of other systems, each with the one that stands for it here: better help than a guess."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from flowforge.language.diagnostics import did_you_mean, near_miss

if TYPE_CHECKING:
    from collections.abc import Collection

_KEYS: dict[str, tuple[str, ...]] = {
    "arguments": ("with",),
    "args": ("with",),
    "body": ("do",),
    "content": ("user",),
    "depends_on": ("after",),
    "elif": ("else",),
    "else_if": ("else",),
    "elseif": ("else",),
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
_LITERALS = {
    "False": "false",
    "None": "null",
    "True": "true",
    "nil": "null",
    "none": "null",
    "undefined": "null",
}
_TYPES = {
    "bool": "boolean",
    "decimal": "number",
    "dict": "object",
    "double": "number",
    "float": "number",
    "int": "integer",
    "list": "array",
    "map": "object",
    "none": "null",
    "record": "object",
    "set": "array",
    "str": "string",
    "text": "string",
    "tuple": "array",
}
_OPTIONAL = re.compile(r"(?:Optional\[(.+)\]|(.+?)\s*(?:\?|\|\s*(?:null|None)))", re.IGNORECASE)
_LIST = re.compile(r"(?:(?:list|array|sequence)\s*[\[<](.+)[\]>]|(.+?)\[\])", re.IGNORECASE)
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


def may_mean(word: str, keys: Collection[str]) -> bool:
    """Whether a key that is not known was probably meant as one of these."""
    return any(key in keys for key in _KEYS.get(word, ())) or near_miss(word, keys) is not None


def help_for_name(word: str, known: Collection[str], otherwise: str) -> str | None:
    """The help for a name in an expression that is not known."""
    if word in _LITERALS:
        return f"write {_LITERALS[word]!r}"
    if word in ("env", "environ", "ENV"):
        return "the environment is not read: declare an input, and give it with the run"
    return did_you_mean(word, known, otherwise)


def help_for_type(word: str, known: Collection[str], otherwise: str) -> str | None:
    """The help for a word that is no type, as other languages write theirs."""
    optional = _OPTIONAL.fullmatch(word.strip())
    if optional is not None:
        return f'write {{ type: [{_type_word(optional[1] or optional[2])}, "null"] }}'
    listed = _LIST.fullmatch(word.strip())
    if listed is not None:
        items = _type_word(listed[1] or listed[2])
        return f"write {{ type: array, items: {{ type: {items} }} }}"
    if word.lower() in _TYPES:
        return f"the type for it is {_TYPES[word.lower()]!r}"
    return did_you_mean(word, known, otherwise)


def _type_word(word: str) -> str:
    return _TYPES.get(word.strip().lower(), word.strip())


def help_for_filter(word: str, known: Collection[str]) -> str | None:
    """The help for a filter that is not known."""
    if word in _FILTERS:
        return f"the filter for it is {_FILTERS[word]!r}"
    return did_you_mean(word, known, "filters: " + ", ".join(sorted(known)))
