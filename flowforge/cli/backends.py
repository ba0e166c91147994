"""The backend a command asks for: the engine, or a script for tests of workflows.

`--backend script:FILE.json` answers from a JSON object of step paths to answers, each a text or a
list of texts that are used up one by one; `*` in a path matches any text. In the place of a text,
`{"calls": [{"name": "weather", "arguments": {…}}]}` calls tools; `{"turns": [CALLS, TEXT]}` are the
turns of one step, of which a resumed run gets the right one.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from flowforge.errors import WorkflowError
from flowforge.view.texts import reason_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AbstractAsyncContextManager
    from datetime import date

    from flowforge.backends.elsewhere import Elsewhere
    from flowforge.backends.engines import EngineSet
    from flowforge.backends.protocol import Backend
    from flowforge.backends.script import Answer, ScriptedAnswer
    from flowforge.cli.download import DownloadProgress
    from flowforge.engine.config import EngineConfig

_ENGINE = "engine"
_SCRIPT = "script:"


def require_tool_format(name: str | None) -> None:
    """Raise EngineError EN321 for a name of `--tool-format` that no format has."""
    if name is not None:
        from flowforge.grammars.tool_formats import choose_format

        choose_format("", name)


def require_models(
    model: str | None,
    elsewhere: Elsewhere,
    config: EngineConfig | None = None,
    backend: str = _ENGINE,
) -> None:
    """Look at the models that a command names, before one is fetched or loaded.

    model: the run's own. elsewhere: of its steps. Raises EngineError EN101 for a path at which
    there is none, EN110 to EN114 for one that cannot be run, WorkflowError WF512. One that is not
    on this machine may yet be fetched.
    """
    if backend != _ENGINE:
        return
    from flowforge.backends.elsewhere import is_elsewhere
    from flowforge.engine.config import EngineConfig
    from flowforge.engine.model_store import find_here
    from flowforge.engine.models.config import read_model_config
    from flowforge.engine.speculation.same_tokens import draft_directory

    config = config or EngineConfig()
    names: set[str | None] = {*elsewhere.here}
    if is_elsewhere(model):
        elsewhere.require(str(model))
    elif model is not None or elsewhere.needs_own:
        names.add(model)
    draft = config.draft_model
    is_draft_here = draft is not None and find_here(draft) is not None
    for name in names:
        found = find_here(name)
        if found is None:
            continue
        read_model_config(found.directory, config.context_len)
        if draft is not None and is_draft_here:
            draft_directory(found.directory, draft)


@asynccontextmanager
async def open_backend(
    spec: str,
    model: str | None,
    progress: DownloadProgress,
    config: EngineConfig | None = None,
    today: date | None = None,
    tool_format: str | None = None,
    kv_folder: Path | None = None,
    elsewhere: Elsewhere | None = None,
) -> AsyncGenerator[Backend]:
    """The backend of `--backend` and `--model`.

    today: what chat templates that print a date print; None is this day. tool_format, kv_folder:
    see `open_engine_backend`. elsewhere: models beyond this machine. Raises WorkflowError WF512,
    WF524, WF525, EngineError.
    """
    if spec.startswith(_SCRIPT):
        from flowforge.backends.script import ScriptBackend

        yield ScriptBackend(read_script(Path(spec.removeprefix(_SCRIPT))))
    elif spec == _ENGINE:
        from flowforge.backends.elsewhere import HERE
        from flowforge.backends.model_set import open_models

        def open_here(own: str | None) -> AbstractAsyncContextManager[EngineSet]:
            from flowforge.backends.engines import open_engines

            return open_engines(
                own,
                progress=progress,
                config=config,
                today=today,
                tool_format=tool_format,
                kv_folder=kv_folder,
            )

        async with open_models(model, elsewhere or HERE, open_here) as backend:
            # The bar must be gone before the live view takes the same lines.
            progress.close()
            yield backend
    else:
        raise WorkflowError(
            "WF524",
            f"unknown backend {spec!r}, expected 'engine' or 'script:FILE.json'",
            help="leave --backend out to run on the engine",
        )


def read_script(path: Path) -> dict[str, Answer]:
    """The answers of a script file. Raises WorkflowError WF525."""
    try:
        script = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise WorkflowError(
            "WF525",
            f"the script {str(path)!r} cannot be read: {reason_text(error)}",
            help="a script is a JSON object of step paths to answers",
        ) from error
    return scripted_answers(script, f"the script {str(path)!r}")


def scripted_answers(script: object, name: str = "a script") -> dict[str, Answer]:
    """The answers that a script's JSON says. name: for messages. Raises WorkflowError WF525.

    A list gives one answer after the other, for a step that comes again.
    """
    if not isinstance(script, dict):
        raise _no_script(name)
    told = cast("dict[str, object]", script)
    return {label: _answer(answer, name, label) for label, answer in told.items()}


def _answer(told: object, script: str, label: str) -> Answer:
    from flowforge.backends.script import ScriptedTurns

    has_turns = isinstance(told, dict) and set(told) == {"turns"}
    listed = cast("dict[str, object]", told)["turns"] if has_turns else told
    each = cast("list[object]", listed) if isinstance(listed, list) else [listed]
    answers = [one for one in map(_scripted, each) if one is not None]
    if len(answers) < len(each):
        raise _no_script(script, label)
    if has_turns:
        return ScriptedTurns(tuple(answers))
    return answers if isinstance(listed, list) else answers[0]


def _no_script(script: str, label: str | None = None) -> WorkflowError:
    wrong = "" if label is None else f"; {label!r} has calls without names"
    return WorkflowError(
        "WF525",
        f"{script} must be a JSON object of step paths to answers{wrong}",
        help='for example { "plan": { "steps": 3 }, "explore[*]/draft": "a draft", '
        '"agent": [{ "calls": [{ "name": "weather", "arguments": {} }] }, "It is warm."] }',
    )


def _scripted(answer: object) -> str | ScriptedAnswer | None:
    """A text as it is, calls of tools, or any other value as JSON; None for calls without names."""
    if isinstance(answer, str):
        return answer
    if not isinstance(answer, dict) or "calls" not in answer or set(answer) - {"calls", "text"}:
        return json.dumps(answer, ensure_ascii=False)
    from flowforge.backends.script import ScriptedAnswer
    from flowforge.grammars.tool_formats import ToolCall

    calls = answer["calls"]
    if not isinstance(calls, list):
        return None
    named = [
        ToolCall(call["name"], call.get("arguments", {}))
        for call in calls
        if isinstance(call, dict) and isinstance(call.get("name"), str)
    ]
    is_whole = len(named) == len(calls)
    return ScriptedAnswer(str(answer.get("text", "")), calls=tuple(named)) if is_whole else None
