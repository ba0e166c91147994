"""How a server is run: where, how much it takes, how long it waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may ask, if it has no limits of its own, and what all may together.

    None is no limit. requests_per_minute, concurrent: of one key. max_requests: under way in the
    whole server. max_body_bytes: of one request. max_choices: `n` times prompts.
    """

    requests_per_minute: int | None = None
    concurrent: int | None = None
    max_requests: int = 512
    max_body_bytes: int = 10 * 1024 * 1024
    max_choices: int = 128


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds. body_s: for the head of a request, and again for its body.

    keep_alive_s: of a silent stream until a comment. write_s: for a client to take what was sent.
    drain_s: for requests under way at the end. stall_s: for the engine to answer before the server
    calls itself not ready.
    """

    body_s: float = 30.0
    keep_alive_s: float = 15.0
    write_s: float = 60.0
    drain_s: float = 30.0
    stall_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """names: by which requests may ask for the model; the first is the one that answers tell.

    cors_origins: whose pages may ask; none by default, "*" is all.
    """

    names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    limits: Limits = Limits()
    waits: Waits = Waits()
    cors_origins: tuple[str, ...] = ()
