"""Steps that let the model think first: on a random model that talks as Qwen3, and scripted."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from byte_vocabulary import byte_vocabulary
from random_models import tiny_llama

import flowforge as ff
from flowforge.backends.engine import open_engine_backend
from flowforge.backends.protocol import (
    GenerateRequest,
    GenerationDone,
    Sampling,
    TextDelta,
    ToolOffer,
)
from flowforge.backends.script import ScriptBackend, ScriptedAnswer
from flowforge.engine.config import EngineConfig
from flowforge.errors import WorkflowError
from flowforge.grammars.tool_formats import ToolDefinition
from flowforge.language.answer_specs import AnswerOptions
from flowforge.language.loader import load_text, require_program
from flowforge.runtime.events import RunFinished, StepFinished, StepText
from flowforge.runtime.run import start

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from flowforge.backends.engine import EngineBackend
    from flowforge.backends.protocol import Conversation

TEMPLATE = Path(__file__).parents[1] / "cases" / "chat_templates" / "qwen3.jinja"
SIGNS = ("<|im_end|>", "<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
CHOICE = ("yes", "no")
TOOL = ToolDefinition(
    "say",
    "",
    {"type": "object", "properties": {"word": {"enum": ["a", "b"]}}, "required": ["word"]},
)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model over bytes, with the marks and the template of a family that thinks."""
    directory = tmp_path_factory.mktemp("thinker")
    vocabulary = byte_vocabulary(SIGNS[1:], SIGNS[:1])
    size = vocabulary.vocabulary.vocab_size
    end = vocabulary.control_ids[SIGNS[0]]
    signs = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    model = tiny_llama(vocab_size=size, max_position_embeddings=1_024, **signs)
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(vocabulary.tokenizer.tokenizer_json)
    config = {"eos_token": SIGNS[0], "chat_template": TEMPLATE.read_text()}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture
async def backend(thinker: Path) -> AsyncGenerator[EngineBackend]:
    async with open_engine_backend(thinker, config=EngineConfig(num_threads=1)) as backend:
        yield backend


async def answer(
    conversation: Conversation, request: GenerateRequest
) -> tuple[GenerationDone, list[TextDelta]]:
    deltas: list[TextDelta] = []
    async with aclosing(conversation.generate(request)) as items:
        async for item in items:
            if isinstance(item, GenerationDone):
                return item, deltas
            deltas.append(item)
    raise AssertionError("a generation ends")


def text_of(deltas: list[TextDelta], *, is_thought: bool) -> str:
    return "".join(one.text for one in deltas if one.is_thought == is_thought)


def said(backend: EngineBackend, done: GenerationDone) -> str:
    assert done.output_ids is not None
    return backend.tokenizer.decode(done.output_ids, skip_special=False)


def thinking(seed: int = 1, budget: int = 12, **form: Any) -> GenerateRequest:
    most = form.pop("max_tokens", 20)
    stop = form.pop("stop", ())
    sampling = Sampling(max_tokens=most, temperature=1.0, seed=seed, stop=stop)
    return GenerateRequest(sampling, options=AnswerOptions(think=budget), label="a", **form)


@pytest.mark.parametrize("seed", range(2))
async def test_a_form_holds_behind_the_thoughts(backend: EngineBackend, seed: int) -> None:
    conversation = await backend.open()
    conversation.add_user("Well?")

    done, deltas = await answer(conversation, thinking(seed, choice=CHOICE))

    assert done.text in CHOICE
    assert "stop" == done.finish_reason
    thoughts = text_of(deltas, is_thought=True)
    assert f"<think>{thoughts}</think>\n\n{done.text}" == said(backend, done).removesuffix(SIGNS[0])
    assert done.text == text_of(deltas, is_thought=False)
    assert done.output_ids == tuple(one for delta in deltas for one in delta.token_ids)
    await conversation.close()


async def test_max_tokens_is_of_the_answer_alone(backend: EngineBackend) -> None:
    lengths = set[int]()
    for seed in range(6):
        conversation = await backend.open()
        conversation.add_user("Well?")
        done, deltas = await answer(conversation, thinking(seed, budget=30, max_tokens=5))
        if done.finish_reason == "length":
            lengths.add(sum(one.num_tokens for one in deltas if not one.is_thought))
        await conversation.close()

    assert {5} == lengths


async def test_a_stop_string_is_looked_for_in_the_answer_alone(backend: EngineBackend) -> None:
    conversation = await backend.open()
    conversation.add_user("Well?")
    free, _ = await answer(await conversation.fork(), thinking())
    letter = next(one for one in free.text[1:] if one not in "\ufffd")

    done, _ = await answer(conversation, thinking(stop=(letter,)))

    assert free.text[: free.text.index(letter)] == done.text
    assert done.output_ids is not None
    assert free.output_ids is not None
    assert done.output_ids == free.output_ids[: len(done.output_ids)]


async def test_thoughts_stay_in_the_conversation_and_are_computed_once(
    backend: EngineBackend,
) -> None:
    conversation = await backend.open()
    conversation.add_user("Well?")
    first, _ = await answer(conversation, thinking(choice=CHOICE))
    conversation.add_user("And?")

    second, _ = await answer(conversation, thinking(choice=CHOICE))

    assert first.prompt_ids is not None
    assert first.output_ids is not None
    assert second.prompt_ids is not None
    before = first.prompt_ids + first.output_ids
    assert before == second.prompt_ids[: len(before)]
    assert second.usage.reused_tokens >= len(first.prompt_ids)


@pytest.mark.parametrize("num_written", (1, 5, 9, 14))
async def test_a_generation_that_was_cut_comes_to_the_same(
    backend: EngineBackend, num_written: int
) -> None:
    conversation = await backend.open()
    conversation.add_user("Well?")
    again = await conversation.fork()
    request = thinking(budget=6, regex="[a-z]{4}")
    whole, _ = await answer(conversation, request)
    assert whole.output_ids is not None
    written = whole.output_ids[:num_written]

    resumed, deltas = await answer(
        again,
        GenerateRequest(
            request.sampling,
            regex=request.regex,
            options=request.options,
            label="a",
            written=written,
        ),
    )

    assert whole.output_ids == resumed.output_ids
    assert whole.text == resumed.text == text_of(deltas, is_thought=False)


async def test_tools_are_called_behind_the_thoughts(backend: EngineBackend) -> None:
    conversation = await backend.open()
    conversation.add_user("Well?")

    offer = ToolOffer((TOOL,), "required", 1)
    done, deltas = await answer(conversation, thinking(offer=offer, max_tokens=80))

    assert ("say",) == tuple(call.name for call in done.calls)
    assert not done.cuts_call
    assert "" == done.text == text_of(deltas, is_thought=False)
    assert said(backend, done).startswith("<think>")


async def test_a_model_that_marks_no_thoughts_is_refused(thinker: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors", "generation_config.json"):
        (tmp_path / name).symlink_to(thinker / name)
    template = TEMPLATE.with_name("qwen2.jinja").read_text()
    config = {"eos_token": SIGNS[0], "chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    async with open_engine_backend(tmp_path, config=EngineConfig(num_threads=1)) as backend:
        conversation = await backend.open()
        conversation.add_user("Well?")
        with pytest.raises(WorkflowError, match="'a' lets the model think") as caught:
            await answer(conversation, thinking())

    assert "WF422" == caught.value.code


STEPS = (
    "flowforge: 1\nname: t\nsteps:\n"
    "  a: {{ user: hi, gen: {{ choice: ['yes', 'no'], think: {think} }} }}\n"
    "  b: {{ from: a, user: why, gen: }}\n"
    "outputs: {{ a: '${{ a }}', b: '${{ b }}' }}\n"
)


async def test_a_step_tells_of_thoughts_apart_and_its_value_has_none() -> None:
    program = require_program(load_text(STEPS.format(think=3)))
    thoughtful = ScriptedAnswer("yes", thoughts="one two three four")
    backend = ScriptBackend({"a": thoughtful, "b": "so"})

    async with start(program, {}, backend, seed=1) as run:
        facts = [event.fact async for event in run.events()]
        outputs = await run.result()

    assert {"a": "yes", "b": "so"} == outputs
    texts = [fact for fact in facts if isinstance(fact, StepText) and fact.path == "a"]
    assert "one two three " == "".join(fact.text for fact in texts if fact.is_thought)
    assert "yes" == "".join(fact.text for fact in texts if not fact.is_thought)
    assert "assistant: one two three yes" in backend.prompts[1].text
    assert isinstance(facts[-1], RunFinished)
    accounting = facts[-1].accounting
    assert accounting.prefilled_tokens == accounting.unique_prompt_tokens


async def test_a_chat_lets_the_model_think() -> None:
    @ff.flow
    async def flow(run: ff.Run) -> str:
        async with run.chat() as chat:
            chat.user("hi")
            return await chat.gen(think=2)

    backend = ScriptBackend({"gen": ScriptedAnswer("so", thoughts="a b c")})
    async with ff.start(flow, backend=backend) as handle:
        facts = [event.fact async for event in handle.events()]

    (finished,) = [fact for fact in facts if isinstance(fact, StepFinished)]
    assert "so" == finished.value
    assert ["a ", "b "] == [f.text for f in facts if isinstance(f, StepText) and f.is_thought]


@pytest.mark.parametrize("budget", [None, 12])
async def test_an_answer_is_calls_or_has_its_form(
    backend: EngineBackend, budget: int | None
) -> None:
    ends = set[str]()
    for seed in range(12):
        conversation = await backend.open()
        conversation.add_user("Well?")
        request = GenerateRequest(
            Sampling(max_tokens=90, temperature=1.0, seed=seed),
            choice=("<tool", "no"),
            offer=ToolOffer((TOOL,), "auto", 1),
            options=AnswerOptions(think=budget),
        )
        done, deltas = await answer(conversation, request)
        assert "stop" == done.finish_reason
        assert not done.cuts_call
        assert done.text == text_of(deltas, is_thought=False)
        assert done.text in (("",) if done.calls else request.choice or ())
        ends.add(done.text)
        if done.calls:
            conversation.add_results([1])
            quiet = ToolOffer((TOOL,), "none")
            after, _ = await answer(conversation, replace(request, offer=quiet))
            assert after.text in (request.choice or ())
            assert not after.calls
        await conversation.close()

    assert {"", "no"} <= ends
