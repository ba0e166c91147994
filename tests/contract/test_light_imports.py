"""What must not be imported before it is needed, counted in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ANALYST = Path(__file__).parents[2] / "workflows" / "analyst.yaml"

HEAVY = ("torch", "transformers", "textual", "llguidance", "numpy", "rich", "jsonschema")


def modules_after(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after a statement."""
    script = (
        f"import json, sys\n"
        f"try:\n    {statement}\n"
        f"except SystemExit:\n    pass\n"
        f"sys.stderr.write(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    modules: list[str] = json.loads(run.stderr.strip().splitlines()[-1])
    return set(modules)


@pytest.mark.parametrize(
    "statement",
    [
        "import flowforge",
        "import flowforge; flowforge.run, flowforge.ScriptBackend, flowforge.WorkflowError",
        "import sys; sys.argv = ['flowforge', '--help']; from flowforge.cli import main; main()",
        "import sys; sys.argv = ['flowforge', 'run', '-h']; from flowforge.cli import main; main()",
        "import sys; sys.argv = ['flowforge', 'explain']; from flowforge.cli import main; main()",
    ],
)
def test_nothing_heavy_is_imported(statement: str) -> None:
    assert set() == modules_after(statement) & set(HEAVY)


def test_check_imports_no_engine() -> None:
    statement = (
        f"import sys; sys.argv = ['flowforge', 'check', {str(ANALYST)!r}]; "
        "from flowforge.cli import main; main()"
    )

    assert set() == modules_after(statement) & {"torch", "transformers", "textual", "rich"}


def test_check_compiles_nothing_for_schemas_that_are_plain(tmp_path: Path) -> None:
    file = tmp_path / "plain.yaml"
    schema = "{ type: array, items: { type: string, maxLength: 40 }, maxItems: 3 }"
    file.write_text(
        "flowforge: 1\nname: plain\nsteps:\n"
        f"  a: {{ user: hi, gen: {{ json: {schema} }} }}\noutputs: {{ a: '${{ a }}' }}\n"
    )
    statement = (
        f"import sys; sys.argv = ['flowforge', 'check', {str(file)!r}]; "
        "from flowforge.cli import main; main()"
    )

    assert set() == modules_after(statement) & {*HEAVY, "typer", "pydantic", "ruamel"}


def test_the_viewer_imports_no_engine() -> None:
    loaded = modules_after("import flowforge.tui.__main__, flowforge.tui.app")

    assert "textual" in loaded
    assert set() == loaded & {"torch", "transformers", "llguidance", "tokenizers"}


def test_every_public_name_can_be_imported() -> None:
    import flowforge

    assert [] == [word for word in flowforge.__all__ if getattr(flowforge, word) is None]
    assert len(set(flowforge.__all__)) == len(flowforge.__all__)


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    import flowforge

    with pytest.raises(AttributeError, match="'nothing'"):
        getattr(flowforge, "nothing")  # noqa: B009 - a checker knows that it is not there
