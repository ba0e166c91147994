"""The tool of the agent: its hints say what arguments fit, its docstring what models are told."""

from typing import Annotated

from pydantic import Field

WEATHER = {"Lima": ("cloudy", 19), "Oslo": ("snow", -4), "Rome": ("sun", 17)}


def weather(city: Annotated[str, Field(pattern="^[A-Z][a-z]{2,14}$")]) -> dict[str, object]:
    """Say what the weather in a city is.

    Args:
        city: Its English name.
    """
    if city not in WEATHER:
        # The model is told, and may call again.
        raise LookupError(f"no weather for {city}, only for {', '.join(WEATHER)}")
    sky, degrees = WEATHER[city]
    return {"sky": sky, "celsius": degrees}
