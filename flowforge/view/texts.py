"""Numbers and values as displays write them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.language.program import JsonValue
    from flowforge.runtime.events import Accounting, StepFinished


def accounting_line(accounting: Accounting) -> str:
    """What a run cost, on one line; unknown figures are left out."""
    unique = accounting.unique_prompt_tokens
    cut = f" ({accounting.cut_tokens:,} of them cut)" if accounting.cut_tokens else ""
    beside = "" if unique is None else f" ({unique:,} unique)"
    parts = [
        f"prefilled {tokens_text(accounting.prefilled_tokens)}{beside}",
        f"reused {accounting.reused_tokens:,}",
        f"generated {accounting.generated_tokens:,}{cut}",
    ]
    if accounting.pages_total:
        parts.append(f"pages at peak {accounting.pages_peak:,} of {accounting.pages_total:,}")
    return ", ".join([*parts, f"{accounting.duration_s:.1f} s"])


# What took less came at once, as forced tokens do, and is the measure of no speed.
_LEAST_DECODE_S = 0.01


def finished_text(fact: StepFinished) -> str:
    """What a finished step came to: tokens and rate where a model wrote, items for a list."""
    usage = fact.usage
    if usage is None:
        if not isinstance(fact.value, list):
            return "done"
        return f"done, {len(fact.value):,} item{'' if len(fact.value) == 1 else 's'}"
    parts = ["done", tokens_text(usage.generated_tokens)]
    decode_s = usage.total_s - usage.ttft_s
    if decode_s > _LEAST_DECODE_S and usage.generated_tokens > 1:
        # The first token comes out of the prefill; the rate is that of decoding.
        parts.append(f"{(usage.generated_tokens - 1) / decode_s:.1f} tok/s")
    if fact.finish_reason == "length":
        parts.append("cut off at max_tokens")
    return ", ".join(parts)


def tokens_text(num_tokens: int) -> str:
    """'1 token', '1,318 tokens'."""
    return f"{num_tokens:,} token{'' if num_tokens == 1 else 's'}"


def clock_text(seconds: float) -> str:
    """'00:42', '1:02:03'."""
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def outputs_text(outputs: Mapping[str, JsonValue]) -> str:
    """A single output as it is, several under their names; ends with a line feed unless empty."""
    if len(outputs) == 1:
        return _closed(value_text(next(iter(outputs.values()))))
    sections = (f"{name}:\n{_closed(value_text(value))}" for name, value in outputs.items())
    return "\n".join(sections)


def value_text(value: JsonValue) -> str:
    """A text as it is, anything else as indented JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def reason_text(error: Exception) -> str:
    """Why something cannot be read, on one line; the file's name is not in it."""
    reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or "no reason given"
    return reason[:1].lower() + reason[1:]


def _closed(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
