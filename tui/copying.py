"""Texts on their way out of the viewer: to the terminal's clipboard, and into files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from flowforge.control.orders import private_folder

if TYPE_CHECKING:
    from textual.app import App

MAX_CLIPBOARD_BYTES = 74_000
"""Terminals drop longer OSC 52 sequences: tmux and xterm take 100,000 characters of base64."""


def copy(app: App[object], text: str, name: str) -> None:
    """Send a text to the terminal's clipboard, and keep it in a file of the user's alone.

    Whether a terminal takes it cannot be known, so both are said.
    """
    file = write_private(text, name)
    if len(text.encode()) <= MAX_CLIPBOARD_BYTES:
        app.copy_to_clipboard(text)
        how = "sent to the terminal's clipboard (OSC 52), and"
    else:
        how = "too long for a terminal's clipboard;"
    app.notify(f"{len(text):,} characters {how} written to {file}", markup=False)


def write_private(text: str, name: str, suffix: str = ".txt") -> Path:
    """Write a text into a file of the temporary folder that only its user can read."""
    folder = private_folder() or Path(mkdtemp(prefix="flowforge-"))
    stem = re.sub(r"[^\w.-]+", "_", name).strip("_")[:80] or "text"
    file = folder / f"{stem}{suffix}"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as opened:
        opened.write(text)
    return file
