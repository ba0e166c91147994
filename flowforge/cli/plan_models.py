"""Whose tokens a plan counts: those of each model that a program asks, as far as they are known."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.backends.elsewhere import is_elsewhere
from flowforge.language.models import models_of
from flowforge.language.remote_models import REMOTE, ROUTE

if TYPE_CHECKING:
    from flowforge.backends.elsewhere import Elsewhere
    from flowforge.cli.download import DownloadProgress
    from flowforge.language.program import Program
    from flowforge.planning import Tokenizing

UNKNOWN_CONTEXT = 2**40
"""Stands for the context of a model of which nobody said how long it is."""


@dataclass(frozen=True, slots=True)
class ModelTexts:
    """own: of the run's own model; others: of those that steps name. unknown: what is not known."""

    own: Tokenizing
    others: dict[str, Tokenizing]
    unknown: tuple[str, ...]


def texts_of_models(program: Program, own: str | None, *, is_quiet: bool) -> ModelTexts:
    """The tokens of a program's models. own: the run's own model.

    A server's model without a tokenizer here is counted by the default model's, and said so.
    Raises EngineError for a model that cannot be had, WorkflowError WF512 for one that is declared
    nowhere.
    """
    from flowforge.cli.download import DownloadProgress
    from flowforge.runtime.elsewhere import elsewhere_of

    names = [name for name in models_of(program) if name is not None]
    with DownloadProgress(is_quiet=is_quiet) as download:
        reader = _Reader(elsewhere_of(program), download)
        others = {name: reader.text_of(name) for name in names}
        if own is None and names and None not in models_of(program):
            # No step runs on the run's own model, so that it need not be there.
            return ModelTexts(others[names[0]], others, reader.unknown)
        return ModelTexts(reader.text_of(own), others, reader.unknown)


class _Reader:
    def __init__(self, elsewhere: Elsewhere, download: DownloadProgress) -> None:
        self._elsewhere = elsewhere
        self._download = download
        self._notes: dict[str, None] = {}
        self._text = functools.cache(self._read)

    @property
    def unknown(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def text_of(self, name: str | None) -> Tokenizing:
        if name is not None and is_elsewhere(name):
            self._elsewhere.require(name)
            return self._elsewhere_text(name)
        return self._text(name, None)

    def _elsewhere_text(self, name: str) -> Tokenizing:
        if name.startswith(ROUTE):
            route = self._elsewhere.routes[name.removeprefix(ROUTE)]
            likeliest = max(route.weights, key=lambda to: route.weights[to])
            self._note(f"{name} decides when it is asked: counted for {likeliest}")
            remote = is_elsewhere(likeliest)
            return self.text_of(likeliest) if remote else self._text(None, None)
        model = self._elsewhere.models[name.removeprefix(REMOTE)]
        self._note(f"{name}: what its server has cached is not known, nor its pages")
        if model.tokenizer is None:
            self._note(f"{name}: counted by the default model's tokenizer, its own is not known")
        if model.context_len is None:
            self._note(f"{name}: how long its context is, is not known")
        return self._text(model.tokenizer, model.context_len or UNKNOWN_CONTEXT)

    def _read(self, name: str | None, context_len: int | None) -> Tokenizing:
        from flowforge.engine.model_store import resolve_model
        from flowforge.planning.model_text import ModelText

        directory = resolve_model(name, progress=self._download).directory
        return ModelText.in_directory(directory, context_len)

    def _note(self, note: str) -> None:
        self._notes[note] = None
