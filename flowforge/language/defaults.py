"""What `defaults:` says for every step that does not say it itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.common_keys import parse_retry
from flowforge.language.durations import duration_of
from flowforge.language.fields import check_keys, mapping_of
from flowforge.language.gen_options import SAMPLING_KEYS, UNBUILT_SAMPLING_KEYS, sampling_of
from flowforge.language.models import model_of_entry
from flowforge.language.yaml_nodes import MappingNode

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.language.program import Retry
    from flowforge.language.scope import Report
    from flowforge.language.yaml_nodes import Entry

_KEYS = ("gen", "retry", "timeout", "model")
_FORM = "write defaults: { gen: { temperature: 0 } }"


@dataclass(frozen=True, slots=True)
class Defaults:
    """gen: for `gen` steps. model: on which those run that name none.

    retry, timeout_s: for `gen`, `call` and `run` steps.
    """

    gen: tuple[Entry, ...] = ()
    retry: Retry | None = None
    timeout_s: float | None = None
    model: str | None = None

    def options(self, own: MappingNode) -> MappingNode:
        """The options of a `gen` step, with the default ones that it leaves out."""
        keys = {entry.key for entry in own.entries}
        others = tuple(entry for entry in self.gen if entry.key not in keys)
        return MappingNode(own.span, (*own.entries, *others))


def parse_defaults(
    entry: Entry | None,
    folder: Path | None,
    report: Report,
    models: frozenset[str] | None = None,
) -> Defaults:
    """Read `defaults:`; what is broken is reported and left out. models: see `model_of_entry`."""
    mapping = None if entry is None else mapping_of(entry, report, _FORM)
    if mapping is None:
        return Defaults()
    check_keys(mapping, _KEYS, (), "'defaults'", report)
    gen = mapping.entry("gen")
    options = None if gen is None else mapping_of(gen, report, _FORM)
    if options is not None:
        check_keys(options, SAMPLING_KEYS, UNBUILT_SAMPLING_KEYS, "'gen' in 'defaults'", report)
        sampling_of(options, report)
    return Defaults(
        ()
        if options is None
        else tuple(one for one in options.entries if one.key in SAMPLING_KEYS),
        parse_retry(mapping.entry("retry"), report),
        duration_of(mapping.entry("timeout"), report),
        model_of_entry(mapping.entry("model"), folder, report, models),
    )
