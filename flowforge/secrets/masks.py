"""Finding secrets in texts, also where they were escaped, quoted or encoded on their way there."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MASK = "***"
MIN_CHARS = 4
"""Shorter values, and shorter lines of a value, are not looked for: half of all texts have them."""


def mask_of(values: Iterable[str]) -> Callable[[str], str] | None:
    """What masks these values in a text; None where there is nothing to look for."""
    written = {form for value in values for form in _forms(value)}
    if not written:
        return None
    # Longer ones first: a value may be the beginning of another one.
    pattern = re.compile("|".join(map(re.escape, sorted(written, key=len, reverse=True))))

    def mask(text: str) -> str:
        return pattern.sub(MASK, text)

    return mask


def _forms(value: str) -> Iterator[str]:
    """A value and its lines as they may stand in a text."""
    for piece in {value, *map(str.strip, value.splitlines())}:
        if len(piece) >= MIN_CHARS:
            yield piece
            yield json.dumps(piece)[1:-1]
            yield json.dumps(piece, ensure_ascii=False)[1:-1]
            yield repr(piece)[1:-1]
            octets = piece.encode("utf-8", "surrogateescape")
            yield from (quote(octets, safe=""), quote(octets), quote_plus(octets))
            yield from _base64_forms(octets)


def _base64_forms(octets: bytes) -> Iterator[str]:
    """As base64 writes them, also amid other octets, as in `user:password`."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(octets).decode().rstrip("=")
        for num_before in range(3):
            # Characters that hold bits of neighbours too are left out.
            inner = encode(b"\0" * num_before + octets)[
                (8 * num_before + 5) // 6 : 8 * (num_before + len(octets)) // 6
            ].decode()
            if len(inner) >= MIN_CHARS:
                yield inner
