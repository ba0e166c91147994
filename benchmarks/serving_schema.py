"""schemathesis over the server's own description: nothing that it thinks of may be a 5xx.

    pip install schemathesis && python benchmarks/serving_schema.py [--examples 60] [--seed 1]

Runs the server on the stand-in of the tests, with one workflow and one run, and `schemathesis run`
against it with the names of these filled in. Prints the answers by status.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import httpx2
from served import MODEL, Setting, served

import flowforge as ff

WORKFLOW = """\
flowforge: 1
name: talk
inputs: { topic: { type: string, default: owls } }
steps:
  first: { user: "say ${ inputs.topic }", gen: }
  decision: { ask: "Is it good?" }
outputs: { said: "${ first }" }
"""


def main(arguments: argparse.Namespace) -> int:
    """Run it; its exit code, or 1 after a 5xx."""
    folder = Path(tempfile.mkdtemp())
    (folder / "talk.yaml").write_text(WORKFLOW)
    with served(Setting(programs=[ff.load(folder / "talk.yaml")])) as server:
        run = httpx2.post(f"{server.url}/v1/workflows/talk/runs", json={}, timeout=60).json()
        document = httpx2.get(f"{server.url}/openapi.json", timeout=60).json()
        for schema in document["components"]["schemas"].values():
            properties = schema.get("properties", {})
            if "model" in properties:
                properties["model"] = {"enum": [MODEL]}
            for name in ("max_tokens", "max_completion_tokens"):
                if name in properties:
                    # An answer to the end of the context takes the stand-in half a minute.
                    properties[name] = {"type": "integer", "minimum": 0, "maximum": 40}
                    schema["required"] = sorted({*schema["required"], name})
        known = {"run_id": run["id"], "name": "talk", "model": MODEL}
        for methods in document["paths"].values():
            for operation in methods.values():
                for parameter in operation["parameters"]:
                    if parameter["name"] in known:
                        parameter["schema"] = {"enum": [known[parameter["name"]], "nothing"]}
        (folder / "openapi.json").write_text(json.dumps(document))
        command = ["schemathesis", "run", str(folder / "openapi.json"), "--url", server.url]
        command += ["--checks", "not_a_server_error", "--request-timeout", "120"]
        command += ["--max-examples", str(arguments.examples), "--seed", str(arguments.seed)]
        command += ["--phases", "examples,coverage,fuzzing"]
        code = subprocess.run(command, check=False).returncode
        statuses: Counter[int] = Counter()
        for (_, status), number in server.service.counts.requests.items():
            statuses[status] += number
        print(f"answers by status: {dict(sorted(statuses.items()))}")
        server.portal.call(server.runs.cut)
        server.check_nothing_held()
    return code or int(any(status >= 500 for status in statuses))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(main(parser.parse_args()))
