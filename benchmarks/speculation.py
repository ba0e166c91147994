"""Decoding with guesses and without, as a ratio in one run: texts that repeat, and one that not.

python benchmarks/speculation.py [--rounds 5] [--tokens 96] [--model WHICH]

`again` asks the same of the same kind a second time, as the rounds of a loop do.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.engine.config import EngineConfig
from flowforge.engine.kv.prefix_tree import Namespace
from flowforge.engine.loading import load_core
from flowforge.engine.model_store import resolve_model
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationRequest, SequenceId, TokensArrived, Update
from flowforge.engine.text.chat_template import ChatTemplate
from flowforge.engine.text.messages import Message
from flowforge.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from flowforge.engine.core import EngineCore

NOTICE = (
    "The library opens at eight o'clock from Monday on. Books can be returned at the desk or in "
    "the box at the door. Children may borrow three books, adults may borrow five."
)
PROMPTS = {
    "copy": f"Copy this text without any change:\n{NOTICE}",
    "edit": f"Rewrite this text and change 'library' to 'museum':\n{NOTICE}",
    "free": "Tell a story about a fox who learns to swim.",
    "again": "Tell a story about an owl who learns to sing.",
}
_IDS = itertools.count(1)


class Tokens(list[int]):
    """A sink that keeps the tokens."""

    def put(self, update: Update) -> None:
        """See `UpdateSink`."""
        if isinstance(update, TokensArrived):
            self.extend(update.token_ids)


@dataclass(frozen=True, slots=True)
class Said:
    """One text. seconds: of decoding, by the clock and of the processor."""

    tokens: list[int]
    clock_s: float
    cpu_s: float


def finish(core: EngineCore) -> None:
    """Step until nothing is left to do."""
    while core.has_work:
        core.step()


def say(core: EngineCore, prompt: list[int], params: SamplingParams, key: str | None) -> Said:
    """Write one text; its prompt is not timed."""
    this, said = SequenceId(next(_IDS)), Tokens()
    # A namespace of its own: no prompt is cached.
    core.open(this, Namespace("", str(this) if key is None else key))
    core.append(this, prompt)
    core.prefill(this, Tokens())
    finish(core)
    clock_s, cpu_s = time.perf_counter(), time.process_time()
    core.generate(this, GenerationRequest(params, history_key=key), said)
    finish(core)
    clock_s, cpu_s = time.perf_counter() - clock_s, time.process_time() - cpu_s
    core.close(this)
    return Said([*said], clock_s, cpu_s)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--model")
    asked = parser.parse_args()
    directory = resolve_model(asked.model).directory
    tokenizer = Tokenizer.from_directory(directory)
    template = ChatTemplate.from_directory(directory, tokenizer)
    plain, guessing = (
        load_core(
            directory,
            vocab_size=tokenizer.vocab_size,
            config=EngineConfig(num_pages=512, speculation=how),
        )
        for how in ("off", "lookup")
    )
    print(
        "text   temperature  tokens  tried  right  tokens/s over none, by the clock, of processor"
    )
    for name, text in PROMPTS.items():
        prompt = template.render([Message("user", text)])
        key = name if name == "again" else None
        for temperature in (0.0, 0.8):
            params = SamplingParams(max_tokens=asked.tokens, temperature=temperature, seed=1)
            if key is not None:
                say(guessing, prompt, params, key)
            before = guessing.statistics().speculation
            pairs = [
                (say(plain, prompt, params, key), say(guessing, prompt, params, key))
                for _ in range(asked.rounds)
            ]
            after = guessing.statistics().speculation
            assert all(one.tokens == other.tokens for one, other in pairs), "guesses changed a text"
            clock = statistics.median(one.clock_s / other.clock_s for one, other in pairs)
            cpu = statistics.median(one.cpu_s / other.cpu_s for one, other in pairs)
            tried = (after.drafted - before.drafted) / asked.rounds
            right = (after.accepted - before.accepted) / asked.rounds
            print(
                f"{name:5}  {temperature:11}  {len(pairs[0][0].tokens):6}  {tried:5.0f}  "
                f"{right:5.0f}  {clock:.2f}  {cpu:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
