"""Hooks: what they see of requests and of runs, and what they make of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from served import MODEL, Setting, served

import flowforge as ff
from flowforge.backends.hooks import load_hooks
from flowforge.language.loader import load_text
from flowforge.runtime.events import Accounting, RunFailed, RunFinished
from flowforge.runtime.run import start

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.backends.protocol import Backend


def no_bombs(prompted: ff.Prompted) -> list[ff.SeenTurn]:
    if any("bomb" in turn.text for turn in prompted.turns):
        raise ff.Blocked("no bombs")
    prompted.annotations["roles"] = [turn.role for turn in prompted.turns]
    return [ff.SeenTurn(one.role, one.text.replace("Alice", "A.")) for one in prompted.turns]


async def no_numbers(written: ff.Written) -> str | None:
    if "13" in written.text:
        raise ff.Blocked("no bad luck")
    written.annotations["length"] = len(written.text)
    return re.sub(r"\d", "#", written.text) if "5" in written.text else None


def fail(_: object) -> None:
    raise KeyError("broken")


PAGE = Path(__file__).parents[2] / "docs" / "hooks.md"
HOOKS = ff.Hooks(before=(no_bombs,), after=(no_numbers,))


def ask(url: str, text: str, **more: Any) -> httpx2.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}
    return httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60)


def test_the_hooks_of_a_server_block_redact_and_annotate() -> None:
    with served(Setting(hooks=HOOKS)) as server:
        redacted = ask(server.url, "say Alice").json()
        blocked = ask(server.url, "say bomb")
        unlucky = ask(server.url, "say 13").json()
        hidden = ask(server.url, "say 45", logprobs=True).json()
        streamed = ask(server.url, "say 45", stream=True, n=2).text
        completed = httpx2.post(
            f"{server.url}/v1/completions",
            json={"model": MODEL, "prompt": "a bomb"},
            timeout=60,
        )
        ids = httpx2.post(f"{server.url}/tokenize", json={"prompt": "a bomb"}, timeout=60).json()[
            "tokens"
        ]
        spelled = httpx2.post(
            f"{server.url}/v1/completions", json={"model": MODEL, "prompt": ids}, timeout=60
        )
        server.check_nothing_held()

    assert "A." == redacted["choices"][0]["message"]["content"]
    assert {"roles": ["user"], "length": 2} == redacted["annotations"]
    assert (400, "content_filter") == (blocked.status_code, blocked.json()["error"]["code"])
    assert ("", "content_filter") == (
        unlucky["choices"][0]["message"]["content"],
        unlucky["choices"][0]["finish_reason"],
    )
    assert "##" == hidden["choices"][0]["message"]["content"]
    assert [] == hidden["choices"][0]["logprobs"]["content"]
    chunks = [json.loads(line[6:]) for line in streamed.split("\n\n") if line[6:7] == "{"]
    said = [one["delta"].get("content") for chunk in chunks for one in chunk["choices"]]
    assert 2 == said.count("##") and "4" not in "".join(one or "" for one in said)
    assert {"roles": ["user"], "length": 2} == chunks[-1]["annotations"]
    assert (400, 400) == (completed.status_code, spelled.status_code)


@pytest.mark.parametrize("hooks", [ff.Hooks(before=(fail,)), ff.Hooks(after=(fail,))])
def test_a_hook_that_fails_lets_nothing_through(hooks: ff.Hooks) -> None:
    with served(Setting(hooks=hooks)) as server:
        whole = ask(server.url, "say secret")
        streamed = ask(server.url, "say secret", stream=True)

    assert (500, "TL151") == (whole.status_code, whole.json()["error"]["code"])
    assert "secret" not in whole.text + streamed.text
    assert "TL151" in streamed.text


@ff.flow
async def asking(run: ff.Run, about: str) -> str:
    async with run.chat(system="Know Alice.") as chat:
        chat.user("Tell {about}.", about=about)
        first = await chat.gen(name="first")
        chat.user("Again.")
        return first + await chat.gen(name="second")


def test_the_hooks_of_a_run_see_every_turn_once() -> None:
    seen: list[tuple[str, list[str]]] = []

    def note(prompted: ff.Prompted) -> None:
        seen.append((prompted.source, [f"{one.role}: {one.text}" for one in prompted.turns]))

    hooks = ff.Hooks(before=(note, no_bombs), after=(no_numbers,))
    script = ff.testing.script({"first": "a5", "second": "b"})

    assert "a#b" == ff.run_sync(asking, about="Alice", backend=ff.hooked(script, hooks))
    assert [
        ("", ["system: Know Alice."]),
        ("first", ["user: Tell Alice."]),
        ("second", ["user: Again."]),
    ] == seen
    asked = str(script.prompts)
    assert "Tell A.." in asked and "Alice" not in asked


@pytest.mark.parametrize(("about", "answer", "code"), [
    ("bomb", "x", "WF426"), ("peace", "13", "WF427"),
])  # fmt: skip
def test_what_a_hook_blocks_fails_the_step(about: str, answer: str, code: str) -> None:
    backend = ff.hooked(ff.testing.script({"*": answer}), HOOKS)

    with pytest.raises(ff.RunFailedError) as failed:
        ff.run_sync(asking, about=about, backend=backend)

    assert [code] == [one.error.code for one in failed.value.failures]


@ff.flow
async def short(run: ff.Run) -> str:
    async with run.chat() as chat:
        chat.user("Tell me.")
        return await chat.gen(name="a")


LETTER = "flowforge: 1\nname: t\nsteps: { a: { user: Tell me., gen: } }\n"


async def costs_of(backend: Backend, *, is_flow: bool) -> Accounting:
    program = load_text(LETTER).program
    assert program is not None
    begun = ff.start(short, backend=backend) if is_flow else start(program, {}, backend)
    async with begun as run:
        *_, last = [event.fact async for event in run.events()]
    assert isinstance(last, RunFailed | RunFinished)
    return last.accounting


@pytest.mark.parametrize("is_flow", [True, False])
async def test_an_answer_that_a_hook_blocks_is_in_the_books(is_flow: bool) -> None:
    refusing = ff.hooked(ff.testing.script({"a": "say 13"}), ff.Hooks(after=(no_numbers,)))

    passed = await costs_of(ff.testing.script({"a": "say 13"}), is_flow=is_flow)
    refused = await costs_of(refusing, is_flow=is_flow)

    assert 0 < passed.generated_tokens == refused.generated_tokens == refused.cut_tokens
    assert 0 < passed.prefilled_tokens == refused.prefilled_tokens
    assert passed.unique_prompt_tokens == refused.unique_prompt_tokens


def a_word(_: ff.Prompted) -> object:
    return "x"


def nothing(_: ff.Prompted) -> object:
    return []


def too_many(_: ff.Prompted) -> object:
    return [ff.SeenTurn("user", "x")] * 9


def another_role(_: ff.Prompted) -> object:
    return [ff.SeenTurn("tool", "x")]


@pytest.mark.parametrize("hook", [a_word, nothing, too_many, another_role, fail])
def test_a_hook_that_returns_nonsense_fails_the_step(hook: Callable[[Any], object]) -> None:
    backend = ff.hooked(ff.testing.script({"*": "x"}), ff.Hooks(before=(hook,)))

    with pytest.raises(ff.RunFailedError) as failed:
        ff.run_sync(asking, about="x", backend=backend)

    assert "TL151" == failed.value.failures[0].error.code


def test_hooks_come_from_files(tmp_path: Path) -> None:
    good, bad, empty = tmp_path / "good.py", tmp_path / "bad.py", tmp_path / "empty.py"
    good.write_text("def after(written):\n    return written.text.upper()\n")
    bad.write_text("1 / 0\n")
    empty.write_text("x = 1\n")

    hooks = load_hooks([good, good])

    assert (0, 2) == (len(hooks.before), len(hooks.after))
    for file in (bad, empty, tmp_path / "nowhere.py"):
        with pytest.raises(ff.ToolError) as refused:
            load_hooks([file])
        assert "TL150" == refused.value.code


def test_the_example_of_the_page_does_what_it_says(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    code = re.search(r"^```python[^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert code is not None
    file = tmp_path / "guard.py"
    file.write_text(code[1])
    backend = ff.hooked(ff.testing.script({"*": "write to bo@x.example"}), load_hooks([file]))

    assert "write to [email]" * 2 == ff.run_sync(asking, about="peace", backend=backend)
    with pytest.raises(ff.RunFailedError):
        ff.run_sync(asking, about="the launch code", backend=backend)
