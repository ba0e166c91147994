"""Python strings that are no texts: half a surrogate pair is no character, and has no bytes."""

from __future__ import annotations


def half_of_a_pair(text: str) -> str | None:
    """Where a text has half a surrogate pair, in words; None when it is all characters."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ord(text[error.start])
        return f"character {error.start + 1:,} is U+{half:04X}, half a surrogate pair"
    return None
