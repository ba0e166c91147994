"""The grammars that FlowForge brings along, called 'flowforge/NAME'."""

from __future__ import annotations

from importlib import resources

from flowforge.errors import WorkflowError
from flowforge.grammars.lark.source import LarkSource

PREFIX = "flowforge/"


def shipped_names() -> tuple[str, ...]:
    """The names of all of them, without the prefix."""
    files = (one.name for one in resources.files("flowforge.grammars").iterdir())
    return tuple(sorted(name.removesuffix(".lark") for name in files if name.endswith(".lark")))


def shipped_source(name: str) -> LarkSource:
    """A grammar by its name, with or without the prefix.

    Raises WorkflowError WF430 when there is none.
    """
    plain = name.removeprefix(PREFIX)
    names = shipped_names()
    if plain not in names:
        message = f"there is no grammar {PREFIX}{plain}"
        help = "shipped are " + ", ".join(PREFIX + one for one in names)
        raise WorkflowError("WF430", message, help=help)
    text = resources.files("flowforge.grammars").joinpath(f"{plain}.lark").read_text("utf-8")
    return LarkSource(text, PREFIX + plain)
