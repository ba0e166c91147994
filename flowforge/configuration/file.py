"""`flowforge.toml`: found beside a workflow or above it, read and checked.

[models.big]
url = "http://gpu:8000/v1"
model = "Qwen/Qwen3-32B"
dialect = "vllm"

[routes.main]
rules = [{ step = "draft*", to = "remote/small" }]
weights = { "remote/big" = 95, "remote/new" = 5 }
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from flowforge.backends.routing.route import Route, read_route
from flowforge.configuration.lines import line_of
from flowforge.errors import Location, WorkflowError
from flowforge.language.diagnostics import did_you_mean
from flowforge.language.remote_models import REMOTE, ROUTE, RemoteModel, read_remote_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.configuration.lines import Place
    from flowforge.language.remote_models import Table, TableProblem

FILE_NAME = "flowforge.toml"
_MAX_BYTES = 1_000_000
_TABLES = ("models", "routes")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Models and routes by name. path: of the file; None where there is none."""

    path: Path | None = None
    models: Mapping[str, RemoteModel] = field(default_factory=dict[str, RemoteModel])
    routes: Mapping[str, Route] = field(default_factory=dict[str, Route])

    @property
    def names(self) -> frozenset[str]:
        """What steps may name."""
        models = (REMOTE + name for name in self.models)
        return frozenset((*models, *(ROUTE + name for name in self.routes)))


def configuration_for(folder: Path) -> Configuration:
    """What is said for the workflows of a folder. Raises WorkflowError WF537, WF538."""
    path = find_configuration(folder)
    return Configuration() if path is None else read_configuration(path)


def find_configuration(folder: Path) -> Path | None:
    """The nearest flowforge.toml: in the folder or one above it, else where the command runs."""
    try:
        here = folder.resolve()
        candidates = [*(one / FILE_NAME for one in (here, *here.parents)), Path.cwd() / FILE_NAME]
        return next((path for path in candidates if path.is_file()), None)
    except OSError:
        return None


def read_configuration(path: Path) -> Configuration:
    """Read a file. Raises WorkflowError WF537 where that fails, WF538 with all that is wrong."""
    told, content = _parsed(path)
    problems = [
        _Problem(
            (key,),
            f"{key!r} is no table of it: "
            + (did_you_mean(key, _TABLES) or "there are models and routes"),
        )
        for key in told
        if key not in _TABLES
    ]
    models: dict[str, RemoteModel] = {}
    routes: dict[str, Route] = {}
    for name, table in _tables(told, "models", problems):
        model, found = read_remote_model(name, table)
        problems += _told(("models", name), found)
        if model is not None:
            models[name] = model
    for name, table in _tables(told, "routes", problems):
        route, found = read_route(name, table)
        problems += _told(("routes", name), found)
        if route is not None:
            routes[name] = route
    configuration = Configuration(path, models, routes)
    problems += _unknown_targets(configuration, told)
    if problems:
        raise WorkflowError(
            "WF538",
            "; ".join(problem.message for problem in problems),
            location=Location(str(path), line_of(content, problems[0].place), 1),
            help="docs/backends.md says what may stand there",
        )
    return configuration


@dataclass(frozen=True, slots=True)
class _Problem:
    place: Place
    message: str


def _parsed(path: Path) -> tuple[dict[str, object], str]:
    import tomllib

    try:
        with path.open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES:,} bytes")
        text = content.decode("utf-8")
        return tomllib.loads(text), text
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise WorkflowError(
            "WF537",
            f"{str(path)!r} cannot be read: {reason[:1].lower()}{reason[1:]}",
            help="it is a TOML file of [models.NAME] and [routes.NAME]",
        ) from error


def _tables(
    told: Mapping[str, object], key: str, problems: list[_Problem]
) -> list[tuple[str, Table]]:
    tables = told.get(key, {})
    if not isinstance(tables, dict):
        problems.append(_Problem((key,), f"{key!r} must be tables, as [{key}.NAME]"))
        return []
    found: list[tuple[str, Table]] = []
    for name, table in cast("dict[str, object]", tables).items():
        if isinstance(table, dict):
            found.append((name, cast("Table", table)))
        else:
            message = f"{key}.{name} must be a table, as [{key}.{name}]"
            problems.append(_Problem((key, name), message))
    return found


def _told(place: Place, found: list[TableProblem]) -> list[_Problem]:
    return [
        _Problem(
            place if problem.key is None else (*place, problem.key),
            f"[{'.'.join(place)}] {problem.message}"
            + (f" ({problem.help})" if problem.help else ""),
        )
        for problem in found
    ]


def _unknown_targets(configuration: Configuration, told: Mapping[str, object]) -> list[_Problem]:
    """Models that routes send to and that are not there, unless a workflow declares them."""
    declared = told.get("models", {})
    known = {REMOTE + str(name) for name in declared} if isinstance(declared, dict) else set()
    return [
        _Problem(
            ("routes", route.name),
            f"[routes.{route.name}] sends to {target!r}, which is not declared"
            + (f": {help}" if (help := did_you_mean(target, known)) else ""),
        )
        for route in configuration.routes.values()
        for target in route.targets
        if target.startswith(REMOTE) and target not in known
    ]
