"""Every public name has a complete type, as pyright sees an installed package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import flowforge as ff

ROOT = Path(__file__).parents[2]


def test_public_names_and_their_members_have_known_types(tmp_path: Path) -> None:
    pyright = str(Path(sys.executable).with_name("pyright"))
    finished = subprocess.run(
        [
            *(pyright, "--pythonpath", sys.executable),
            *("--verifytypes", "flowforge", "--ignoreexternal", "--outputjson"),
        ],
        # The import hook of an editable install is nothing that pyright follows.
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    symbols: list[dict[str, Any]] = json.loads(finished.stdout)["typeCompleteness"]["symbols"]

    homes = [home_of(name) for name in ff.__all__]
    public = [
        symbol
        for symbol in symbols
        if any(symbol["name"] == home or symbol["name"].startswith(f"{home}.") for home in homes)
    ]
    unclear = [
        symbol["name"]
        for symbol in public
        if symbol["isTypeAmbiguous"] or not symbol["isTypeKnown"]
    ]
    assert [] == unclear
    assert len(public) > len(ff.__all__)


def home_of(name: str) -> str:
    """Where a public name is defined, with the name itself."""
    found = getattr(ff, name)
    if found is import_module("flowforge.testing"):
        return "flowforge.testing"
    return f"{found.__module__}.{name}"
