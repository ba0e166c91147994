"""Text with `${ … }` holes. Values are put in once and never read as template text again.

A text stays as it is; numbers and booleans are written as JSON writes them; arrays and objects as
one line of JSON, characters beyond ASCII unescaped; null is an error, unless `??` took care of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from flowforge.language.json_values import MAX_TEXT_CHARS, EvaluationError, text_of_value

if TYPE_CHECKING:
    from flowforge.errors import Location
    from flowforge.language.expressions import Expression, Scope

RenderedPart: TypeAlias = "tuple[str, bool]"


@dataclass(frozen=True, slots=True)
class Template:
    """Literal text and expressions, in order. Literal text holds no escapes any more."""

    parts: tuple[str | Expression, ...]
    location: Location

    @property
    def names(self) -> frozenset[str]:
        """The names in scope that the holes read."""
        return frozenset(
            name for part in self.parts if not isinstance(part, str) for name in part.names
        )

    def render(self, scope: Scope) -> str:
        """The whole text. Raises WorkflowError WF4xx."""
        return "".join(text for text, _ in self.render_parts(scope))

    def render_known(self, scope: Scope) -> tuple[str, bool]:
        """The text up to the first hole that reads a name which has no value yet.

        The second tells whether that is the whole text. Raises WorkflowError WF4xx.
        """
        known: list[str | Expression] = []
        for part in self.parts:
            if not isinstance(part, str) and any(name not in scope for name in part.names):
                break
            known.append(part)
        text = Template(tuple(known), self.location).render(scope)
        return text, len(known) == len(self.parts)

    def render_parts(self, scope: Scope) -> tuple[RenderedPart, ...]:
        """The text in pieces: (text, True) for what came from a value, (text, False) for literals.

        Raises WorkflowError WF4xx.
        """
        rendered: list[RenderedPart] = []
        num_chars = 0
        for part in self.parts:
            piece = (part, False) if isinstance(part, str) else (_hole_text(part, scope), True)
            num_chars += len(piece[0])
            if num_chars > MAX_TEXT_CHARS and not isinstance(part, str):
                message = f"the text grows past {MAX_TEXT_CHARS:,} characters"
                raise part.error("WF403", message, "pass less of the value on")
            rendered.append(piece)
        return tuple(rendered)


def _hole_text(expression: Expression, scope: Scope) -> str:
    value = expression.evaluate(scope)
    try:
        return text_of_value(value)
    except EvaluationError as error:
        raise expression.error(error.code, error.message, error.help) from error
