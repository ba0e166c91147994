"""What it is worth that a run knows its next steps, on the default model.

    python benchmarks/run_foresight.py [--repeats 5]

branches: seconds of a run whose branches begin with the elements of their list. prompts: seconds
from a person's answer to the first token, where the prompt behind it is computed meanwhile. Each
beside the same run without, in turn and on an engine of its own; medians, and steps of the last.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import anyio

from flowforge.backends.engine import open_engine_backend
from flowforge.engine.config import EngineConfig
from flowforge.runtime.checking import load
from flowforge.runtime.events import RunFinished, StepText
from flowforge.runtime.policy import RunPolicy
from flowforge.runtime.run import start

if TYPE_CHECKING:
    from flowforge.backends.engine import EngineBackend
    from flowforge.language.program import Program
    from flowforge.runtime.commands import StartQuestion

NUM_PAGES = 1024
WAITED_S = 1.0
RULES = "Say what is known, what is not, and what follows from it. " * 12
BRANCHES = """
flowforge: 1
name: branches
inputs: { run: integer }
steps:
  questions:
    user: "Run ${ inputs.run }. Ask eight questions about rivers."
    gen:
      temperature: 0.8
      max_tokens: 600
      json:
        type: array
        minItems: 8
        maxItems: 8
        items: { type: string, minLength: 30, maxLength: 60 }
  answers:
    for: question in questions
    limit: 3
    do:
      answer:
        system: Answer in one sentence.
        user: "${ question }"
        gen: { temperature: 0.8, max_tokens: 40 }
outputs: { answers: "${ answers }" }
"""
PROMPTS = f"""
flowforge: 1
name: prompts
inputs: {{ run: integer }}
steps:
  go: {{ ask: "go on?" }}
  answer:
    system: "Run ${{ inputs.run }}. {RULES}"
    user: "The person says ${{ go }}."
    gen: {{ temperature: 0, max_tokens: 4 }}
outputs: {{ answer: "${{ answer }}" }}
"""


async def timed(program: Program, backend: EngineBackend, run: int, policy: RunPolicy) -> float:
    """Seconds of one run, or from a person's answer to the first token behind it."""
    counted_from, first_at, answers = time.monotonic(), 0.0, 0
    is_done = False

    async def asker(question: StartQuestion) -> str:
        nonlocal counted_from, answers
        del question
        await anyio.sleep(WAITED_S)
        counted_from, answers = time.monotonic(), 1
        return "yes"

    async with start(program, {"run": run}, backend, seed=1, asker=asker, policy=policy) as running:
        async for event in running.events():
            if isinstance(event.fact, StepText) and not first_at:
                first_at = time.monotonic()
            is_done = isinstance(event.fact, RunFinished)
    assert is_done, "a run that failed has no time"
    return (first_at if answers else time.monotonic()) - counted_from


async def compare(name: str, text: str, without: RunPolicy, repeats: int) -> None:
    """Run with and without in turn, behind a run with another prompt; print medians."""
    times: dict[str, list[float]] = {"with": [], "without": []}
    num_steps: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        program = load(path)
        for _ in range(repeats):
            for kind, policy in (("with", RunPolicy()), ("without", without)):
                async with open_engine_backend(config=EngineConfig(num_pages=NUM_PAGES)) as backend:
                    await timed(program, backend, 0, policy)
                    before = backend.engine.statistics().num_steps
                    times[kind].append(await timed(program, backend, 1, policy))
                    num_steps[kind] = backend.engine.statistics().num_steps - before
    with_s, without_s = median(times["with"]), median(times["without"])
    print(
        f"{name:10} {with_s:6.2f} s in {num_steps['with']} steps, without {without_s:6.2f} s in "
        f"{num_steps['without']}: {without_s / with_s:.2f}x"
    )


async def main(repeats: int) -> None:
    await compare("branches", BRANCHES, RunPolicy(foresees_branches=False), repeats)
    await compare("prompts", PROMPTS, RunPolicy(prepares_prompts=False), repeats)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    anyio.run(main, parser.parse_args().repeats)
