"""The models of other servers that a workflow declares under `models:`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.fields import mapping_of
from flowforge.language.remote_models import read_remote_model
from flowforge.language.yaml_nodes import MappingNode, ScalarNode

if TYPE_CHECKING:
    from flowforge.language.remote_models import RemoteModel
    from flowforge.language.scope import Report
    from flowforge.language.yaml_nodes import Entry

_FORM = "write models: { big: { url: 'http://localhost:8000/v1', model: Qwen/Qwen3-32B } }"


def parse_models(entry: Entry | None, report: Report) -> dict[str, RemoteModel]:
    """The declared models by name; one that is broken is reported and left out."""
    mapping = None if entry is None else mapping_of(entry, report, _FORM)
    models: dict[str, RemoteModel] = {}
    for one in () if mapping is None else mapping.entries:
        declaration = mapping_of(one, report, _FORM)
        if declaration is None:
            continue
        found, problems = read_remote_model(one.key, _table_of(declaration))
        for problem in problems:
            inner = None if problem.key is None else declaration.entry(problem.key)
            place = one.key_span if inner is None else inner.key_span
            report.error("WF144", problem.message, place, problem.help)
        if found is not None:
            models[one.key] = found
    return models


def _table_of(declaration: MappingNode) -> dict[str, object]:
    """What each key says; what is no plain value stays a node, which no key takes."""
    return {
        entry.key: entry.value.value if isinstance(entry.value, ScalarNode) else entry.value
        for entry in declaration.entries
    }
