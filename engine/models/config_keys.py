"""Typed access to a model's JSON files; every error names the file, the key and what it held."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path


class ConfigKeys:
    """One JSON object of a file; path is for messages."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self._path = path
        self._content = content

    def get(self, key: str) -> Any:
        """The value as it stands; None when the key is missing."""
        return self._content.get(key)

    def positive_int(self, key: str, default: int | None = None) -> int:
        """Raises EngineError EN111 for another value, or for none without a default."""
        value = self._content.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self.wrong(key, value, "a positive integer")
        return value

    def positive_float(self, key: str, default: float | None = None) -> float:
        """Raises EngineError EN111 for another value, or for none without a default."""
        value = self._content.get(key)
        if value is None and default is not None:
            return default
        if not _is_positive(value):
            raise self.wrong(key, value, "a positive number")
        return float(value)

    def positive_floats(self, key: str, length: int) -> tuple[float, ...]:
        """Raises EngineError EN111 for anything but `length` positive numbers."""
        value = self._content.get(key)
        if not isinstance(value, list) or len(value) != length or not all(map(_is_positive, value)):
            raise self.wrong(key, value, f"a list of {length} positive numbers")
        return tuple(map(float, value))

    def boolean(self, key: str, *, default: bool) -> bool:
        """Raises EngineError EN111 for anything but true, false or nothing."""
        value = self._content.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def section(self, key: str) -> ConfigKeys | None:
        """The object under a key, None when there is none. Raises EngineError EN111."""
        value = self._content.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, value, "an object")
        return ConfigKeys(self._path, cast("dict[str, Any]", value))

    def empty(self) -> ConfigKeys:
        """A section of the same file without any key."""
        return ConfigKeys(self._path, {})

    def of_layers(self, key: str, num_layers: int) -> list[Any] | None:
        """A list with an entry for each layer, None when there is none. Raises EngineError EN111.

        Longer lists are cut: models with layers taken away keep the list of the whole.
        """
        value = self._content.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < num_layers:
            raise self.wrong(key, value, f"a list with an entry for each of {num_layers} layers")
        return value[:num_layers]

    def wrong(self, key: str, found: object, expected: str) -> EngineError:
        """What to raise for a value that the file's format does not allow."""
        shown = "nothing" if found is None else repr(found)
        return EngineError(
            "EN111",
            f"{str(self._path)!r} has {shown} under {key!r}, expected {expected}",
            help="fetch the model again, or correct its config.json",
        )

    def unsupported(self, key: str, found: object, supported: str) -> EngineError:
        """What to raise for a value that the format allows and the engine does not."""
        return EngineError(
            "EN112",
            f"{str(self._path)!r} has {key} {found!r}, supported: {supported}",
            help="choose another model; `flowforge models list` shows those at hand",
        )


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object. Raises EngineError EN111."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise EngineError(
            "EN111", f"cannot read {str(path)!r} as JSON: {reason}", help="fetch the model again"
        ) from error
    if not isinstance(content, dict):
        raise EngineError(
            "EN111",
            f"{str(path)!r} holds {type(content).__name__}, expected an object",
            help="fetch the model again",
        )
    return cast("dict[str, Any]", content)


def _is_positive(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
