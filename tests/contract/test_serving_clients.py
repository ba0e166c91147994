"""Other clients of the OpenAI API against the server: `pip install 'flowforge[clients]'`.

They bring some forty packages, which the tests' environment does without: each test is skipped
where its client is not installed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from pydantic import BaseModel
from served import MODEL, Served

if TYPE_CHECKING:
    from pathlib import Path

# What these packages warn of is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")

F_CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


class Person(BaseModel):
    """What an answer must be."""

    name: str
    age: int


# -- langchain-openai -----------------------------------------------------------------------------


@pytest.fixture
def chain(server: Served) -> Any:
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    return langchain.ChatOpenAI(
        model=MODEL, base_url=f"{server.url}/v1", api_key="none", temperature=0, max_retries=0
    )


def test_langchain_chats_and_streams(chain: Any) -> None:
    assert "hello" == chain.invoke("say hello").content
    assert "hello" == "".join(chunk.content for chunk in chain.stream("say hello"))
    assert ["a", "b"] == [one.content for one in chain.batch(["say a", "say b"])]

    async def main() -> str:
        return "".join([chunk.content async for chunk in chain.astream("say hi")])

    assert "hi" == anyio.run(main)


def test_langchain_calls_tools_and_gives_results_back(chain: Any) -> None:
    from importlib import import_module

    messages = import_module("langchain_core.messages")
    tool = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
    bound = chain.bind_tools([tool])
    asked = bound.invoke(f"say {F_CALL}")
    (call,) = asked.tool_calls
    result = messages.ToolMessage("42", tool_call_id=call["id"])
    said = messages.HumanMessage
    answer = bound.invoke([said("say it"), asked, result, said("say done")])

    assert ("f", {"a": 1}) == (call["name"], call["args"])
    assert "done" == answer.content


def test_langchain_parses_answers(chain: Any) -> None:
    parsed = chain.with_structured_output(Person, method="json_schema")

    assert Person(name="Bo", age=4) == parsed.invoke('say {"name":"Bo","age":4}')


def test_langchain_can_leave_a_stream(chain: Any, server: Served) -> None:
    stream = chain.stream("count")
    next(stream)
    stream.close()

    server.wait_until(lambda: server.service.counts.num_gone > 0)
    server.check_nothing_held()


# -- litellm --------------------------------------------------------------------------------------


@pytest.fixture
def lite(server: Served) -> Any:
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")

    def ask(text: str, **more: Any) -> Any:
        return litellm.completion(
            model=f"openai/{MODEL}",
            api_base=f"{server.url}/v1",
            api_key="none",
            messages=[{"role": "user", "content": text}],
            temperature=0,
            **more,
        )

    return ask


def test_litellm_chats_and_streams(lite: Any) -> None:
    assert "hello" == lite("say hello").choices[0].message.content
    chunks = lite("say hello", stream=True)
    assert "hello" == "".join(one.choices[0].delta.content or "" for one in chunks)


def test_litellm_calls_tools(lite: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
    (choice,) = lite(f"say {F_CALL}", tools=[tool]).choices

    (call,) = choice.message.tool_calls
    assert ("f", {"a": 1}) == (call.function.name, json.loads(call.function.arguments))
    assert "tool_calls" == choice.finish_reason


def test_litellm_asks_for_forms(lite: Any) -> None:
    answer = lite('say {"name":"Bo","age":4}', response_format=Person)

    text = answer.choices[0].message.content
    assert Person(name="Bo", age=4) == Person.model_validate_json(text)


# -- llm ------------------------------------------------------------------------------------------


@pytest.fixture
def talker(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    llm = pytest.importorskip("llm", reason="llm is not installed")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: own\n  model_name: {MODEL}\n  api_base: {server.url}/v1\n"
        "  supports_tools: true\n  supports_schema: true\n"
    )
    model = llm.get_model("own")
    model.key = "none"
    return model


def test_llm_chats_streams_and_goes_on(talker: Any) -> None:
    assert "hello" == talker.prompt("say hello", stream=False).text()
    assert "hello" == "".join(talker.prompt("say hello", stream=True))
    conversation = talker.conversation()
    assert "a" == conversation.prompt("say a").text()
    assert "b" == conversation.prompt("say b").text()


def test_llm_calls_tools(talker: Any) -> None:
    seen: list[int] = []

    def f(a: int) -> str:
        seen.append(a)
        return "done"

    response = talker.prompt(f"say {F_CALL}", tools=[f], stream=False, temperature=0)
    (call,) = response.tool_calls()
    response.execute_tool_calls()

    assert ("f", {"a": 1}, [1]) == (call.name, call.arguments, seen)


def test_llm_asks_for_forms(talker: Any) -> None:
    response = talker.prompt('say {"name":"Bo","age":4}', schema=Person, stream=False)

    assert Person(name="Bo", age=4) == Person.model_validate_json(response.text())
