"""Who may ask: bearer keys, of which only hashes are kept.

Keys are long and random, so one round of SHA-256 hides them as well as a slow hash would. A key
that is presented is compared with all that there are, and no comparison ends early: how long a
refusal takes says nothing.

A file of keys is TOML, made by `flowforge keys add`:

    [[keys]]
    name = "alice"
    sha256 = "9f86d081884c7d65…"
    requests_per_minute = 60    # these two are optional
    concurrent = 8
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flowforge import environment
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_PREFIX = "ff-"
_LEAST_CHARS = 16


@dataclass(frozen=True, slots=True)
class Key:
    """One client. digest: SHA-256 of its key, in hexadecimal. The limits: see `Limits`."""

    name: str
    digest: str
    requests_per_minute: int | None = None
    concurrent: int | None = None

    @property
    def salt(self) -> str:
        """What keeps its prefixes in the KV cache apart from everybody else's."""
        return f"key {self.digest}"


ANYBODY = Key("", "")
"""Who asks where no key is wanted; all share one cache."""


class KeyRing:
    """The keys of a server. Those of a file are read again when the file has changed."""

    def __init__(self, file: Path | None = None, given: Iterable[str] = ()) -> None:
        """given: keys as they are. Raises EngineError EN911."""
        self._given = tuple(
            Key(f"env-{idx}", digest_of(_long_enough(key)))
            for idx, key in enumerate((one.strip() for one in given if one.strip()), 1)
        )
        self._file = file
        self._stamp: tuple[int, int, int] | None = None
        self._keys: tuple[Key, ...] = self._given
        self._problem: EngineError | None = None
        self._refresh()
        if self._problem is not None:
            raise self._problem

    @classmethod
    def from_environment(cls, file: Path | None, variables: Mapping[str, str]) -> KeyRing:
        """The keys of a file and of FLOWFORGE_API_KEYS, where commas part them."""
        return cls(file, variables.get(environment.API_KEYS.name, "").split(","))

    @property
    def is_open(self) -> bool:
        """Whether anybody may ask: no keys were ever given."""
        return self._file is None and not self._given

    def find(self, authorization: str | None) -> Key | None:
        """Whose key a header `Authorization` has; None for nobody's."""
        self._refresh()
        scheme, _, presented = (authorization or "").partition(" ")
        digest = digest_of(presented.strip()).encode()
        found: Key | None = None
        for key in self._keys:
            if hmac.compare_digest(key.digest.encode(), digest):
                found = key
        return found if scheme.lower() == "bearer" else None

    def _refresh(self) -> None:
        """Read the file if it is another one than before. A broken one changes nothing."""
        if self._file is None:
            return
        try:
            found = os.stat(self._file)
        except OSError as error:
            problem = _unusable(self._file, f"it cannot be read: {error.strerror}")
            # Told once: whoever logs it tells a problem from that of before by its identity.
            if self._problem is None or self._problem.message != problem.message:
                self._problem = problem
            self._stamp = None
            return
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = (*self._given, *read_keys(self._file))
            self._problem = None
        except EngineError as error:
            self._problem = error

    @property
    def problem(self) -> EngineError | None:
        """Why the file, which has changed, cannot be used: the keys are those of before."""
        return self._problem


_NAME = re.compile(r"[\w.@-]+")


def is_key_name(text: str) -> bool:
    """Whether a key may be called so."""
    return _NAME.fullmatch(text) is not None


class KeyEntry(BaseModel):
    """A key in a file of keys."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    name: str = Field(min_length=1, pattern=f"^{_NAME.pattern}$")
    """Whose key it is, as the log tells it."""
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """SHA-256 of the key, in hexadecimal."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    """At most; without it the limit of the server."""
    concurrent: int | None = Field(default=None, ge=1)
    """Requests at a time, at most; without it the limit of the server."""


class _KeyFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    keys: list[KeyEntry] = []


def read_keys(file: Path) -> tuple[Key, ...]:
    """The keys of a file. Raises EngineError EN911."""
    try:
        told = _KeyFile.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise _unusable(file, f"{place}: {first['msg']}") from None
    except (OSError, ValueError) as error:
        raise _unusable(file, str(error)) from error
    names = [entry.name for entry in told.keys]
    if len(set(names)) < len(names):
        raise _unusable(file, "a name is there twice")
    return tuple(
        Key(entry.name, entry.sha256, entry.requests_per_minute, entry.concurrent)
        for entry in told.keys
    )


def new_key() -> str:
    """A key that nobody can guess."""
    return _PREFIX + secrets.token_urlsafe(32)


def digest_of(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def written(keys: Iterable[Key]) -> str:
    """Keys as the text of a file."""
    return "\n".join(map(_entry_of, keys))


def _entry_of(key: Key) -> str:
    lines = ["[[keys]]", f'name = "{key.name}"', f'sha256 = "{key.digest}"']
    for field in ("requests_per_minute", "concurrent"):
        limit = cast("int | None", getattr(key, field))
        if limit is not None:
            lines.append(f"{field} = {limit}")
    return "\n".join(lines) + "\n"


def _long_enough(key: str) -> str:
    if len(key) < _LEAST_CHARS:
        raise EngineError(
            "EN911",
            f"a key of {environment.API_KEYS.name} has {len(key)} characters, expected at least "
            f"{_LEAST_CHARS}",
            help="'flowforge keys add NAME' makes keys that cannot be guessed",
        )
    return key


def _unusable(file: Path, reason: str) -> EngineError:
    return EngineError(
        "EN911",
        f"the file of keys {str(file)!r} cannot be used: {reason}",
        help="'flowforge keys add NAME --file FILE' writes such files",
    )
