"""The model's tokenizer, with text that is content kept apart from text that controls.

The `tokenizers` library turns the text of a control token into its id wherever it stands, also
with `add_special_tokens=False`. So there are two instances of one `tokenizer.json`: the one as it
is encodes scaffolding; in the other every control token is renamed to text that content cannot
contain, so that `<|im_end|>` in a user's text stays seven ordinary tokens. So are the *markers*:
added tokens such as `<tool_call>` that show in text, but by which the chat template sets parts of
a turn apart.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tokenizers import Tokenizer as BackendTokenizer

from flowforge.engine.models.config_keys import read_json_object
from flowforge.engine.text.template_source import find_template_source
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    JsonObject = dict[str, Any]

# Content is cut after each of these before it is encoded, so no piece holds a whole renamed token.
_GUARD = "\U0010fffd"
_AFTER_GUARD = re.compile(f"(?<={_GUARD})")
_MARKER = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """Text to token ids and back, for one model. Immutable; usable from several threads.

    vocab_size: the highest id plus one; a model's own width may be larger (padded rows).
    special_ids: ids that control and never show in text. eos_ids: every id that ends a turn, the
    union of what tokenizer, generation and model config name. turn_end_id: the one that templates
    know as `eos_token`. bos_id, turn_end_id: None if the model has none.
    adds_bos: whether a raw completion starts with bos_id.
    tokenizer_json, fingerprint: what grammars build their vocabulary from, and its sha256.
    """

    def __init__(
        self,
        tokenizer_json: str,
        *,
        eos_ids: Iterable[int] = (),
        bos_id: int | None = None,
        adds_bos: bool | None = None,
        configs: Mapping[str, JsonObject] | None = None,
        template: str = "",
    ) -> None:
        """template: the source of the model's chat template, which tells what markers are."""
        raw = _parse_object(tokenizer_json, "tokenizer.json")
        self.tokenizer_json = tokenizer_json
        self.fingerprint = hashlib.sha256(tokenizer_json.encode()).hexdigest()
        self._scaffolding = _build(tokenizer_json)
        self._added = {int(token["id"]): str(token["content"]) for token in raw["added_tokens"]}
        tokenizer_config = (configs or {}).get("tokenizer_config.json", {})
        self.bos_id = self._bos_of(configs or {}) if bos_id is None else bos_id
        self.turn_end_id = self._id_of(tokenizer_config.get("eos_token"))
        self.eos_ids = frozenset(eos_ids) | self._eos_of(configs or {})
        self.special_ids = self._control_ids(raw)
        self._marker_ids = self._markers_of(template) - self.special_ids
        self.special_tokens = {self._text_of(token_id): token_id for token_id in self.special_ids}
        self._content = self._build_content(raw)
        self._completion = self._build_completion(raw)
        self.adds_bos = self._finds_bos(tokenizer_config) if adds_bos is None else adds_bos
        self.vocab_size = 1 + max(self._scaffolding.get_vocab().values())
        decoder = _types_of(raw.get("decoder"))
        self._is_byte_level = "ByteLevel" in decoder
        self.strips_leading_space = "Strip" in decoder
        self._id_to_bytes: dict[int, bytes] = {}

    def __repr__(self) -> str:
        return f"Tokenizer(vocab={self.vocab_size} special={len(self.special_ids)})"

    @classmethod
    def from_directory(cls, directory: Path | str) -> Tokenizer:
        """Load the tokenizer of a Hugging Face directory.

        A directory without `tokenizer.json` is converted through `transformers`, without running
        code from it. Raises EngineError EN301 when there is no tokenizer that can be read, EN111
        for another file that is no JSON object.
        """
        folder = Path(directory)
        path = folder / "tokenizer.json"
        text = _read_text(path) if path.exists() else _convert(folder)
        names = ("tokenizer_config.json", "generation_config.json", "config.json")
        configs = {name: _read_config(folder / name) for name in names}
        return cls(text, configs=configs, template=find_template_source(folder) or "")

    def encode(self, text: str) -> list[int]:
        """Encode content: no id of the result controls, whatever the text says.

        Bytes that the model's vocabulary has no token for are left out, as the model knows no
        way to say them: of SmolLM2 six ASCII control characters and the planes 4 to 11 of Unicode.
        Raises EngineError EN307 for half a surrogate pair, which is no character.
        """
        return self._encode_guarded(self._content, text)

    def encode_scaffolding(self, text: str) -> list[int]:
        """Encode trusted text, in which control tokens are meant. Adds nothing (no BOS)."""
        return list(self._scaffolding.encode(text, add_special_tokens=False).ids)

    def encode_completion(self, text: str) -> list[int]:
        """Encode a raw prompt as content that starts the context: BOS first if the model wants it.

        The whole prompt is content: a control token's text in it stays text.
        """
        bos = [self.bos_id] if self.adds_bos and self.bos_id is not None else []
        return bos + self._encode_guarded(self._completion, text)

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Turn ids into text; bytes that are no UTF-8 become U+FFFD, padded ids nothing."""
        pieces = (self.token_bytes(t, skip_special=skip_special) for t in token_ids)
        text = b"".join(pieces).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    def token_bytes(self, token_id: int, *, skip_special: bool = False) -> bytes:
        """Return the bytes one token stands for; b"" for ids past the vocabulary.

        Raises ValueError for a negative id.
        """
        if token_id < 0:
            raise ValueError(f"token id {token_id}, expected 0 or more")
        if skip_special and token_id in self.special_ids:
            return b""
        known = self._id_to_bytes.get(token_id)
        if known is None:
            known = self._id_to_bytes[token_id] = self._find_bytes(token_id)
        return known

    def _find_bytes(self, token_id: int) -> bytes:
        if token_id in self._added and (self._is_byte_level or token_id in self.special_ids):
            return self._added[token_id].encode()
        piece = self._scaffolding.id_to_token(token_id)
        if piece is None:
            return b""
        if self._is_byte_level:
            return _byte_level_bytes(piece)
        match = _BYTE_PIECE.fullmatch(piece)
        if match is not None:
            return bytes([int(match[1], 16)])
        return piece.replace("▁", " ").encode()

    def _encode_guarded(self, backend: BackendTokenizer, text: str) -> list[int]:
        _require_characters(text)
        if _GUARD not in text:
            return list(backend.encode(text, add_special_tokens=False).ids)
        token_ids: list[int] = []
        for piece in _AFTER_GUARD.split(text):
            token_ids.extend(backend.encode(piece, add_special_tokens=False).ids)
        return token_ids

    def _build_content(self, raw: JsonObject) -> BackendTokenizer:
        marked = frozenset(int(t["id"]) for t in raw["added_tokens"] if t.get("special"))
        if self.special_ids == marked and not _has_prefix_space(raw):
            # The library's own switch reads marked tokens' text as text; rewriting the whole
            # description, as below, takes a third of a second on a vocabulary of 49,152.
            content = _build(self.tokenizer_json)
            content.encode_special_tokens = True
            content.add_special_tokens([self._added[token_id] for token_id in self._marker_ids])
            return content
        return _build(json.dumps(_neutralise(raw, self._controlling, has_prefix=False)))

    def _build_completion(self, raw: JsonObject) -> BackendTokenizer:
        if not _has_prefix_space(raw):
            return self._content
        return _build(json.dumps(_neutralise(raw, self._controlling, has_prefix=True)))

    @property
    def _controlling(self) -> frozenset[int]:
        return self.special_ids | self._marker_ids

    def _markers_of(self, template: str) -> frozenset[int]:
        return frozenset(
            token_id
            for token_id, text in self._added.items()
            if _MARKER.fullmatch(text) and text in template
        )

    def _control_ids(self, raw: JsonObject) -> frozenset[int]:
        marked = frozenset(int(t["id"]) for t in raw["added_tokens"] if t.get("special"))
        bos = set() if self.bos_id is None else {self.bos_id}
        return frozenset(marked | self.eos_ids | bos)

    def _text_of(self, token_id: int) -> str:
        text = self._scaffolding.id_to_token(token_id)
        if text is None:
            raise EngineError(
                "EN301",
                f"end or start token {token_id} is not in the tokenizer's vocabulary",
                help="check eos_token_id and bos_token_id in the model's config files",
            )
        return text

    def _id_of(self, token: object) -> int | None:
        text = token.get("content") if isinstance(token, dict) else token
        return self._scaffolding.token_to_id(text) if isinstance(text, str) else None

    def _bos_of(self, configs: Mapping[str, JsonObject]) -> int | None:
        tokenizer_config = configs.get("tokenizer_config.json", {})
        if "bos_token" in tokenizer_config:  # null says that there is none, whatever others say
            return self._id_of(tokenizer_config["bos_token"])
        listed = (config.get("bos_token_id") for config in configs.values())
        return next((value for value in listed if isinstance(value, int)), None)

    def _eos_of(self, configs: Mapping[str, JsonObject]) -> frozenset[int]:
        found: set[int] = set()
        for config in configs.values():
            named = self._id_of(config.get("eos_token"))
            listed = config.get("eos_token_id")
            values: list[object] = listed if isinstance(listed, list) else [listed]
            found.update(value for value in (named, *values) if isinstance(value, int))
        return frozenset(found)

    def _finds_bos(self, tokenizer_config: JsonObject) -> bool:
        declared = tokenizer_config.get("add_bos_token")
        if isinstance(declared, bool):
            return declared and self.bos_id is not None
        first = self._scaffolding.encode("a").ids[:1]
        return self.bos_id is not None and first == [self.bos_id]


def _require_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise EngineError(
            "EN307",
            f"character {error.start + 1:,} of a text is U+{ord(half):04X}, half a surrogate pair",
            help="read the text as UTF-8, or replace such halves: text.encode(errors='replace')",
        ) from None


def _build(tokenizer_json: str) -> BackendTokenizer:
    try:
        backend = BackendTokenizer.from_str(tokenizer_json)
    except Exception as error:  # the Rust side raises bare Exception, and nothing narrower
        raise _unreadable("tokenizer.json", _first_line(error)) from error
    backend.no_padding()
    backend.no_truncation()
    return backend


def _neutralise(raw: JsonObject, control_ids: frozenset[int], *, has_prefix: bool) -> JsonObject:
    """Rename every control token, in the added tokens and in the model's vocabulary.

    They are renamed and not removed: added tokens without a place in the model's vocabulary get
    their ids by counting, so a removed one would shift those behind it.
    """
    changed = cast("JsonObject", json.loads(json.dumps(raw)))
    renamed: dict[str, str] = {}
    for token in changed["added_tokens"]:
        if int(token["id"]) in control_ids:
            guarded = f"{_GUARD}{token['id']}{_GUARD}"
            renamed[token["content"]] = guarded
            token.update(content=guarded, lstrip=False, rstrip=False, normalized=False)
    _rename_in_model(changed["model"], renamed)
    changed["post_processor"] = None
    if not has_prefix:
        _drop_prefix_space(changed)
    return changed


def _rename_in_model(model: JsonObject, renamed: dict[str, str]) -> None:
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {renamed.get(piece, piece): idx for piece, idx in vocab.items()}
    else:
        model["vocab"] = [[renamed.get(piece, piece), score] for piece, score in vocab]
    if model.get("unk_token") in renamed:
        model["unk_token"] = renamed[model["unk_token"]]
    if "merges" in model:
        pairs = (m.split(" ", 1) if isinstance(m, str) else m for m in model["merges"])
        model["merges"] = [
            [left, right]
            for left, right in pairs
            if left not in renamed and right not in renamed and left + right not in renamed
        ]


def _drop_prefix_space(raw: JsonObject) -> None:
    """Encode as text in the middle of a context, where no space may appear from nowhere."""
    for component in _components(raw.get("normalizer")):
        if component["type"] == "Prepend":
            component["prepend"] = ""
    for component in _components(raw.get("pre_tokenizer")):
        if component["type"] == "Metaspace":
            component["prepend_scheme"] = "never"
        elif component["type"] == "ByteLevel":
            component["add_prefix_space"] = False


def _has_prefix_space(raw: JsonObject) -> bool:
    parts = [*_components(raw.get("normalizer")), *_components(raw.get("pre_tokenizer"))]
    return any(
        part["type"] == "Prepend"
        or (part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never")
        or (part["type"] == "ByteLevel" and part.get("add_prefix_space"))
        for part in parts
    )


def _components(part: JsonObject | None) -> list[JsonObject]:
    """Flatten a Sequence of normalizers, pre-tokenizers or decoders."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    inner = next(value for key, value in part.items() if key != "type")
    return [leaf for child in inner for leaf in _components(child)]


def _types_of(part: JsonObject | None) -> set[str]:
    return {component["type"] for component in _components(part)}


def _make_byte_alphabet() -> dict[str, int]:
    """Map GPT-2's printable stand-ins back to bytes (Radford et al. 2019, byte-level BPE)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + idx): byte for idx, byte in enumerate(others)})
    return alphabet


_BYTE_ALPHABET = _make_byte_alphabet()


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return bytes(_BYTE_ALPHABET[char] for char in piece)
    except KeyError:
        return piece.encode()


def _convert(folder: Path) -> str:
    """Make a tokenizer.json text of an older tokenizer format."""
    # Only here: importing transformers takes seconds, and most directories never need it.
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        return str(loaded.backend_tokenizer.to_str())
    except ImportError as error:
        raise _unreadable(str(folder), _first_line(error)) from error
    except (OSError, ValueError, AttributeError) as error:
        # The library lists all formats that it knows; that none is there is what counts.
        raise _unreadable(
            str(folder), "no tokenizer.json, nor older files that one can be made from"
        ) from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(str(path), _first_line(error)) from error


def _read_config(path: Path) -> JsonObject:
    return read_json_object(path) if path.exists() else {}


def _parse_object(text: str, name: str) -> JsonObject:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise _unreadable(name, _first_line(error)) from error
    if not isinstance(value, dict):
        raise _unreadable(name, f"a JSON {type(value).__name__}, expected an object")
    return cast("JsonObject", value)


def _unreadable(name: str, reason: str) -> EngineError:
    return EngineError(
        "EN301",
        f"cannot read tokenizer {name!r}: {reason}",
        help="a model directory needs tokenizer.json and tokenizer_config.json: fetch it again",
    )


def _first_line(error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
    return f"{reason[:1].lower()}{reason[1:]}" or "no reason given"
