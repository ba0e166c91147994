"""Tool loops on the default model, in every format: do its calls parse, and do they fit?

    python benchmarks/tool_loops.py [--runs 100] [--formats hermes glm] [--seed 1]

Each run asks one question, must call a tool in its first turn, gets the results, and may call
again. Sampled at temperature 1, so that the model would often go wrong if it could. Of every
format it prints the calls, and how many could not be read, named no tool, or broke their schema;
cut: turns that max_tokens ended within a call, which is a failure of its own and no call.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from typing import TYPE_CHECKING

import anyio

from flowforge.backends.engine import open_engine_backend
from flowforge.backends.protocol import GenerateRequest, GenerationDone, Sampling, ToolOffer
from flowforge.errors import InternalError
from flowforge.grammars.schema_dialect import make_validator
from flowforge.grammars.tool_formats import TOOL_FORMATS, ToolCall, ToolDefinition, write_calls

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowforge.backends.engine import EngineBackend
    from flowforge.backends.engine_conversation import EngineConversation
    from flowforge.backends.protocol import JsonValue
    from flowforge.grammars.tool_formats import ToolChoice

TOOLS = (
    ToolDefinition(
        "weather",
        "The weather in a city.",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 24},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    ),
    ToolDefinition(
        "add",
        "Add numbers.",
        {
            "type": "object",
            "properties": {
                "numbers": {
                    "type": "array",
                    "items": {"type": "integer", "minimum": -999, "maximum": 999},
                    "minItems": 1,
                    "maxItems": 4,
                }
            },
            "required": ["numbers"],
            "additionalProperties": False,
        },
    ),
    ToolDefinition(
        "remind",
        "Set a reminder.",
        {
            "type": "object",
            "properties": {
                "text": {"type": "string", "maxLength": 32},
                "at": {
                    "type": "object",
                    "properties": {
                        "hour": {"type": "integer", "minimum": 0, "maximum": 23},
                        "daily": {"type": "boolean"},
                    },
                    "required": ["hour"],
                    "additionalProperties": False,
                },
            },
            "required": ["text", "at"],
            "additionalProperties": False,
        },
    ),
)
QUESTIONS = (
    "What is the weather in Paris?",
    "What is 17 plus 25?",
    "Remind me to call my mother at nine.",
    "Is it warmer in Rome or in Oslo?",
    "Add 3, 5 and 8, then tell me the weather in Lima.",
)
SIDE_BY_SIDE = 100
CHOICES: tuple[ToolChoice, ...] = ("required", "auto")
# Beside what the marks of one call take, which differs much between formats.
MAX_TOKENS: dict[ToolChoice, int] = {"required": 28, "auto": 8}
EXAMPLE = ToolCall("add", {"numbers": [1]})


async def run_format(name: str, num_runs: int, seed: int) -> Counter[str]:
    """The counts of one format."""
    counts: Counter[str] = Counter()
    limiter = anyio.CapacityLimiter(SIDE_BY_SIDE)
    async with open_engine_backend(tool_format=name) as backend:

        async def one(idx: int) -> None:
            async with limiter:
                await run_once(backend, idx, seed + idx, counts)

        async with anyio.create_task_group() as tasks:
            for idx in range(num_runs):
                tasks.start_soon(one, idx)
    return counts


async def run_once(backend: EngineBackend, idx: int, seed: int, counts: Counter[str]) -> None:
    """One loop of two turns that may call."""
    example = write_calls([EXAMPLE], TOOLS, backend.speech.format)
    num_marks = len(backend.tokenizer.encode(example))
    conversation = await backend.open(system="You use tools.")
    try:
        conversation.add_user(QUESTIONS[idx % len(QUESTIONS)])
        for choice in CHOICES:
            offer = ToolOffer(TOOLS, choice, 1)
            most = MAX_TOKENS[choice] + num_marks
            sampling = Sampling(max_tokens=most, temperature=1.0, seed=seed)
            try:
                done = await answer(conversation, GenerateRequest(sampling, offer=offer))
            except InternalError:
                counts["unreadable"] += 1
                return
            counts["turns"] += 1
            counts["cut"] += done.cuts_call
            count_calls(done.calls, counts)
            if not done.calls or done.cuts_call:
                return
            conversation.add_results([result_of(call) for call in done.calls])
    finally:
        await conversation.close()
        counts["runs"] += 1


async def answer(conversation: EngineConversation, request: GenerateRequest) -> GenerationDone:
    """The end of one turn."""
    async for item in conversation.generate(request):
        if isinstance(item, GenerationDone):
            return item
    raise AssertionError("a generation ends with its result")


def count_calls(calls: Iterable[ToolCall], counts: Counter[str]) -> None:
    """Judge the calls of a turn."""
    known = {tool.name: tool for tool in TOOLS}
    for call in calls:
        counts["calls"] += 1
        if call.name not in known:
            counts["unknown"] += 1
        elif any(make_validator(known[call.name].parameters).iter_errors(dict(call.arguments))):
            counts["invalid"] += 1


def result_of(call: ToolCall) -> JsonValue:
    """What a tool would say."""
    numbers = call.arguments.get("numbers")
    if isinstance(numbers, list):
        return sum(number for number in numbers if isinstance(number, int))
    return {"ok": True} if call.name == "remind" else {"degrees": 21}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--formats", nargs="*", default=[*TOOL_FORMATS])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    columns = ("runs", "turns", "calls", "unreadable", "unknown", "invalid", "cut")
    print("format          " + "".join(f"{name:>11}" for name in columns) + "    seconds")
    for name in options.formats:
        started_at = time.perf_counter()
        counts = anyio.run(run_format, name, options.runs, options.seed)
        seconds = time.perf_counter() - started_at
        row = "".join(f"{counts[column]:>11}" for column in columns)
        print(f"{name:<16}{row}{seconds:>11.0f}", flush=True)


if __name__ == "__main__":
    main()
