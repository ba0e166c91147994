"""What steps cost, and what costs come to in a row, side by side, or one in place of another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowforge.language.join_policies import All, Settle
from flowforge.planning.quantity import NONE, Quantity, exactly, longest, one_of, total

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowforge.language.join_policies import Join


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens, the decode steps of the longest chain, and the KV pages that are held at peak."""

    prefilled: Quantity = NONE
    reused: Quantity = NONE
    generated: Quantity = NONE
    decode_steps: Quantity = NONE
    pages: Quantity = NONE

    def then(self, other: Cost) -> Cost:
        """One after the other; what the first held is given back before the second."""
        return Cost(
            *_sums([self, other]),
            self.decode_steps + other.decode_steps,
            longest((self.pages, other.pages)),
        )

    def times(self, count: Quantity) -> Cost:
        """So often, at one time or another."""
        return Cost(
            self.prefilled.times(count),
            self.reused.times(count),
            self.generated.times(count),
            self.decode_steps.times(count),
            self.pages.times(count),
        )

    def or_nothing(self) -> Cost:
        """Or none of it."""
        return one_cost_of([self, Cost()])


def one_cost_of(costs: Sequence[Cost]) -> Cost:
    """Whichever of them happens; at least one is given."""
    return Cost(
        one_of(cost.prefilled for cost in costs),
        one_of(cost.reused for cost in costs),
        one_of(cost.generated for cost in costs),
        one_of(cost.decode_steps for cost in costs),
        one_of(cost.pages for cost in costs),
    )


def beside(costs: Sequence[Cost], limit: int | None, join: Join) -> Cost:
    """Branches at once, at most `limit` of them at a time; some joins cancel the last ones."""
    if not costs:
        return Cost()
    cost = Cost(*_sums(costs), _waves(costs, limit), _pages(costs, limit))
    if isinstance(join, All | Settle):
        return cost
    # The others may be cancelled before they have computed anything.
    least = one_cost_of(costs)
    return Cost(
        Quantity(least.prefilled.least, cost.prefilled.most),
        Quantity(least.reused.least, cost.reused.most),
        Quantity(least.generated.least, cost.generated.most),
        Quantity(least.decode_steps.least, cost.decode_steps.most),
        Quantity(least.pages.least, cost.pages.most),
    )


def by_order(
    costs: Mapping[str, Cost],
    needs: Mapping[str, frozenset[str]],
    holders: Mapping[str, frozenset[str]],
) -> Cost:
    """Steps that start when what they need is done; keys in an order that `needs` allows.

    holders: for each step those that keep its pages: the ones that continue its conversation, or
    that of one who does.
    """
    ended: dict[str, Quantity] = {}
    before: dict[str, frozenset[str]] = {}
    for name, cost in costs.items():
        ended[name] = longest(ended[need] for need in needs[name]) + cost.decode_steps
        before[name] = needs[name].union(*(before[need] for need in needs[name]))
    chains: list[list[str]] = []
    for name in costs:
        for chain in chains:
            if {chain[-1], *holders[chain[-1]]} <= before[name]:
                chain.append(name)
                break
        else:
            chains.append([name])
    # Two steps of one chain never hold pages at once, so no more than one of each chain does.
    most = total(longest(costs[name].pages for name in chain) for chain in chains).most
    least = max((cost.pages.least for cost in costs.values()), default=0)
    return Cost(*_sums(list(costs.values())), longest(ended.values()), Quantity(least, most))


def _sums(costs: Sequence[Cost]) -> tuple[Quantity, Quantity, Quantity]:
    return (
        total(cost.prefilled for cost in costs),
        total(cost.reused for cost in costs),
        total(cost.generated for cost in costs),
    )


def _waves(costs: Sequence[Cost], limit: int | None) -> Quantity:
    chains = [cost.decode_steps for cost in costs]
    slowest = longest(chains)
    if limit is None or limit >= len(costs):
        return slowest
    num_waves = -(-len(costs) // limit)
    least = max(slowest.least, -(-total(chains).least // limit))
    return Quantity(least, slowest.times(exactly(num_waves)).most)


def _pages(costs: Sequence[Cost], limit: int | None) -> Quantity:
    """Branches of a step hold their pages until they end."""
    least = max(cost.pages.least for cost in costs)
    mosts = [cost.pages.most for cost in costs]
    if None in mosts:
        return Quantity(least, None)
    greatest = sorted((most or 0 for most in mosts), reverse=True)
    return Quantity(least, sum(greatest[:limit]))
