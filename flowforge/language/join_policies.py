"""Join policies: which of several branches or samples count, and what their values come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from flowforge.language.expressions import Expression


@dataclass(frozen=True, slots=True)
class All:
    """Every branch; the first failure cancels the rest. The value is the list of all values."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Every branch, failed or not: a list of `{ok, value, error}`, value or error being null.

    error: {code, message, path, help}.
    """


@dataclass(frozen=True, slots=True)
class First:
    """The value of the first branch that succeeds; the others are cancelled. Fails if all fail.

    Without any branch, as over an empty list, it fails; so do `Best` and `Vote`.
    """


@dataclass(frozen=True, slots=True)
class Quorum:
    """The values of the first `count` branches that succeed, in item order; others are cancelled.

    Fails as soon as `count` successes are out of reach.
    """

    count: int


@dataclass(frozen=True, slots=True)
class Best:
    """The value with the highest score once all have ended; one success is enough.

    score: a number, evaluated for each value with the outer names and `value`. The earliest wins a
    tie.
    """

    score: Expression


@dataclass(frozen=True, slots=True)
class Vote:
    """The value that most branches have; ends, and cancels the others, once that is decided.

    Values are compared as JSON. The one that is earliest in item order wins a tie.
    """


Join: TypeAlias = All | Settle | First | Quorum | Best | Vote


@dataclass(frozen=True, slots=True)
class Likeliest:
    """The sample that the model found most likely, a token: the highest mean log probability.

    By the model's own distribution: neither temperature nor what holds the answer to a form
    counts. The earliest wins a tie.
    """


Pick: TypeAlias = All | Best | Likeliest | Vote
