"""A run of a journal, as text, Markdown and JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from flowforge.view.texts import accounting_line, tokens_text, value_text
from flowforge.view.turns import told_turn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.journal.records import WorkRow
    from flowforge.language.program import JsonValue
    from flowforge.runtime.history import Difference, RunHistory
    from flowforge.runtime.picture import StepPicture
    from flowforge.view.turns import ToldTurn

_OPEN, _CLOSE = "⟦", "⟧"
_MAX_SHOWN = 300


def run_text(run: RunHistory, state: str) -> str:
    """A run: what it was begun with, its steps, and what it came to."""
    row, picture = run.row, run.picture
    lines = [
        f"run {row.run_id}  {state}",
        f"workflow {row.begun.workflow}  {row.begun.target}",
        f"begun {moment(row.begun.created_at)}, seed {row.begun.seed}"
        + (f", resumed {row.num_resumes} times" if row.num_resumes else ""),
    ]
    lines += [f"input {name}: {_one_line(value)}" for name, value in row.begun.inputs.items()]
    lines += ["", *(step_line(step) for step in picture.steps.values())]
    if picture.outputs is not None:
        lines += ["", *(f"output {name}:\n{value_text(v)}" for name, v in picture.outputs.items())]
    lines += [f"failed at {one.path}: {one.message} [{one.code}]" for one in picture.failures]
    if picture.accounting is not None:
        lines += ["", accounting_line(picture.accounting)]
    return "\n".join(lines) + "\n"


def step_line(step: StepPicture) -> str:
    """A step in one line."""
    parts: list[str] = [step.status]
    if step.usage is not None:
        parts.append(tokens_text(step.usage.generated_tokens))
    if step.ended_s is not None and step.status != "skipped":
        parts.append(f"{step.ended_s - step.started_s:.1f} s")
    if step.finish_reason == "length":
        parts.append("cut off at max_tokens")
    if step.is_cached:
        parts.append("from the cache")
    if step.is_caught:
        parts.append("caught")
    if step.next_path is not None:
        parts.append(f"tried again as {step.next_path}")
    if step.failure is not None:
        parts.append(f"{step.failure.message} [{step.failure.code}]")
    return f"{step.path}: {', '.join(parts)}"


def step_text(run: RunHistory, path: str) -> str:
    """A step: each try with what it was asked, what came of it, and what it cost."""
    lines: list[str] = []
    for step in tries_and_samples_of(run, path):
        lines.append(step_line(step))
        for work in run.works.get(step.path, []):
            lines += [*_asked(work), *_came_to(work)]
        if step.path not in run.works and step.status == "done":
            lines += ["value:", value_text(step.value)]
        lines.append("")
    return "\n".join(lines)


def tries_and_samples_of(run: RunHistory, path: str) -> list[StepPicture]:
    """The tries of a step and their samples, as they began."""
    steps = run.picture.steps
    own = [step for name, step in steps.items() if _is_of(name, path)]
    return sorted(own, key=lambda step: step.started_s)


def run_json(run: RunHistory, state: str) -> dict[str, JsonValue]:
    """Everything that is known of a run, but for tokens."""
    row = run.row
    steps = [_step_json(run, step) for step in run.picture.steps.values()]
    accounting = run.picture.accounting
    return cast(
        "dict[str, JsonValue]",
        {
            "run_id": row.run_id,
            "workflow": row.begun.workflow,
            "target": row.begun.target,
            "status": state,
            "created_at": row.begun.created_at,
            "ended_at": row.ended_at,
            "num_resumes": row.num_resumes,
            "inputs": dict(row.begun.inputs),
            "seed": row.begun.seed,
            "model": row.begun.options.get("model"),
            "steps": steps,
            "outputs": run.picture.outputs,
            "failures": [asdict(one) for one in run.picture.failures],
            "accounting": None if accounting is None else asdict(accounting),
        },
    )


def step_json(run: RunHistory, path: str) -> list[dict[str, Any]]:
    """Everything that is known of a step: one object for each try and sample."""
    return [_step_json(run, step) for step in tries_and_samples_of(run, path)]


def run_markdown(run: RunHistory, state: str) -> str:
    """A run as a document: outputs first, then every step with its prompts."""
    row = run.row
    lines = [
        f"# {row.begun.workflow}, run {row.run_id}",
        "",
        f"{state}, begun {moment(row.begun.created_at)}, seed {row.begun.seed}",
        "",
    ]
    for name, value in row.begun.inputs.items():
        lines += [f"- {name}: {_one_line(value)}"]
    for name, value in (run.picture.outputs or {}).items():
        lines += ["", f"## Output {name}", "", *_quoted(value)]
    for failure in run.picture.failures:
        lines += ["", f"Failed at `{failure.path}`: {failure.message} [{failure.code}]"]
    for step in run.picture.steps.values():
        lines += ["", f"## `{step.path}`", "", step_line(step)]
        for work in run.works.get(step.path, []):
            text = "\n".join([*_asked(work), *_came_to(work)])
            lines += ["", *_quoted(text)]
    return "\n".join(lines) + "\n"


def difference_text(difference: Difference) -> str:
    """A difference in a few lines."""
    where = "the runs" if difference.path is None else difference.path
    return "\n".join(
        [
            f"{where}: {difference.what}",
            f"- {_one_line(difference.one)}",
            f"+ {_one_line(difference.other)}",
        ]
    )


def moment(seconds: float) -> str:
    """A time as this machine's clock shows it."""
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"


def _is_of(name: str, path: str) -> bool:
    """Whether `name` is the step `path`, a later try of it, or a sample of one."""
    rest = name.removeprefix(path)
    return name.startswith(path) and "/" not in rest and rest[:1] in {"", "#", "["}


def _asked(work: WorkRow) -> Iterator[str]:
    request = cast("dict[str, Any]", work.request)
    if work.num_starts > 1:
        yield f"started {work.num_starts} times"
    match work.kind:
        case "generation":
            if request["continues"] is not None and request["continues"] != work.path:
                yield f"continues {request['continues']}"
            if request["system"] is not None:
                yield f"system: {request['system']}"
            for turn in map(told_turn, request["said"]):
                yield f"{turn.role}: {_marked(turn)}"
            if "prefill" in request["request"]:
                yield f"prefill: {request['request']['prefill']}"
        case "call":
            yield f"calls {request['tool']}: {_dumped(request['arguments'])}"
        case "timer" | "order" | "join":
            return
        case "question":
            yield f"asks: {request['prompt']}"
            if request["show"] is not None:
                yield f"shows: {value_text(request['show'])}"


def _came_to(work: WorkRow) -> Iterator[str]:
    result = cast("dict[str, Any] | None", work.result)
    if work.status is None:
        yield "has not ended"
    elif work.status == "stopped" or result is None:
        yield "stopped"
    elif work.status == "failed":
        yield f"failed: {result['message']} [{result['code']}]"
    elif work.kind == "generation":
        usage = result["usage"]
        yield f"assistant: {result['text']}"
        yield (
            f"({tokens_text(usage['prompt_tokens'])} of prompt, {usage['prefilled_tokens']:,} "
            f"computed, {tokens_text(usage['generated_tokens'])} written, {usage['total_s']:.1f} s)"
        )
    else:
        yield f"gives: {value_text(result['value'])}"


def _marked(turn: ToldTurn) -> str:
    """A turn's text with what values put into it between marks."""
    return "".join(f"{_OPEN}{text}{_CLOSE}" if is_value else text for is_value, text in turn.pieces)


def _step_json(run: RunHistory, step: StepPicture) -> dict[str, Any]:
    works = [
        {
            "kind": work.kind,
            "request": work.request,
            "status": work.status,
            "result": work.result,
            "num_starts": work.num_starts,
            "started_at": work.started_at,
            "ended_at": work.ended_at,
        }
        for work in run.works.get(step.path, [])
    ]
    return {**asdict(step), "works": works}


def _quoted(value: JsonValue) -> list[str]:
    return [f"> {line}".rstrip() for line in value_text(value).splitlines()]


def _one_line(value: JsonValue) -> str:
    text = value if isinstance(value, str) else _dumped(value)
    flat = " ".join(text.split())
    return flat if len(flat) <= _MAX_SHOWN else f"{flat[:_MAX_SHOWN]}…"


def _dumped(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)
