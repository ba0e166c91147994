"""Values as a journal keeps them: JSON in which long texts and lists stand once, by their hash.

A prompt that a hundred steps share, a value that a step, its event and the `for` around it all
hold, is stored once. Long lists are kept in pieces, so that one which grows by an item in each
round of a loop costs a piece a round and not a list a round.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flowforge.language.program import JsonValue

_SHORTEST_TEXT = 96
_LONGEST_LIST = 64
_PIECE = 32
_REFERENCE = "~"
_LIST = "~l"
_PLAIN, _PACKED = b"0", b"1"
_MARK = f'"{_REFERENCE}'
_DIGEST = re.compile(r'"([0-9a-f]{32})"')
_PLAIN_DECODER = json.JSONDecoder()


class Encoder:
    """Collects the contents that encoded values refer to. contents: digest → body."""

    def __init__(self) -> None:
        self.contents: dict[bytes, bytes] = {}

    def encode(self, value: JsonValue | object) -> str:
        """The value as one line of JSON."""
        return _dump(self._shortened(cast("JsonValue", value)))

    def _shortened(self, value: JsonValue) -> JsonValue:
        if isinstance(value, str):
            return value if len(value) < _SHORTEST_TEXT else {_REFERENCE: self._keep(value)}
        if isinstance(value, list | tuple):
            items = [self._shortened(item) for item in value]
            if len(items) <= _LONGEST_LIST:
                return items
            pieces = range(0, len(items), _PIECE)
            digests = [self._keep(_dump(items[start : start + _PIECE])) for start in pieces]
            return {_LIST: cast("JsonValue", digests)}
        if isinstance(value, dict):
            return {_escaped(name): self._shortened(item) for name, item in value.items()}
        return value

    def _keep(self, text: str) -> str:
        plain = text.encode("utf-8", "surrogatepass")
        digest = blake2b(plain, digest_size=16).digest()
        if digest not in self.contents:
            packed = zlib.compress(plain, 1)
            is_smaller = len(packed) < len(plain)
            self.contents[digest] = _PACKED + packed if is_smaller else _PLAIN + plain
        return digest.hex()


def decode(text: str, load: Callable[[bytes], bytes]) -> JsonValue:
    """The value of an encoded text. load: digest → body, KeyError where there is none."""
    return decoder(load)(text)


def decoder(load: Callable[[bytes], bytes]) -> Callable[[str], JsonValue]:
    """What gives the values of many encoded texts; see `decode`."""

    def restored(value: dict[str, JsonValue]) -> JsonValue:
        if len(value) == 1:
            ((name, inner),) = value.items()
            if name == _REFERENCE:
                return _text_of(load(bytes.fromhex(cast("str", inner))))
            if name == _LIST:
                digests = cast("Sequence[str]", inner)
                pieces = (_text_of(load(bytes.fromhex(digest))) for digest in digests)
                return [item for piece in pieces for item in cast("Any", decoded(piece))]
        if _REFERENCE not in "".join(value):
            return value
        return {_unescaped(name): inner for name, inner in value.items()}

    decoding = json.JSONDecoder(object_hook=restored)

    def decoded(text: str) -> JsonValue:
        # In a text of JSON a quote is escaped, so the mark is spelled by such objects alone.
        value: JsonValue = decoding.decode(text) if _MARK in text else _PLAIN_DECODER.decode(text)
        return value

    return decoded


def references_of(text: str) -> set[bytes]:
    """The digests that an encoded text refers to, but for those inside what it refers to."""
    found = _DIGEST.findall(text) if _MARK in text else ()
    return set(map(bytes.fromhex, found))


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids in as few bytes as is quickly done: what repeats costs little."""
    width = "H" if max(token_ids, default=0) < 1 << 16 else "I"
    plain = struct.pack(f"<{len(token_ids)}{width}", *token_ids)
    return width.encode("ascii") + zlib.compress(plain, 1)


def unpack_tokens(packed: bytes) -> tuple[int, ...]:
    """What `pack_tokens` was given."""
    width = packed[:1].decode("ascii")
    plain = zlib.decompress(packed[1:])
    return struct.unpack(f"<{len(plain) // struct.calcsize(width)}{width}", plain)


def digest_of(value: JsonValue | Mapping[str, object]) -> str:
    """A short text that equal values share, and no others."""
    plain = json.dumps(value, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return blake2b(plain, digest_size=12).hexdigest()


def _text_of(body: bytes) -> str:
    plain = zlib.decompress(body[1:]) if body[:1] == _PACKED else body[1:]
    return plain.decode("utf-8", "surrogatepass")


def _dump(value: JsonValue) -> str:
    # NaN and infinities are written as JavaScript does: a tool's inputs may hold what JSON cannot.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _escaped(name: str) -> str:
    return f"~{name}" if name.startswith("~") else name


def _unescaped(name: str) -> str:
    return name.removeprefix("~")
