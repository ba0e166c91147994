"""Tools for trip_agent.yaml: what a traveller asks, from tables."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

City = Annotated[str, Field(pattern="^[A-Z][a-z]{2,14}$")]

WEATHER = {"Lima": ("cloudy", 19), "Oslo": ("snow", -4), "Paris": ("rain", 11), "Rome": ("sun", 17)}
KILOMETRES = {("Lima", "Paris"): 10_250, ("Oslo", "Paris"): 1_340, ("Paris", "Rome"): 1_105}
RATES = {"EUR": 1.0, "USD": 1.09, "NOK": 11.7, "PEN": 4.1}


def weather(city: City) -> dict[str, object]:
    """Say what the weather in a city is.

    Args:
        city: Its English name.
    """
    if city not in WEATHER:
        raise LookupError(f"no weather for {city}, only for {', '.join(WEATHER)}")
    sky, degrees = WEATHER[city]
    return {"city": city, "sky": sky, "celsius": degrees}


def distance(start: City, end: City) -> dict[str, object]:
    """Say how far two cities are from each other.

    Args:
        start: Where the trip begins.
        end: Where it ends.
    """
    first, second = sorted((start, end))
    return {"km": KILOMETRES.get((first, second))}


def convert(
    amount: Annotated[float, Field(ge=0, le=1_000_000)],
    currency: Literal["EUR", "USD", "NOK", "PEN"],
    to: Literal["EUR", "USD", "NOK", "PEN"],
) -> float:
    """Convert money from one currency to another."""
    return round(amount / RATES[currency] * RATES[to], 2)
