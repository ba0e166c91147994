"""Served workflows whose steps ask other servers, or routes, each key with its own KV."""

from __future__ import annotations

from contextlib import AsyncExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from chat_server import text_reply
from socket_chat_server import serving
from spoken_model import Pace, spoken_backend, spoken_engine

from flowforge.backends.elsewhere import Elsewhere
from flowforge.backends.model_set import ModelSet
from flowforge.backends.protocol import GenerateRequest, GenerationDone, Sampling
from flowforge.backends.routing.route import read_route
from flowforge.errors import WorkflowError
from flowforge.language.loader import load, require_program
from flowforge.language.remote_models import RemoteModel
from flowforge.runtime.elsewhere import elsewhere_of_all
from flowforge.serving.keys import KeyRing
from flowforge.serving.tenants import open_tenants
from flowforge.task_groups import open_task_group

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.backends.protocol import Conversation
    from flowforge.serving.keys import Key


def _key(name: str) -> Key:
    text = f"key-{name}-of-a-test-that-is-long"
    key = KeyRing(None, [text]).find(f"Bearer {text}")
    assert key is not None
    return key


async def _written(conversation: Conversation) -> GenerationDone:
    conversation.add_user("say hello")
    request = GenerateRequest(Sampling(max_tokens=20))
    items = [item async for item in conversation.generate(request)]
    await conversation.close()
    assert isinstance(items[-1], GenerationDone)
    return items[-1]


async def test_a_key_asks_the_engine_other_servers_and_routes() -> None:
    route, _ = read_route("main", {"weights": {"engine": 1}})
    assert route is not None
    texts: list[str] = []
    with serving(lambda _: text_reply("from afar")) as server:
        elsewhere = Elsewhere({"m": RemoteModel("m", server.url, "m")}, {"main": route})
        async with spoken_engine(Pace()) as engine:
            engines: Any = spoken_backend(engine)
            async with open_tenants(engines, elsewhere) as backend_of:
                backend = backend_of(_key("one"))
                assert backend is backend_of(_key("one"))
                for model in (None, "remote/m", "route/main"):
                    done = await _written(await backend.open(model=model))
                    texts.append(done.text)
                assert 0 < backend.statistics().generated_tokens
                with pytest.raises(WorkflowError, match="WF512"):
                    await backend.open(model="remote/other")

    assert ["hello", "from afar", "hello"] == texts


@pytest.mark.parametrize("model", [None, "route/main"])
async def test_keys_share_no_kv_whichever_way_they_come_to_the_engine(model: str | None) -> None:
    route, _ = read_route("main", {"weights": {"engine": 1}})
    assert route is not None
    async with spoken_engine(Pace()) as engine:
        engines: Any = spoken_backend(engine)
        async with open_tenants(engines, Elsewhere({}, {"main": route})) as backend_of:
            reused: list[int] = []
            for key in ("one", "one", "two"):
                done = await _written(await backend_of(_key(key)).open(model=model))
                reused.append(done.usage.reused_tokens)

    assert reused[1] > 0
    assert [0, 0] == [reused[0], reused[2]]


def test_workflows_of_one_folder_agree_on_their_models(tmp_path: Path) -> None:
    for name, url in (("a", "http://h/v1"), ("b", "http://h/v1"), ("c", "http://other/v1")):
        (tmp_path / f"{name}.yaml").write_text(
            f"flowforge: 1\nname: {name}\nmodels: {{ m: {{ url: '{url}' }} }}\n"
            "steps: { s: { set: 1 } }\n"
        )
    programs = [require_program(load(tmp_path / f"{name}.yaml")) for name in "abc"]

    assert {"m"} == set(elsewhere_of_all(programs[:2]).models)
    with pytest.raises(WorkflowError, match=r"WF538.*'m'"):
        elsewhere_of_all(programs)


async def test_a_route_s_revision_is_that_of_its_models() -> None:
    route, _ = read_route("main", {"weights": {"engine": 1, "remote/m": 1}})
    assert route is not None
    model = RemoteModel("m", "http://models.test/v1", "org/M")
    async with spoken_engine(Pace()) as engine, AsyncExitStack() as stack:
        backend: Any = spoken_backend(engine)
        elsewhere = Elsewhere({"m": model}, {"main": route})
        async with open_task_group() as tasks:
            models = ModelSet(
                "route/main", elsewhere, stack, lambda _: nullcontext(backend), backend
            )
            models.serve_in(tasks)
            revision = await models.revision_of(None)

    assert "http://models.test/v1 org/M" in revision
    assert "'engine'" in revision
