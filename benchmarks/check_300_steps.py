"""What `flowforge check` costs on a workflow of 300 steps, above a bare Python.

Printed in CPU time, which a busy machine changes less, and as a ratio to other work on the same
machine: parsing the file's YAML with ruamel, and nothing else. The first run of each writes
bytecode, and is never the least.

    python benchmarks/check_300_steps.py
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from startup import with_bytecode_in

if TYPE_CHECKING:
    from collections.abc import Mapping

NUM_STEPS = 300
NUM_RUNS = 7
PARSE = """
import sys
from ruamel.yaml import YAML
list(YAML(typ='safe', pure=True).parse(open(sys.argv[1])))
"""
CHECK = "from flowforge.cli import main; main()"


def workflow() -> str:
    """Chains of three: a prompt, a JSON answer in its conversation, and a loop over that."""
    indexes = range(0, NUM_STEPS, 3)
    chains = [_chain(idx) for idx in indexes]
    outputs = [f"  text{idx}: ${{ explain{idx} | join }}" for idx in indexes]
    head = ["flowforge: 1", "name: large", "inputs: { topic: string }", "steps:"]
    return "\n".join([*head, *chains, "outputs:", *outputs]) + "\n"


def _chain(idx: int) -> str:
    return f"""\
  draft{idx}:
    system: You are careful.
    user: |
      Topic: ${{ inputs.topic }}
      Say something of it, and be brief about it.
    gen: {{ max_tokens: 100, temperature: 0.5 }}
  points{idx}:
    from: draft{idx}
    user: Expand ${{ draft{idx} | truncate(200) }} for ${{ inputs.topic | upper }}.
    gen:
      json: {{ type: array, items: {{ type: string }}, maxItems: {2 + idx % 7} }}
  explain{idx}:
    for: point in points{idx}
    limit: 3
    do:
      text{idx}:
        user: Explain ${{ point }} now.
        gen: {{ max_tokens: 50 }}"""


def cpu_s(environment: Mapping[str, str], *arguments: str) -> float:
    """The least CPU time of some runs of Python."""
    times: list[float] = []
    for _ in range(NUM_RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, *arguments]
        subprocess.run(command, check=True, capture_output=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "large.yaml")
        file.write_text(workflow(), encoding="utf-8")
        environment = with_bytecode_in(folder)
        bare = cpu_s(environment, "-c", "pass")
        parse = cpu_s(environment, "-c", PARSE, str(file)) - bare
        check = cpu_s(environment, "-c", CHECK, "check", str(file)) - bare
    print(f"bare Python            {bare * 1000:7.0f} ms")
    print(f"ruamel parses the file {parse * 1000:7.0f} ms above it")
    print(f"flowforge check        {check * 1000:7.0f} ms above it")
    print(f"check / parse          {check / parse:7.2f}")


if __name__ == "__main__":
    main()
