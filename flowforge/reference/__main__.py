"""`python -m flowforge.reference DIR`: write the pages into a folder."""

from __future__ import annotations

import sys
from pathlib import Path

from flowforge.reference.pages import pages

if __name__ == "__main__":
    for name, page in pages().items():
        Path(sys.argv[1], name).write_text(page, encoding="utf-8")
