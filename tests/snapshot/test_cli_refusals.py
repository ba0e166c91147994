"""What a command cannot do is said before it loads a model, measures or overwrites anything."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowforge.backends import engines
from flowforge.cli.app import app

RECORDED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "engine.json"
WORKFLOW = """\
flowforge: 1
name: one
steps:
  one: { user: Hi, gen: {}, model: ./no-model }
outputs: { one: "${ one }" }
"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 8,
    "intermediate_size": 8,
    "max_position_embeddings": 64,
    "model_type": "llama",
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "torch_dtype": "float32",
    "vocab_size": 8,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def loaded(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(engines, "open_engines", loaded)
    monkeypatch.setenv("FLOWFORGE_JOURNAL", str(tmp_path / "runs.db"))
    monkeypatch.setenv("FLOWFORGE_HOME", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "named.yaml").write_text(WORKFLOW, encoding="utf-8")
    own = WORKFLOW.replace(", model: ./no-model", "")
    (tmp_path / "own.yaml").write_text(own, encoding="utf-8")
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "named.yaml").write_text(WORKFLOW, encoding="utf-8")
    (tmp_path / "empty").mkdir()
    (tmp_path / "rows.jsonl").write_text("{}\n", encoding="utf-8")
    return tmp_path


def flowforge(command: str) -> Result:
    return CliRunner().invoke(app, command.split())


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("run own.yaml --model ./no-model", "error[EN101]: there is no model directory"),
        ("run own.yaml --model empty", "error[EN110]: no config.json in"),
        ("run own.yaml --draft-model ./no-model", "error[EN101]: there is no model directory"),
        ("run named.yaml", "error[EN101]: there is no model directory"),
        ("map named.yaml rows.jsonl -o out.jsonl", "error[EN101]: there is no model directory"),
        ("run own.yaml --backend script:none.json", "error[WF525]: the script 'none.json'"),
        ("run own.yaml --backend oven", "error[WF524]: unknown backend 'oven'"),
        ("run own.yaml --journal named.yaml", "error[EN703]: the journal "),
        ("run own.yaml --log-file none/run.log", "error[EN803]: the log 'none/run.log'"),
        ("run own.yaml --hooks none.py", "error[TL150]: the hooks "),
        ("map own.yaml rows.jsonl -o none/out.jsonl", "error[WF541]: the output"),
        ("serve --model ./no-model", "error[EN101]: there is no model directory"),
        ("serve --workflows served", "error[EN101]: there is no model directory"),
        ("serve --port 0 --record none/file", "error[EN912]: requests cannot be recorded"),
        ("serve --host 192.0.2.1", "error[EN913]: nothing can listen on 192.0.2.1 port 8000"),
        ("serve --host a..b", "error[EN913]: nothing can listen on a..b port 8000"),
        ("bench workflows --shape tiny --plot none/x.svg", "error[WF542]: 'none/x.svg'"),
        ("bench workflows --shape tiny --plot empty", "error[WF542]: 'empty' cannot be"),
        ("bench serve http://127.0.0.1:9/v1 --save none/x", "error[WF542]: 'none/x' cannot be"),
        ("bench serve http://127.0.0.1:9/v1 --plot none/x", "error[WF542]: 'none/x' cannot be"),
    ],
)
def test_what_cannot_be_done_is_told_before_a_model_is_loaded(
    folder: Path, command: str, told: str
) -> None:
    before = {file.name for file in folder.iterdir()}

    result = flowforge(command)

    assert told in result.stderr
    assert "help: " in result.stderr
    # A journal, and the locks of who writes it, are made by any command that may write runs.
    made = {file.name for file in folder.iterdir()} - before
    assert set() == {name for name in made if not name.startswith("runs.db")} - {"out.jsonl"}


def test_a_port_that_is_taken_is_told_before_a_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = flowforge(f"serve --port {taken.getsockname()[1]}")

    assert "error[EN913]: nothing can listen on 127.0.0.1" in result.stderr
    assert 4 == result.exit_code


def test_a_draft_model_that_is_none_is_called_that(folder: Path) -> None:
    (folder / "own").mkdir()
    (folder / "own" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")

    result = flowforge("run own.yaml --model own --draft-model empty")

    assert "error[EN110]: the draft model 'empty' cannot be had: no config.json in" in result.stderr


@pytest.mark.parametrize("folder_given", ["own.yaml", "own.yaml/x"])
def test_a_page_of_figures_that_cannot_be_written_says_where(folder_given: str) -> None:
    result = flowforge(f"bench page {RECORDED} --out {folder_given}")

    assert f"error[WF542]: {folder_given!r} cannot be written: " in result.stderr
    assert 2 == result.exit_code


def test_a_page_takes_no_figures_twice(folder: Path) -> None:
    copied = folder / "copied.json"
    copied.write_bytes(RECORDED.read_bytes())

    result = flowforge(f"bench page {RECORDED} {copied} --out page")

    assert "error[WF534]: " in result.stderr
    assert "is in " in result.stderr
    assert not (folder / "page").exists()


def test_a_page_without_a_readme_to_renew_is_not_written(folder: Path) -> None:
    result = flowforge(f"bench page {RECORDED} --out page --readme none.md")

    assert "'none.md' cannot be read: no such file or directory" in result.stderr
    assert not (folder / "page").exists()
