"""The values of a program's inputs, from what the caller gave."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, TypeVar

from flowforge.errors import WorkflowError, WrongInputsError
from flowforge.language.diagnostics import did_you_mean, near_miss
from flowforge.language.json_values import kind_of_value, problem_with_json, read_json
from flowforge.language.program import Required
from flowforge.language.types import STRING, display_type, may_be

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from jsonschema import ValidationError

    from flowforge.language.program import Input, JsonValue, Program

T = TypeVar("T")

_SHOWN_CHARS = 60
_PLAIN_KEYWORDS = frozenset(("type", "description", "title", "default", "examples"))


def resolve_inputs(program: Program, given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Every input's value: given, else its default.

    A text given for an input that takes no strings, as from a command line (`-i count=3`), is read
    as JSON; a string input takes the text exactly as it is.
    Raises WorkflowError WF301, WF302, WF303; WrongInputsError for several.
    """
    return resolve_each(
        program.inputs, given, "workflow", lambda name: _value_of(program.inputs[name], given)
    )


def resolve_each(
    known: Collection[str],
    given: Collection[str],
    taker: Literal["workflow", "flow"],
    value_of: Callable[[str], T],
) -> dict[str, T]:
    """The value of every input that is known; all that is wrong is told together.

    given: names. value_of: gives an input's value. Raises WorkflowError WF302 for names that are
    not known, what `value_of` raises, and WrongInputsError for several of them.
    """
    wrong: list[WorkflowError] = []
    meant: set[str | None] = set()
    for name in given:
        if name not in known:
            listed = ", ".join(known)
            otherwise = f"inputs of this {taker}: {listed}" if listed else "it takes no inputs"
            help = did_you_mean(name, known, otherwise)
            wrong.append(WorkflowError("WF302", f"unknown input {name!r}", help=help))
            meant.add(near_miss(name, known))
    values: dict[str, T] = {}
    for name in known:
        try:
            values[name] = value_of(name)
        except WorkflowError as error:
            # What was given under a name misspelt is not missing.
            if error.code != "WF301" or name not in meant:
                wrong.append(error)
    require_right(wrong)
    return values


def require_right(wrong: Sequence[WorkflowError]) -> None:
    """Raise what is wrong with inputs, if anything is: the error, or all of them as one."""
    if len(wrong) > 1:
        raise WrongInputsError(wrong) from wrong[0]
    if wrong:
        raise wrong[0]


def problem_with_value(schema: Mapping[str, JsonValue], value: JsonValue) -> str | None:
    """Why a value does not satisfy a JSON Schema; None when it does."""
    if not schema.keys() - _PLAIN_KEYWORDS and schema.get("type") == "string":
        return None if isinstance(value, str) else f"{_shown(value)} is not of type 'string'"
    import jsonschema
    from jsonschema.exceptions import best_match

    error = best_match(jsonschema.Draft202012Validator(schema).iter_errors(value))
    if error is None:
        return None
    place = "".join(f"[{part!r}]" for part in error.absolute_path)
    message = _in_json(error)
    message = message if len(message) < 200 else f"{message[:200]}…"
    return f"at {place}: {message}" if place else message


def _in_json(error: ValidationError) -> str:
    """What is wrong, with values as JSON writes them: the library writes them as Python does."""
    message = error.message
    for value in (error.instance, error.validator_value):
        message = message.replace(repr(value), _written(value), 1)
    return message


def _value_of(input_: Input, given: Mapping[str, JsonValue]) -> JsonValue:
    shown_type = display_type(input_.type)
    if input_.name not in given:
        if isinstance(input_.default, Required):
            raise WorkflowError(
                "WF301",
                f"input {input_.name!r} ({shown_type}) is missing",
                location=input_.location,
                help=f"give it with -i {input_.name}=…",
            )
        return input_.default
    value = given[input_.name]
    if isinstance(value, str) and not may_be(input_.type, STRING):
        value = _value_of_text(input_, value)
    problem = problem_with_json(value)
    if problem is not None:
        message = f"input {input_.name!r} expects {shown_type}: {problem}"
        raise WorkflowError("WF303", message, location=input_.location)
    problem = problem_with_value(input_.schema, value)
    if problem is not None:
        message = f"input {input_.name!r} expects {shown_type}, got {kind_of_value(value)}"
        raise WorkflowError("WF303", f"{message}: {problem}", location=input_.location)
    return value


def _value_of_text(input_: Input, text: str) -> JsonValue:
    try:
        return read_json(text)
    except ValueError as error:
        expected = display_type(input_.type)
        message = f"input {input_.name!r} expects {expected}, got the text {_shown(text)}"
        if text.lstrip()[:1] in ("[", "{"):
            reason = str(error).partition(": line ")[0]
            message += f", which is no JSON: {reason[:1].lower()}{reason[1:]}"
        help = f"write it as JSON: -i {input_.name}={_example(input_)}"
        raise WorkflowError("WF303", message, location=input_.location, help=help) from error


def _example(input_: Input) -> str:
    examples = {"array": '\'["a", "b"]\'', "object": "'{\"a\": 1}'", "boolean": "true"}
    items = input_.schema.get("items")
    if isinstance(items, dict) and items.get("type") in ("integer", "number"):
        examples["array"] = "'[1, 2]'"
    return examples.get(str(input_.schema.get("type")), "3")


def _shown(value: JsonValue) -> str:
    shown = _written(value)
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"


def _written(value: object) -> str:
    return repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
