"""The ids that end a text, from all files of a model that name some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from flowforge.engine.models.config_keys import ConfigKeys, read_json_object

if TYPE_CHECKING:
    from pathlib import Path


def read_eos_token_ids(directory: Path) -> tuple[int, ...]:
    """The union of what the three files say, sorted: each of them alone is wrong for some models.

    Raises EngineError EN111 for a file that is no JSON object or a value that is no id.
    """
    token_ids: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        path = directory / name
        if path.is_file():
            token_ids |= _listed_eos(path, read_json_object(path).get("eos_token_id"))
    token_ids |= _tokenizer_eos(directory)
    return tuple(sorted(token_ids))


def _listed_eos(path: Path, value: object) -> set[int]:
    if value is None:
        return set()
    listed = cast("list[object]", value if isinstance(value, list) else [value])
    if not all(isinstance(token_id, int) for token_id in listed):
        raise ConfigKeys(path, {}).wrong("eos_token_id", value, "an integer or a list of integers")
    return set(cast("list[int]", listed))


def _tokenizer_eos(directory: Path) -> set[int]:
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return set()
    content = read_json_object(path)
    token = content.get("eos_token")
    if isinstance(token, dict):
        token = cast("dict[str, Any]", token).get("content")
    if not isinstance(token, str):
        return set()
    added = cast("dict[str, dict[str, Any]]", content.get("added_tokens_decoder") or {})
    for token_id, entry in added.items():
        if entry.get("content") == token:
            return {int(token_id)}
    return _tokenizer_id(directory / "tokenizer.json", token)


def _tokenizer_id(path: Path, token: str) -> set[int]:
    """Look a token up in tokenizer.json; some megabytes to parse, so the last resort."""
    if not path.is_file():
        return set()
    content = read_json_object(path)
    added = cast("list[dict[str, Any]]", content.get("added_tokens") or [])
    found = {int(entry["id"]) for entry in added if entry.get("content") == token}
    if found:
        return found
    vocab = cast("dict[str, Any]", content.get("model") or {}).get("vocab")
    return {int(vocab[token])} if isinstance(vocab, dict) and token in vocab else set()
