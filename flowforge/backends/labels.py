"""Which entry of a table by step path is meant for a step instance."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_AGAIN = re.compile(r"[#.]\d+")
_SAMPLE = re.compile(r"\[\d+\]$")


def matching_key(keys: Iterable[str], path: str) -> str | None:
    """The key for a path: the path itself, else the first key that matches with `*` for any text.

    A later try, `draft#2`, a step that comes again in a Python flow, `draft.2`, and a sample,
    `draft[0]`, also go by the path of their step, `draft`; what names them exactly goes first.
    """
    known = list(keys)
    plain = _AGAIN.sub("", path)
    paths = dict.fromkeys((path, plain, _SAMPLE.sub("", plain)))
    for candidate in paths:
        if candidate in known:
            return candidate
    patterns = [(key, _pattern(key)) for key in known if "*" in key]
    for candidate in paths:
        for key, pattern in patterns:
            if pattern.fullmatch(candidate):
                return key
    return None


def _pattern(key: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in key.split("*")), re.DOTALL)
