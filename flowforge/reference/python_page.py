"""The page of the Python API: every public name with its signature and docstring."""

from __future__ import annotations

import inspect
import re
from dataclasses import Field, fields, is_dataclass
from textwrap import dedent
from types import ModuleType
from typing import TYPE_CHECKING, get_overloads

import flowforge
from flowforge.reference.markdown import MADE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WIDTH = 80
_CODE = re.compile(r"(?:^    .*\n?)+", re.MULTILINE)
_GROUP = re.compile(r"^    # (.+)$|^    \"(\w+)\",$", re.MULTILINE)


def python_page() -> str:
    """The names of `flowforge.__all__`, in its groups."""
    parts: list[str] = []
    for title, names in groups():
        parts.append(f"## {title}")
        parts += [_entry(name, getattr(flowforge, name)) for name in names]
    body = "\n\n".join(parts)
    return f"""# Python names

{MADE}

`import flowforge as ff` is all there is to import; what is not here is not stable.
[Workflows in Python](python-api.md) shows how they go together, with code that runs.

{body}
"""


def groups() -> Iterator[tuple[str, list[str]]]:
    """The groups of `__all__` with their names, as the comments there say them."""
    source = inspect.getsource(flowforge)
    listed = source[source.index("__all__ = [") : source.index("\n]\n")]
    title, names = "", list[str]()
    for comment, name in _GROUP.findall(listed):
        if comment:
            if names:
                yield title, names
            title, names = comment, []
        else:
            names.append(name)
    yield title, names


def members_of(owner: type) -> Iterator[tuple[str, object]]:
    """Public methods and properties of a class; those of public bases are told there."""
    seen: set[str] = set()
    for base in owner.__mro__:
        if base is not owner and (_is_public(base) or base.__module__ == "builtins"):
            continue
        for name, member in vars(base).items():
            is_member = inspect.isfunction(member) or isinstance(
                member, property | classmethod | staticmethod
            )
            if is_member and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, member


def _is_public(found: type) -> bool:
    return getattr(flowforge, found.__name__, None) is found


def _entry(name: str, found: object) -> str:
    if isinstance(found, ModuleType):
        names: list[str] = getattr(found, "__all__")  # noqa: B009 - not every module has one
        parts = [f"### {name}", _doc(found)]
        parts += [_entry(f"{name}.{one}", getattr(found, one)) for one in names]
        return "\n\n".join(parts)
    if isinstance(found, type):
        return _class(name, found)
    if callable(found):
        return f"### {name}\n\n{_signatures(found)}\n\n{_doc(found)}"
    raise TypeError(f"no form for {name}")


def _class(name: str, found: type) -> str:
    parts = [f"### {name}", _block(_made(found)), _doc(found)]
    for member, value in members_of(found):
        parts.append(_member(f"{name}.{member}", value))
    return "\n\n".join(parts)


def _made(found: type) -> str:
    """A class with its public bases, and how one is made where a user makes it."""
    bases = [one.__name__ for one in found.__bases__ if _is_public(one) or one is Exception]
    head = f"class {found.__name__}({', '.join(bases)})" if bases else f"class {found.__name__}"
    if is_dataclass(found):
        lines = [f"    {one.name}: {one.type}{_default(one)}" for one in fields(found) if one.init]
        return "\n".join([f"{head}:", *lines])
    maker = vars(found).get("__init__")
    if maker is None or not maker.__doc__:
        return f"{head}: ..."
    return f"{head}:\n    def __init__{_signature(maker)}: ..."


def _default(field: Field[object]) -> str:
    is_plain = isinstance(field.default, str | int | float | tuple | None)
    return f" = {field.default!r}" if is_plain else ""


def _member(name: str, member: object) -> str:
    if isinstance(member, property):
        kind = inspect.get_annotations(member.fget).get("return", "") if member.fget else ""
        return f"#### {name}\n\n{_block(f'{name}: {kind}')}\n\n{_doc(member)}"
    function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    assert inspect.isfunction(function)
    return f"#### {name}\n\n{_signatures(function)}\n\n{_doc(function)}"


def _signatures(function: Callable[..., object]) -> str:
    """As definitions, one for each way to call it."""
    forms = get_overloads(function) or [function]
    head = "async def" if inspect.iscoroutinefunction(function) else "def"
    name = function.__name__
    return _block("\n".join(f"{head} {name}{_signature(form)}: ..." for form in forms))


def _signature(function: Callable[..., object]) -> str:
    """As it is written: annotations are texts, and stay as they are."""
    signature = inspect.signature(function)
    parameters = [
        one.replace(annotation=_Bare(one.annotation))
        for one in signature.parameters.values()
        if one.name not in ("self", "cls")
    ]
    shown = signature.replace(
        parameters=parameters, return_annotation=_Bare(signature.return_annotation)
    )
    text = str(shown)
    return text if len(text) <= _WIDTH else _broken(shown)


def _broken(signature: inspect.Signature) -> str:
    """One parameter a line."""
    lines: list[str] = []
    parameters = [*signature.parameters.values()]
    for idx, one in enumerate(parameters):
        before = parameters[idx - 1].kind if idx else one.POSITIONAL_OR_KEYWORD
        if one.kind is one.KEYWORD_ONLY and before not in (one.KEYWORD_ONLY, one.VAR_POSITIONAL):
            lines.append("    *,")
        lines.append(f"    {one},")
        after = parameters[idx + 1].kind if idx + 1 < len(parameters) else None
        if one.kind is one.POSITIONAL_ONLY and after is not one.POSITIONAL_ONLY:
            lines.append("    /,")
    return "(\n" + "\n".join(lines) + f"\n) -> {signature.return_annotation!r}"


class _Bare:
    """An annotation that is shown as it is written."""

    def __init__(self, text: object) -> None:
        self._text = str(text)

    def __repr__(self) -> str:
        return self._text


def _block(text: str) -> str:
    # Not marked as "python": it is highlighted, and nothing to run.
    return f"```py\n{text}\n```"


def _doc(found: object) -> str:
    """A docstring; what is indented in it is code."""
    text = inspect.getdoc(found) or ""
    return _CODE.sub(lambda hit: _block(dedent(hit[0]).strip()) + "\n", text).strip()
