"""`flowforge init`: the starter that it writes, and what it never does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema
import pytest
from click.testing import CliRunner, Result

from flowforge.cli.app import app
from flowforge.language.editor_schema import editor_schema
from flowforge.language.source import Source
from flowforge.language.yaml_composer import compose
from flowforge.language.yaml_nodes import value_of_node

if TYPE_CHECKING:
    from pathlib import Path


def flowforge(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_init_writes_a_workflow_and_says_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    result = flowforge("init", "first.yaml")

    assert 0 == result.exit_code
    assert result.stdout == (
        "wrote first.yaml; next:\n"
        "  flowforge check first.yaml    # its problems, if it has any\n"
        "  flowforge run first.yaml -i topic=trains\n"
    )


@pytest.mark.parametrize(
    ("argument", "written"),
    [
        ((), "workflow.yaml"),
        (("new/folder",), "new/folder/workflow.yaml"),
        (("new/own.yml",), "new/own.yml"),
        (("folder.yaml",), "folder.yaml/workflow.yaml"),
    ],
)
def test_init_takes_a_folder_or_a_file(
    argument: tuple[str, ...], written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.yaml").mkdir()

    result = flowforge("init", *argument, "--json")

    assert {"event": "init", "file": written} == json.loads(result.stdout)
    assert (tmp_path / written).is_file()


def test_init_does_not_overwrite(tmp_path: Path) -> None:
    file = tmp_path / "workflow.yaml"
    file.write_text("mine", encoding="utf-8")

    result = flowforge("init", tmp_path)

    assert 2 == result.exit_code
    assert f"error[WF529]: {str(file)!r} cannot be written: it exists already\n" in result.stderr
    assert "mine" == file.read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")

    result = flowforge("init", tmp_path / "file" / "workflow.yaml")

    assert 2 == result.exit_code
    assert "error[WF529]" in result.stderr


def test_the_starter_has_no_problems_and_fits_the_editor_schema(tmp_path: Path) -> None:
    flowforge("init", tmp_path)
    file = tmp_path / "workflow.yaml"

    assert "1 file checked: no problems\n" == flowforge("check", "--strict", file).stdout
    root = compose(Source("workflow.yaml", file.read_text(encoding="utf-8"))).root
    assert root is not None
    jsonschema.Draft202012Validator(editor_schema()).validate(value_of_node(root))


def test_the_starter_runs(tmp_path: Path) -> None:
    flowforge("init", tmp_path)
    script = tmp_path / "script.json"
    answers = {"points": '["Weight","Brakes"]', "details[0]/detail": "It is light."}
    script.write_text(json.dumps({**answers, "details[1]/detail": "They hold."}), encoding="utf-8")

    result = flowforge("run", tmp_path / "workflow.yaml", "--backend", f"script:{script}")

    assert (0, "- It is light.\n- They hold.\n") == (result.exit_code, result.stdout)
