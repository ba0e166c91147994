"""How far a text goes in a grammar, and what could come there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher

_NUM_BYTES = 256
# Bytes that begin a character of more than one byte.
_BEGINS_MORE = range(0xC2, 0xF5)


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a text goes.

    num_chars: from its start. is_accepted: whether all of it is a text of the grammar. may_end:
    whether the part that goes is one. following: the characters of ASCII that could come behind
    that part. has_more: whether others could.
    """

    num_chars: int
    is_accepted: bool
    may_end: bool
    following: str
    has_more: bool


def reach_of(matcher: LLMatcher, text: str) -> Reach:
    """Follow a text. matcher: at its start, over single bytes; used up."""
    encoded = list(text.encode())
    num_bytes = matcher.validate_tokens(encoded)
    # A character that is cut in its middle does not go.
    while num_bytes and num_bytes < len(encoded) and encoded[num_bytes] & 0xC0 == 0x80:
        num_bytes -= 1
    if num_bytes:
        matcher.consume_tokens(encoded[:num_bytes])
    num_chars = len(bytes(encoded[:num_bytes]).decode())
    may_end = bool(matcher.is_accepting())
    is_whole = num_bytes == len(encoded)
    mask = matcher.compute_bitmask()
    allowed = [byte for byte in range(_NUM_BYTES) if mask[byte // 8] >> (byte % 8) & 1]
    following = "".join(chr(byte) for byte in allowed if byte < 0x80)
    has_more = any(byte in _BEGINS_MORE for byte in allowed)
    return Reach(num_chars, is_whole and may_end, may_end, following, has_more)


def describe_following(reach: Reach) -> str:
    """For example: 'a' to 'z', '_', or the end."""
    parts: list[str] = []
    codes = [ord(char) for char in reach.following]
    start = 0
    for idx in range(1, len(codes) + 1):
        if idx < len(codes) and codes[idx] == codes[idx - 1] + 1:
            continue
        first, last = chr(codes[start]), chr(codes[idx - 1])
        if idx - start > 2:
            parts.append(f"{first!r} to {last!r}")
        else:
            parts += [repr(char) for char in reach.following[start:idx]]
        start = idx
    if reach.has_more:
        parts.append("other characters")
    if reach.may_end:
        parts.append("the end")
    return ", ".join(parts) or "nothing"
