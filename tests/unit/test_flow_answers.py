"""Types in, types out: schemas that a model is held to, and values made of its answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter, field_validator
from typing_extensions import TypedDict

from flowforge.backends.protocol import FinishReason, GenerationDone, Usage
from flowforge.errors import WorkflowError
from flowforge.flows.answers import answer_type, choice_of
from flowforge.flows.sampling import SamplingOptions, sampling_of
from flowforge.grammars import check_schema


class Inner(BaseModel):
    name: str


class Critique(BaseModel):
    ok: bool
    problems: list[Inner] = Field(max_length=3)


@dataclass
class Pair:
    left: int
    right: int


class Options(TypedDict):
    fast: bool


class Even(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def be_even(cls, n: int) -> int:
        if n % 2:
            raise ValueError("must be even")
        return n


def done(text: str, reason: FinishReason = "stop") -> GenerationDone:
    return GenerationDone(text, reason, Usage(generated_tokens=7))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, "42", 42),
        (bool, "true", True),
        (list[str], '["a","b"]', ["a", "b"]),
        (dict[str, int], '{"a":1}', {"a": 1}),
        (Critique, '{"ok":true,"problems":[]}', Critique(ok=True, problems=[])),
        (Pair, '{"left":1,"right":2}', Pair(1, 2)),
        (Options, '{"fast":true}', {"fast": True}),
    ],
)
def test_an_answer_becomes_a_value_of_its_type(
    kind: type[object], text: str, value: object
) -> None:
    answer = answer_type(kind)

    assert value == answer.value_of("step", done(text))
    assert [] == check_schema(dict(answer.schema))


def test_a_type_adapter_stands_for_types_that_are_no_classes() -> None:
    kind: TypeAdapter[Literal["a", "b"]] = TypeAdapter(Literal["a", "b"])

    assert "b" == answer_type(kind).value_of("step", done('"b"'))


@pytest.mark.parametrize("kind", [Critique, Inner, Pair, Options])
def test_objects_take_no_keys_that_a_model_invents(kind: type[object]) -> None:
    assert answer_type(kind).schema["additionalProperties"] is False


def test_a_dict_stays_open() -> None:
    assert {"type": "integer"} == answer_type(dict[str, int]).schema["additionalProperties"]


def test_items_is_the_exact_length_of_a_list() -> None:
    schema = answer_type(list[str], items=3).schema

    assert (3, 3) == (schema["minItems"], schema["maxItems"])


def test_items_of_something_that_is_no_list_is_refused() -> None:
    with pytest.raises(WorkflowError, match="items=3 asks for a list") as caught:
        answer_type(Critique, items=3)

    assert "WF608" == caught.value.code


def test_a_type_without_a_schema_is_refused() -> None:
    with pytest.raises(WorkflowError, match="cannot answer with") as caught:
        answer_type(pytest.MonkeyPatch)

    assert "WF608" == caught.value.code


def test_a_cut_off_answer_is_no_value() -> None:
    with pytest.raises(WorkflowError, match="cut off after 7 tokens") as caught:
        answer_type(list[int]).value_of("step", done("[1, 2", "length"))

    assert "WF501" == caught.value.code


def test_what_no_schema_can_say_is_checked_afterwards() -> None:
    with pytest.raises(WorkflowError, match="must be even") as caught:
        answer_type(Even).value_of("step", done('{"n":3}'))

    assert "WF603" == caught.value.code


def test_a_key_twice_is_refused_though_pydantic_takes_it() -> None:
    with pytest.raises(WorkflowError, match="twice"):
        answer_type(Inner).value_of("step", done('{"name":"a","name":"b"}'))


def test_a_choice_is_the_option_itself() -> None:
    assert "bug" == choice_of("step", done("bug"), ["bug", "question"])


def test_an_answer_that_is_no_option_is_refused() -> None:
    with pytest.raises(WorkflowError, match="expected one of 'bug'") as caught:
        choice_of("step", done("Bug"), ["bug"])

    assert "WF513" == caught.value.code


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"max_tokens": 0}, "WF108"),
        ({"max_tokens": -1}, "WF108"),
        ({"max_tokens": 2.5}, "WF107"),
        ({"max_tokens": "9"}, "WF107"),
        ({"max_tokens": True}, "WF107"),
        ({"temperature": -0.1}, "WF108"),
        ({"temperature": float("nan")}, "WF108"),
        ({"top_p": 0.0}, "WF108"),
        ({"top_p": 1.1}, "WF108"),
        ({"top_k": 0}, "WF108"),
        ({"seed": -1}, "WF108"),
    ],
)
def test_options_that_a_file_could_not_say_are_refused(options: SamplingOptions, code: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        sampling_of(options, 7)

    assert caught.value.code == code
