"""Models that other servers run: what a `[models.NAME]` table or an entry of `models:` says of one.

Steps name them `remote/NAME`. Keys never stand in a file: it names the environment variable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast, get_args
from urllib.parse import urlsplit

from flowforge.language.diagnostics import did_you_mean
from flowforge.language.durations import seconds_of_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")

REMOTE = "remote/"
ROUTE = "route/"
Dialect = Literal["openai", "vllm", "sglang", "llama.cpp", "words"]
"""What a server understands beyond plain chat; "words" is nothing: forms are told in words."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_WAIT_S = 3_600.0


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """One model of an OpenAI-compatible server.

    url: up to and with /v1. model: what the server calls it. dialect: how forms are asked for.
    api_key: the environment variable with the key. tokenizer: a model directory or Hugging Face id
    whose tokenizer counts for it; without one nothing is counted before it is sent. context_len:
    tokens of prompt and answer together, where known. timeout_s: for the first piece of an answer,
    and between two. attempts: tries of one request, the first included. max_wait_s: the longest
    wait between two, whatever the server asks for. concurrency: requests at a time.
    """

    name: str
    url: str
    model: str
    dialect: Dialect = "openai"
    api_key: str | None = None
    tokenizer: str | None = None
    context_len: int | None = None
    timeout_s: float = 120.0
    attempts: int = 4
    max_wait_s: float = 60.0
    concurrency: int = 64

    @property
    def label(self) -> str:
        """How steps and messages call it."""
        return REMOTE + self.name


@dataclass(frozen=True, slots=True)
class TableProblem:
    """What is wrong with a table. key: where, None for the whole table."""

    key: str | None
    message: str
    help: str | None = None


Table: TypeAlias = "Mapping[str, object]"
MODEL_KEYS = {
    "url": "The address of the server, up to and with /v1.",
    "model": "What the server calls it; without it, its name here.",
    "dialect": "What the server understands beyond plain chat; openai without it.",
    "api_key": "The environment variable that holds the key.",
    "tokenizer": "A model directory or Hugging Face id whose tokenizer counts for it.",
    "context": "Tokens of prompt and answer together.",
    "timeout": "How long the first piece of an answer may take, and each one after; 120s without "
    "it.",
    "attempts": "Tries of one request; 4 without it.",
    "max_wait": "The longest wait between two tries, whatever the server asks for; 60s without it.",
    "concurrency": "Requests at a time; 64 without it.",
}
"""What a table may say, and what that means."""


def read_remote_model(name: str, table: Table) -> tuple[RemoteModel | None, list[TableProblem]]:
    """The model of a table; None beside every problem that it has."""
    reader = TableReader(table)
    reader.check_keys(MODEL_KEYS, f"model {name!r}")
    if not NAME.fullmatch(name):
        reader.report(None, f"model name {name[:60]!r} is not allowed", "letters, digits, '_.-'")
    found = RemoteModel(
        name,
        reader.read("url", _url, "an http(s) address, as http://localhost:8000/v1") or "",
        reader.read("model", text_of_value, "a text") or name,
        cast("Dialect", reader.word("dialect", get_args(Dialect)) or "openai"),
        reader.read("api_key", _variable, "the name of an environment variable, as API_KEY"),
        reader.read("tokenizer", text_of_value, "a model directory or Hugging Face id"),
        reader.read("context", count_of, "a number of tokens"),
        reader.read("timeout", duration_of_value, "a duration, as 30s") or 120.0,
        reader.read("attempts", count_of, "a number of tries, at least 1") or 4,
        reader.read("max_wait", duration_of_value, "a duration up to 1h, as 30s") or 60.0,
        reader.read("concurrency", count_of, "a number of requests, at least 1") or 64,
    )
    if "url" not in table:
        reader.report(None, f"model {name!r} has no 'url'", "add url = 'http://host:8000/v1'")
    return (None if reader.problems else found), reader.problems


class TableReader:
    """Takes values out of a table and keeps what is wrong with them."""

    def __init__(self, table: Table) -> None:
        self.problems: list[TableProblem] = []
        self._table = table

    def report(self, key: str | None, message: str, help: str | None = None) -> None:
        """One more problem."""
        self.problems.append(TableProblem(key, message, help))

    def check_keys(self, known: Iterable[str], owner: str) -> None:
        """Report keys that do not belong."""
        names = tuple(known)
        for key in self._table:
            if key not in names:
                help = did_you_mean(str(key), names, f"known keys: {', '.join(names)}")
                self.report(str(key), f"{str(key)!r} is not a key of {owner}", help)

    def read(self, key: str, parse: Callable[[object], T | None], expected: str) -> T | None:
        """A value as `parse` takes it; None without the key or when it is broken."""
        if key not in self._table:
            return None
        value = parse(self._table[key])
        if value is None:
            shown = repr(self._table[key])[:60]
            self.report(key, f"{key!r} must be {expected}, got {shown}")
        return value

    def word(self, key: str, words: tuple[str, ...]) -> str | None:
        """One of a few words."""
        expected = " or ".join(map(repr, words))

        def parse(value: object) -> str | None:
            return value if isinstance(value, str) and value in words else None

        return self.read(key, parse, expected)


def text_of_value(value: object) -> str | None:
    """A text with something in it."""
    return value.strip() if isinstance(value, str) and value.strip() else None


def count_of(value: object) -> int | None:
    """A whole number, at least 1."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return value if isinstance(value, int) and is_count else None


def number_of_value(value: object) -> float | None:
    """A number, at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < float("inf") else None


def duration_of_value(value: object) -> float | None:
    """Seconds of a text as 30s, above 0 and at most an hour."""
    seconds = seconds_of_text(value.strip()) if isinstance(value, str) else None
    return seconds if seconds is not None and 0 < seconds <= _MAX_WAIT_S else None


def _url(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    try:
        parts = urlsplit(value.strip())
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        # A password in an address would stand in messages.
        is_plain = parts.username is None and not parts.query and not parts.fragment
    except ValueError:
        return None
    return value.strip().rstrip("/") if is_address and is_plain else None


def _variable(value: object) -> str | None:
    return value if isinstance(value, str) and _VARIABLE.fullmatch(value) else None
