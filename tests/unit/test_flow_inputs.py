"""A flow's inputs are the parameters of its function."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

import flowforge as ff


class Options(BaseModel):
    depth: int


@ff.flow
async def sample(
    run: ff.Run,
    topic: str,
    count: int = 3,
    tags: list[str] | None = None,
    options: Options | None = None,
) -> str:
    """Say what was given."""
    del run
    return f"{topic} {count} {tags} {options}"


def test_defaults_fill_what_is_not_given() -> None:
    expected = {"topic": "t", "count": 3, "tags": None, "options": None}

    assert expected == sample.resolve_inputs({"topic": "t"})


def test_texts_of_a_command_line_are_read_as_the_type_says() -> None:
    given = {"topic": "42", "count": "7", "tags": '["a"]', "options": '{"depth": 2}'}

    resolved = sample.resolve_inputs(given)

    assert {"topic": "42", "count": 7, "tags": ["a"], "options": Options(depth=2)} == resolved


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ({}, "WF301", "'topic'"),
        ({"topic": "t", "cuont": 1}, "WF302", "'cuont'"),
        ({"topic": "t", "count": "many"}, "WF303", "'count' expects int"),
        ({"topic": 3}, "WF303", "'topic' expects str"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    given: dict[str, object], code: str, message: str
) -> None:
    with pytest.raises(ff.WorkflowError, match=message) as caught:
        sample.resolve_inputs(given)

    assert code == caught.value.code


def test_a_near_miss_of_an_input_is_named() -> None:
    with pytest.raises(ff.WorkflowError) as caught:
        sample.resolve_inputs({"topic": "t", "cuont": 1})

    assert "did you mean 'count'?" == caught.value.help


def test_a_flow_keeps_the_name_and_the_documentation_of_its_function() -> None:
    assert ("sample", "Say what was given.") == (sample.name, sample.__doc__)
    assert "Flow(sample, inputs=['topic', 'count', 'tags', 'options'])" == repr(sample)


def not_async(run: ff.Run) -> str:
    del run
    return ""


async def without_run() -> str:
    return ""


async def with_positions(run: ff.Run, *texts: str) -> str:
    del run
    return "".join(texts)


async def with_unknown_type(run: ff.Run, value: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821
    del run
    return str(value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (not_async, "not an async function"),
        (without_run, "no parameter for its run"),
        (with_positions, "'texts' cannot be an input"),
        (with_unknown_type, "'Nowhere' is not defined"),
    ],
)
def test_functions_that_cannot_be_flows_are_refused_where_they_stand(
    function: Any, message: str
) -> None:
    with pytest.raises(ff.WorkflowError, match=message) as caught:
        ff.flow(function)

    assert "WF612" == caught.value.code
    assert caught.value.location is not None
    assert caught.value.location.file.endswith("test_flow_inputs.py")
