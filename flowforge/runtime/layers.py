"""Names over names: what a block or an expression sees beside the scope around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.token_meter import MeasuredScope

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flowforge.language.program import JsonValue
    from flowforge.language.token_meter import TokenMeter


class Layered(MeasuredScope):
    """The names of `inner`, then those of `outer`. Looks through; copies neither."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, inner: Mapping[str, JsonValue], outer: Mapping[str, JsonValue]) -> None:
        self._inner = inner
        self._outer = outer

    @property
    def token_meter(self) -> TokenMeter | None:
        """That of `outer`."""
        return self._outer.token_meter if isinstance(self._outer, MeasuredScope) else None

    def __getitem__(self, name: str) -> JsonValue:
        """The value of a name; KeyError when neither has it."""
        return self._inner[name] if name in self._inner else self._outer[name]

    def __iter__(self) -> Iterator[str]:
        """Every name once."""
        yield from self._inner
        yield from (name for name in self._outer if name not in self._inner)

    def __len__(self) -> int:
        """How many names there are."""
        return sum(1 for _ in self)
