"""`flowforge init`: the templates that it writes, and what it never does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema
import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are another package
from click.testing import CliRunner, Result

from flowforge.cli.app import app
from flowforge.cli.init import TEMPLATES
from flowforge.language.editor_schema import editor_schema
from flowforge.language.source import Source
from flowforge.language.yaml_composer import compose
from flowforge.language.yaml_nodes import value_of_node

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA_LINE = "# yaml-language-server: $schema=flowforge.schema.json\n"
FILES = [name for name, template in TEMPLATES.items() if template.suffix == ".yaml"]
ANSWERS = {
    "starter": {
        "points": '["Weight","Brakes"]',
        "details[0]/detail": "It is light.",
        "details[1]/detail": "They hold.",
    },
    "agent": {
        "answer": [
            {"calls": [{"name": "weather", "arguments": {"city": "Lima"}}]},
            "It is cloudy, 19 degrees.",
        ]
    },
    "extraction": {
        "order": {
            "name": "Ada Moss",
            "items": [{"product": "lamps", "quantity": 2}],
            "urgent": False,
        }
    },
    "critique": {
        "draft": "A light.",
        "polish[0]/verdict": "poor",
        "polish[0]/rewrite": "Light for ever.",
        "polish[1]/verdict": "good",
    },
    "approval": {"notice": "Come at eight."},
    "flow": {
        "points": '["Weight","Brakes"]',
        "details[0]/detail": "It is light.",
        "details[1]/detail": "They hold.",
    },
}
OUTPUTS = {
    "starter": "- It is light.\n- They hold.\n",
    "agent": "It is cloudy, 19 degrees.\n",
    "critique": "Light for ever.\n",
    "approval": "decision:\napprove\n\nposted:\nCome at eight.\n",
}


def flowforge(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_init_writes_a_workflow_and_says_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    result = flowforge("init", "first.yaml")

    assert 0 == result.exit_code
    assert result.stdout == (
        "wrote first.yaml and flowforge.schema.json; next:\n"
        "  flowforge check first.yaml    # its problems, if it has any\n"
        "  flowforge run first.yaml -i topic=trains\n"
    )


def test_a_template_may_be_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert flowforge("init", "--template", "agent").stdout.startswith(
        "wrote workflow.yaml, weather.py and flowforge.schema.json; next:\n"
    )
    assert flowforge("init", "-t", "flow").stdout == (
        "wrote workflow.py; next:\n  flowforge run workflow.py:advice -i topic=trains\n"
    )


def test_the_templates_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    listed = flowforge("init", "--list").stdout.splitlines()
    told = [json.loads(line) for line in flowforge("init", "--list", "--json").stdout.splitlines()]

    assert [*TEMPLATES] == [line.split()[0] for line in listed] == [one["name"] for one in told]
    assert [] == [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ((), "workflow.yaml"),
        (("new/folder",), "new/folder/workflow.yaml"),
        (("new/own.yml",), "new/own.yml"),
        (("folder.yaml",), "folder.yaml/workflow.yaml"),
        (("-t", "flow"), "workflow.py"),
        (("-t", "flow", "own.py"), "own.py"),
    ],
)
def test_init_takes_a_folder_or_a_file(
    arguments: tuple[str, ...], written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.yaml").mkdir()

    told = json.loads(flowforge("init", *arguments, "--json").stdout)

    assert ("init", written) == (told["event"], told["file"])
    assert written == told["files"][0]
    assert all((tmp_path / name).is_file() for name in told["files"])


@pytest.mark.parametrize(("template", "name"), [("flow", "own.yaml"), ("agent", "own.py")])
def test_a_name_that_does_not_fit_the_template_is_refused(
    template: str, name: str, tmp_path: Path
) -> None:
    result = flowforge("init", "-t", template, tmp_path / name)

    assert 2 == result.exit_code
    assert f"the file is called {name!r}" in result.stderr
    assert [] == [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["workflow.yaml", "weather.py"])
def test_init_does_not_overwrite_and_writes_all_or_nothing(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text("mine", encoding="utf-8")

    result = flowforge("init", "-t", "agent", tmp_path)

    assert 2 == result.exit_code
    assert f"error[WF529]: {str(file)!r} cannot be written: it exists already\n" in result.stderr
    assert "help: name another place, for example 'flowforge init -t agent first'" in result.stderr
    assert "mine" == file.read_text(encoding="utf-8")
    assert [file] == [*tmp_path.iterdir()]


def test_init_names_a_place_that_is_another_one(tmp_path: Path) -> None:
    flowforge("init", tmp_path / "first.yaml")

    again = flowforge("init", tmp_path / "first.yaml")

    assert "for example 'flowforge init second.yaml'" in again.stderr


@pytest.mark.parametrize("name", FILES)
def test_the_templates_are_yaml_to_every_reader(name: str, tmp_path: Path) -> None:
    flowforge("init", "-t", name, tmp_path)
    text = (tmp_path / "workflow.yaml").read_text(encoding="utf-8")

    assert yaml.safe_load(text)["flowforge"] == 1


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")

    result = flowforge("init", tmp_path / "file" / "workflow.yaml")

    assert 2 == result.exit_code
    assert "error[WF529]" in result.stderr


def test_the_schema_beside_it_is_that_of_this_version(tmp_path: Path) -> None:
    flowforge("init", tmp_path / "first.yaml")
    schema = tmp_path / "flowforge.schema.json"
    written = schema.read_text(encoding="utf-8")

    again = flowforge("init", tmp_path / "second.yaml")
    schema.write_text("{}", encoding="utf-8")
    old = flowforge("init", tmp_path / "third.yaml")

    assert editor_schema() == json.loads(written)
    assert flowforge("schema").stdout == written
    assert "" == again.stderr
    assert f"note: {schema} is not this version's" in old.stderr
    assert "{}" == schema.read_text(encoding="utf-8")


@pytest.mark.parametrize("template", FILES)
def test_a_template_has_no_problems_and_fits_the_editor_schema(
    template: str, tmp_path: Path
) -> None:
    flowforge("init", "-t", template, tmp_path)
    file = tmp_path / "workflow.yaml"
    text = file.read_text(encoding="utf-8")

    assert "1 file checked: no problems\n" == flowforge("check", "--strict", file).stdout
    assert text.startswith(SCHEMA_LINE)
    root = compose(Source("workflow.yaml", text)).root
    assert root is not None
    jsonschema.Draft202012Validator(editor_schema()).validate(value_of_node(root))


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_runs(template: str, tmp_path: Path) -> None:
    told = json.loads(flowforge("init", "-t", template, tmp_path, "--json").stdout)
    script, people = tmp_path / "script.json", tmp_path / "people.json"
    script.write_text(json.dumps(ANSWERS[template]), encoding="utf-8")
    people.write_text('{"decision": "approve"}', encoding="utf-8")
    words = ["run", told["file"] + TEMPLATES[template].target, "--backend", f"script:{script}"]

    result = flowforge(*words, "--answers", people)

    assert 0 == result.exit_code, result.stderr
    if template in OUTPUTS:
        assert OUTPUTS[template] == result.stdout
    else:
        assert "lamps" in result.stdout or "They hold." in result.stdout
