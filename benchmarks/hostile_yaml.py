"""How long `flowforge check` takes for files that are made to hurt it, and what it says of them.

    python benchmarks/hostile_yaml.py

Each file is checked by a process of its own, three times; printed are the least seconds above a
bare Python, the exit code, the codes that it told, and the resident memory. Ends with an
AssertionError for a file that took a second or more, that no code refuses, or that ended in a
traceback.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from startup import with_bytecode_in

if TYPE_CHECKING:
    from collections.abc import Mapping

HEAD = "flowforge: 1\nname: hostile\n"
MOST_S = 1.0
NUM_RUNS = 3
CHECK = "from flowforge.cli import main; main()"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check came to. took_s: wall seconds; kilobytes: the most that was resident."""

    took_s: float
    exit_code: int
    codes: tuple[str, ...]
    told: str
    kilobytes: int


def files() -> dict[str, str]:
    """The text of each file, by a name for it."""
    step = f"{HEAD}steps:\n  a:\n    gen: {{ max_tokens: 9 }}\n    user: "
    aliases = ['l0: &a0 ["x","x","x","x","x","x","x","x","x"]']
    aliases += [f"l{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    merges = ["l0: &a0 { k: x }"]
    merges += [f"l{i}: &a{i} {{ <<: [{','.join([f'*a{i - 1}'] * 9)}] }}" for i in range(1, 9)]
    chain = "".join(f"  s{i}: {{ set: '${{ s{(i + 1) % 2_000} }}' }}\n" for i in range(2_000))
    return {
        "alias bomb": "\n".join(aliases) + "\n",
        "merge key bomb": "\n".join(merges) + "\n",
        "an anchor inside itself": "a: &a [*a]\n",
        "10 MB of text": step + '"' + "x" * 10_000_000 + '"\n',
        "10 MB in lines": step + "|\n" + ("      " + "x" * 93 + "\n") * 100_000,
        "10 MB of numbers": f"{HEAD}steps:\n  a:\n    set: [{'1,' * 5_000_000}1]\n",
        "10 MB as a key": f"{HEAD}steps:\n  {'k' * 10_000_000}:\n    set: 1\n",
        "a subflow of itself": f"{HEAD}steps:\n  a:\n    run: FILE\n",
        "100,000 brackets": f"{HEAD}steps:\n  a:\n    set: {'[' * 100_000}{']' * 100_000}\n",
        "10,000 levels of blocks": "".join(" " * i + "a:\n" for i in range(1_000)) * 10,
        "20,000 holes": step + '"' + "${ inputs.x }" * 20_000 + '"\n',
        "20,000 parentheses": step + '"${ ' + "(" * 20_000 + "1" + ")" * 20_000 + ' }"\n',
        "a circle of 2,000 steps": f"{HEAD}steps:\n{chain}",
        "control characters": step + '"a\x00b"\n',
    }


def check(file: Path, environment: Mapping[str, str]) -> Checked:
    """Check a file in a process of its own."""
    begun_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", CHECK, "check", "--json", str(file)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    told = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    took_s = time.perf_counter() - begun_s
    process.returncode = os.waitstatus_to_exitcode(status)
    return Checked(took_s, process.returncode, _codes(told), told, used.ru_maxrss)


def _codes(told: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for one in told.replace('"', " ").split() if _is_code(one)))


def _is_code(word: str) -> bool:
    return len(word) == 5 and word[:2] in {"WF", "IN"} and word[2:].isdigit()


def main() -> None:
    """Check every file and print what came of it."""
    too_long: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        environment = with_bytecode_in(folder)
        bare_s = min(_bare_s(environment) for _ in range(NUM_RUNS))
        for name, text in files().items():
            file = Path(folder, "hostile.yaml")
            file.write_text(text.replace("FILE", file.name), encoding="utf-8")
            runs = [check(file, environment) for _ in range(NUM_RUNS)]
            least = min(runs, key=lambda one: one.took_s)
            assert "Traceback" not in least.told, least.told[-2_000:]
            assert least.exit_code > 0, f"{name}: accepted"
            assert least.codes, f"{name}: {least.told[:300]!r}"
            took_s = least.took_s - bare_s
            if took_s >= MOST_S:
                too_long.append(name)
            codes = " ".join(least.codes[:3])
            print(
                f"{name:<25}{took_s:6.2f} s{least.kilobytes // 1024:6} MB"
                f"  exit {least.exit_code}  {codes}",
                flush=True,
            )
    assert not too_long, f"a second or more: {json.dumps(too_long)}"


def _bare_s(environment: Mapping[str, str]) -> float:
    begun_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True, env=environment)
    return time.perf_counter() - begun_s


if __name__ == "__main__":
    main()
