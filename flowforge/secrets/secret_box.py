"""The values of one run's secrets: put in where they are used, masked wherever they come out."""

from __future__ import annotations

import os
import traceback
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar, cast

from flowforge.errors import FlowForgeError, WorkflowError
from flowforge.secrets.masks import MIN_CHARS, mask_of
from flowforge.secrets.secret import Secret, SecretName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

T = TypeVar("T")
R = TypeVar("R")

BOX: ContextVar[SecretBox | None] = ContextVar("flowforge_secrets", default=None)
"""The secrets of the run that a task belongs to."""


class SecretBox:
    """What the environment said when a run began. Owned by the run; its repr shows names only."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values: dict[str, str] = dict(values or {})
        self._hidden: set[str] = set(self._values.values())
        self._mask: Callable[[str], str] | None = mask_of(self._hidden)

    @classmethod
    def read(cls, names: Iterable[str], environment: Mapping[str, str] | None = None) -> SecretBox:
        """The secrets of these names. environment: that of the process if None.

        Raises WorkflowError WF310 with all that are missing, WF311 for one too short to be masked.
        """
        given = os.environ if environment is None else environment
        wanted = dict.fromkeys(names)
        missing = [name for name in wanted if not given.get(name)]
        if missing:
            shown = ", ".join(map(repr, missing))
            raise WorkflowError(
                "WF310",
                f"secret{'s' if len(missing) > 1 else ''} {shown} not set in the environment",
                help=f"set it before the run: export {missing[0]}=…",
            )
        for name in wanted:
            if len(given[name].strip()) < MIN_CHARS:
                raise WorkflowError(
                    "WF311",
                    f"secret {name!r} has fewer than {MIN_CHARS} characters: it would be masked in "
                    "half of all texts",
                    help="pass what is no secret as an input",
                )
        return cls({name: given[name] for name in wanted})

    def __repr__(self) -> str:
        return f"SecretBox({', '.join(self._values)})"

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to mask."""
        return self._mask is None

    def hide(self, value: str) -> None:
        """Mask this value from now on, too, unless it is too short for that."""
        if value not in self._hidden:
            self._hidden.add(value)
            self._mask = mask_of(self._hidden)

    # -- putting values in ------------------------------------------------------------------------

    def text_of(self, secret: Secret) -> str:
        """A text with its values. Raises WorkflowError WF312."""
        return "".join(
            self._value(part.name) if isinstance(part, SecretName) else part
            for part in secret.parts
        )

    def opened(self, value: T) -> T:
        """A JSON value with the values of all secrets in it. Raises WorkflowError WF312."""
        return cast("T", self._opened(value))

    def _opened(self, value: object) -> object:
        match value:
            case Secret():
                return self.text_of(value)
            case dict():
                named = cast("dict[str, object]", value)
                return {key: self._opened(one) for key, one in named.items()}
            case list():
                return [self._opened(one) for one in cast("list[object]", value)]
            case _:
                return value

    def _value(self, name: str) -> str:
        if name not in self._values:
            known = ", ".join(self._values) or "none"
            raise WorkflowError(
                "WF312",
                f"secret {name!r} is not declared, declared are: {known}",
                help=f"write secrets: [{name}] in the file, @ff.flow(secrets=[{name!r}]) in Python",
            )
        return self._values[name]

    # -- taking values out ------------------------------------------------------------------------

    def masked(self, text: str) -> str:
        """The text with `***` in the place of every secret, however it is written there."""
        if self._mask is None or isinstance(text, Secret):
            return text
        return self._mask(text)

    def masked_value(self, value: T) -> T:
        """A JSON value with all of its texts masked; the same object where nothing is to mask."""
        return value if self._mask is None else cast("T", self._masked_value(value))

    def _masked_value(self, value: object) -> object:
        match value:
            case str():
                return self.masked(value)
            case dict():
                named = cast("dict[str, object]", value)
                return {self.masked(key): self._masked_value(one) for key, one in named.items()}
            case list():
                return [self._masked_value(one) for one in cast("list[object]", value)]
            case _:
                return value

    def mask_error(self, error: FlowForgeError) -> None:
        """Take the values out of an error, and with them causes that would show them."""
        if self._mask is None:
            return
        error.message = self.masked(error.message)
        error.help = None if error.help is None else self.masked(error.help)
        error.args = tuple(self.masked(one) if isinstance(one, str) else one for one in error.args)
        shown = "".join(traceback.format_exception(error))
        if self.masked(shown) != shown:
            error.__cause__, error.__context__ = None, None
            error.__suppress_context__ = True
            error.add_note("its cause is left out, because a secret stands in it")

    def require_absent(self, inputs: Mapping[str, object]) -> None:
        """Refuse inputs that hold a secret: they are written down. Raises WorkflowError WF313."""
        for name, value in inputs.items():
            if self.masked_value(value) != value:
                raise WorkflowError(
                    "WF313",
                    f"input {name!r} holds the value of a secret, and inputs are written down",
                    help="let the step that needs it read ${ secrets.NAME }",
                )

    async def call(self, arguments: T, act: Callable[[T], Awaitable[R]]) -> R:
        """Call a tool with its arguments opened; what comes back, or is raised, is masked."""
        try:
            return self.masked_value(await act(self.opened(arguments)))
        except FlowForgeError as error:
            self.mask_error(error)
            raise


def current_box(names: Iterable[str]) -> SecretBox:
    """The secrets of the run that this is called in; outside of runs, these, read now."""
    box = BOX.get()
    return SecretBox.read(names) if box is None else box
