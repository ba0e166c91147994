"""A regex written as text: classes spelled out, so that no two dialects can differ on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from flowforge.grammars.lark.regex_tree import Branch, Chars, Look, Repeat, Sequence

if TYPE_CHECKING:
    from flowforge.grammars.lark.character_set import CharacterSet
    from flowforge.grammars.lark.regex_tree import Regex


Dialect: TypeAlias = Literal["mask", "python"]


def write_regex(regex: Regex, dialect: Dialect = "mask") -> str:
    """The regex in the syntax of Rust's regex crate, which the mask reads, or of Python's `re`.

    No slash is left bare. A lazy repeat is written like any other: the mask knows languages, not
    orders.
    """
    match regex:
        case Chars(chars):
            return _class(chars, dialect)
        case Sequence(parts):
            return "".join(_in_sequence(part, dialect) for part in parts)
        case Branch(parts):
            return "|".join(write_regex(part, dialect) for part in parts)
        case Repeat(part, least, most):
            return _grouped(part, dialect) + _count(least, most)
        case Look():
            raise AssertionError("looks are taken out before a regex is written")


def _in_sequence(regex: Regex, dialect: Dialect) -> str:
    text = write_regex(regex, dialect)
    return f"(?:{text})" if isinstance(regex, Branch) else text


def _grouped(regex: Regex, dialect: Dialect) -> str:
    text = write_regex(regex, dialect)
    return text if isinstance(regex, Chars) else f"(?:{text})"


def _count(least: int, most: int | None) -> str:
    match least, most:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case _:
            return f"{{{least},{'' if most is None else most}}}"


def _class(chars: CharacterSet, dialect: Dialect) -> str:
    if len(chars.ranges) == 1 and chars.ranges[0][0] == chars.ranges[0][1]:
        return _char(chars.ranges[0][0], dialect)
    inverse = ~chars
    if inverse and len(inverse.ranges) < len(chars.ranges):
        return f"[^{_ranges(inverse, dialect)}]"
    return f"[{_ranges(chars, dialect)}]"


def _ranges(chars: CharacterSet, dialect: Dialect) -> str:
    return "".join(
        _char(low, dialect) if low == high else f"{_char(low, dialect)}-{_char(high, dialect)}"
        for low, high in chars.ranges
    )


def _char(code: int, dialect: Dialect) -> str:
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    return f"\\x{{{code:x}}}" if dialect == "mask" else f"\\U{code:08x}"
