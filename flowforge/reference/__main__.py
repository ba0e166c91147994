"""`python -m flowforge.reference [DIR]`: write the pages into a folder, `docs` without a word."""

from __future__ import annotations

import sys
from pathlib import Path

from flowforge.reference.pages import pages

if __name__ == "__main__":
    folder = Path(*sys.argv[1:2] or ["docs"])
    for name, page in pages().items():
        (folder / name).write_text(page, encoding="utf-8")
