"""`flowforge run --otel` and the OTEL_* variables."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from flowforge.cli.app import app
from flowforge.errors import EngineError
from flowforge.telemetry import export

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOW = "flowforge: 1\nname: t\nsteps: { a: { user: hi, gen: } }\noutputs: { a: '${ a }' }\n"


def run(folder: Path, *options: str) -> Result:
    file, script = folder / "w.yaml", folder / "script.json"
    file.write_text(WORKFLOW, encoding="utf-8")
    script.write_text(json.dumps({"*": "a text"}), encoding="utf-8")
    words = ["run", str(file), "--backend", f"script:{script}", "--no-journal", "-q", *options]
    return CliRunner().invoke(app, words)


def spans_in(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_spans_go_to_stderr_where_the_variables_say_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")

    result = run(tmp_path)

    assert (0, "a text\n") == (result.exit_code, result.stdout)
    spans = spans_in(result.stderr)
    assert ["chat", "step a", "invoke_workflow t"] == [one["name"] for one in spans]
    assert "flowforge" == spans[0]["resource"]["attributes"]["service.name"]


def test_a_resumed_run_is_a_trace_of_what_it_did_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    file, script, journal = tmp_path / "w.yaml", tmp_path / "s.json", tmp_path / "runs.db"
    steps = "steps:\n  a: { user: hi, gen: }\n  b: { user: '${ a }', gen: }\n"
    file.write_text(f"flowforge: 1\nname: t\n{steps}outputs: {{ b: '${{ b }}' }}\n")
    script.write_text(json.dumps({"a": "a text"}))
    kept = ["--journal", str(journal), "-q"]

    failed = CliRunner().invoke(app, ["run", str(file), "--backend", f"script:{script}", *kept])
    script.write_text(json.dumps({"*": "more"}))
    resumed = CliRunner().invoke(app, ["resume", *kept])

    assert (True, 0) == (failed.exit_code != 0, resumed.exit_code)
    first, second = spans_in(failed.stderr), spans_in(resumed.stderr)
    assert {"step a", "step b"} < {one["name"] for one in first}
    assert "ERROR" == first[-1]["status"]["status_code"]
    assert {"step b", "chat", "invoke_workflow t"} == {one["name"] for one in second}
    ids = {one[-1]["attributes"]["flowforge.run.id"] for one in (first, second)}
    assert 1 == len(ids)


def test_spans_go_to_a_collector_by_otlp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        result = run(tmp_path, "--otel")
        server.shutdown()
        serving.join()

    assert (0, "a text\n", "") == (result.exit_code, result.stdout, result.stderr)
    sent = ExportTraceServiceRequest.FromString(b"".join(received))
    names = [one.name for one in sent.resource_spans[0].scope_spans[0].spans]
    assert ["chat", "step a", "invoke_workflow t"] == names


def test_no_variable_and_no_flag_is_no_trace(tmp_path: Path) -> None:
    assert (0, "") == (run(tmp_path).exit_code, run(tmp_path).stderr)


def test_a_flag_without_the_library_is_refused_and_variables_alone_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_installed(module: str) -> bool:
        return False

    monkeypatch.setattr(export, "_is_installed", not_installed)

    refused = run(tmp_path, "--otel")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    told = run(tmp_path)

    assert 0 != refused.exit_code
    assert "error[EN801]" in refused.stderr
    assert "pip install 'flowforge[opentelemetry]'" in refused.stderr
    assert (0, "a text\n") == (told.exit_code, told.stdout)
    assert told.stderr.startswith("no trace: ")


@pytest.mark.parametrize(
    ("environ", "is_asked_for", "expected"),
    [
        ({}, False, None),
        ({}, True, "otlp"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, False, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "none"}, True, None),
        ({"OTEL_TRACES_EXPORTER": "console"}, False, "console"),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, True, None),
    ],
)
def test_the_variables_choose_the_exporter(
    environ: dict[str, str], is_asked_for: bool, expected: str | None
) -> None:
    assert expected == export.chosen_exporter(environ, is_asked_for=is_asked_for)


def test_an_unknown_exporter_is_refused() -> None:
    with pytest.raises(EngineError, match="'zipkin'"):
        export.chosen_exporter({"OTEL_TRACES_EXPORTER": "zipkin"}, is_asked_for=False)
