"""A secret as everything but its last user sees it: by name, `${ secrets.API_KEY }`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class SecretName:
    """Where the value of a secret belongs in a text."""

    name: str

    def __str__(self) -> str:
        return f"${{ secrets.{self.name} }}"


class Secret(str):
    """A text with secrets in it. As a text it shows their names, and nothing can show more.

    Values are put in by a run's `SecretBox` where a tool or a server gets it, and by `reveal`. Only
    an object of this class is ever opened: a text that looks like one is a text. parts: the text
    in pieces.
    """

    parts: tuple[str | SecretName, ...]

    def __new__(cls, *parts: str | SecretName) -> Secret:
        """A text of these pieces."""
        made = super().__new__(cls, "".join(map(str, parts)))
        made.parts = parts
        return made

    def __reduce__(self) -> tuple[type[Secret], tuple[str | SecretName, ...]]:
        """How it is copied."""
        return Secret, self.parts

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"

    def __add__(self, other: str) -> Secret:
        """The text with more behind it."""
        return _joined("", (self, other))

    def __radd__(self, other: str) -> Secret:
        """The text with more before it."""
        return _joined("", (other, self))

    @property
    def names(self) -> tuple[str, ...]:
        """The secrets in it."""
        return tuple(part.name for part in self.parts if isinstance(part, SecretName))

    def reveal(self) -> str:
        """The text with its values, for code that hands it on at once.

        In a run its secrets are those that the workflow declares. Raises WorkflowError WF310 for
        one that is not set, WF312 for one that is not declared.
        """
        from flowforge.secrets.secret_box import current_box

        return current_box(self.names).text_of(self)


def secret(name: str) -> Secret:
    """The secret that the environment has under this name; nothing is read yet.

        await run.call(search, query, key=ff.secret("API_KEY"))

    As a text it shows its name; what is added to it by `+` stays sealed with it, and an f-string
    writes the name. `reveal` gives the value. A flow declares its secrets:
    `@ff.flow(secrets=["API_KEY"])`.
    """
    return Secret(SecretName(name))


def joined_texts(separator: str, texts: Iterable[str]) -> str:
    """The texts in one, a `Secret` where one of them is."""
    known = list(texts)
    is_sealed = any(isinstance(text, Secret) for text in known)
    return _joined(separator, known) if is_sealed else separator.join(known)


def _joined(separator: str, texts: Sequence[str]) -> Secret:
    parts: list[str | SecretName] = []
    for idx, text in enumerate(texts):
        if idx and separator:
            parts.append(separator)
        parts += text.parts if isinstance(text, Secret) else (str(text),)
    return Secret(*parts)
