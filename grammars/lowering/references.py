"""Where the references of one schema lead."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from flowforge.grammars.lowering.positions import inner_schemas

if TYPE_CHECKING:
    from flowforge.grammars.lowering.positions import Path
    from flowforge.grammars.schema_dialect import JsonValue

_MAX_CHAIN = 16
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class References:
    """The targets of references into one schema. is_plain: whether '#/…' always means the whole.

    Where a part has an `$id` of its own it does not, and nothing is resolved.
    """

    def __init__(self, root: JsonValue) -> None:
        self._root = root
        self._anchors: dict[str, list[Path]] = {}
        self._has_recursive_anchor = False
        self.is_plain = True
        self._collect(root, ())

    def target(self, reference: str) -> tuple[Path, JsonValue] | None:
        """Path and schema that a reference leads to; None where that is not known."""
        if not self.is_plain or not reference.startswith("#"):
            return None
        fragment = unquote(reference[1:])
        if fragment and not fragment.startswith("/"):
            paths = self._anchors.get(fragment, [])
            return (paths[0], self._at(paths[0])) if len(paths) == 1 else None
        path: list[str | int] = []
        value = self._root
        for token in fragment.split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and key in value:
                path.append(key)
                value = value[key]
            elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
                path.append(int(key))
                value = value[int(key)]
            else:
                return None
        return tuple(path), value

    def is_static(self, keyword: str, reference: str) -> bool:
        """Whether a dynamic reference always leads to the same place: only one can be meant."""
        if keyword == "$recursiveRef":
            return not self._has_recursive_anchor
        anchor = reference.removeprefix("#")
        is_pointer = not anchor or anchor.startswith("/")
        return is_pointer or len(self._anchors.get(anchor, [])) == 1

    def used_paths(self) -> frozenset[Path] | None:
        """The paths of all schemas that the whole leads to; None where that is not known."""
        used: set[Path] = set()
        waiting: list[tuple[Path, JsonValue]] = [((), self._root)]
        while waiting:
            path, schema = waiting.pop()
            if path in used or not isinstance(schema, dict):
                continue
            used.add(path)
            for keyword, value in schema.items():
                if keyword in _REFERENCES and isinstance(value, str):
                    target = self.target(value)
                    if target is None:
                        return None
                    waiting.append(target)
                elif keyword not in ("$defs", "definitions"):
                    inner = inner_schemas(keyword, value)
                    waiting += [((*path, *inner_path), one) for inner_path, one in inner]
        return frozenset(used)

    def resolve(self, schema: JsonValue) -> JsonValue:
        """A schema, or what it refers to if it is nothing but a reference."""
        seen = 0
        while isinstance(schema, dict) and schema.keys() == {"$ref"} and seen < _MAX_CHAIN:
            found = self.target(str(schema["$ref"]))
            if found is None:
                break
            schema = found[1]
            seen += 1
        return schema

    def _at(self, path: Path) -> JsonValue:
        value = self._root
        for key in path:
            if isinstance(value, dict):
                value = value[str(key)]
            elif isinstance(value, list):
                value = value[int(key)]
        return value

    def _collect(self, schema: JsonValue, path: Path) -> None:
        if not isinstance(schema, dict):
            return
        if path and ("$id" in schema or isinstance(schema.get("id"), str)):
            self.is_plain = False
        if path and schema.get("$recursiveAnchor") is True:
            self._has_recursive_anchor = True
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := schema.get(keyword), str):
                self._anchors.setdefault(anchor, []).append(path)
        for keyword, value in schema.items():
            for inner_path, inner in inner_schemas(keyword, value):
                self._collect(inner, (*path, *inner_path))
