"""Cases of the bank about texts, stops and samples, on the default model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import pytest

from flowforge.engine.config import EngineConfig
from flowforge.engine.loading import engine_for
from flowforge.engine.sampling import SamplingParams
from flowforge.engine.sequence import GenerationFinished, GenerationRequest, TokensArrived
from flowforge.engine.text.chat_template import ChatTemplate
from flowforge.engine.text.detokenizer import IncrementalDetokenizer
from flowforge.engine.text.messages import Message
from flowforge.engine.text.tokenizer import Tokenizer
from flowforge.runtime.seeds import derived_seed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from flowforge.engine.engine import Engine

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One loop: what differs between loops is tested without a model."""
    return "asyncio"


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path) -> Tokenizer:
    return Tokenizer.from_directory(default_model_dir)


@pytest.fixture(scope="module")
async def engine(default_model_dir: Path, tokenizer: Tokenizer) -> AsyncGenerator[Engine]:
    config = EngineConfig(num_pages=256, num_threads=1)
    async with engine_for(
        default_model_dir, vocab_size=tokenizer.vocab_size, config=config
    ) as engine:
        yield engine


@dataclass
class Answer:
    """What arrived of one generation. streamed: its text, joined from the pieces."""

    token_ids: list[int] = field(default_factory=list[int])
    streamed: str = ""
    reason: str = ""


class Stop:
    """As a backend gives the engine a stop string."""

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, texts)

    def is_met_by(self, token_ids: list[int]) -> bool:
        """See `StopCondition.is_met_by`."""
        self._detokenizer.push(token_ids)
        return self._detokenizer.stopped


async def answer_to(
    engine: Engine,
    tokenizer: Tokenizer,
    prompt_ids: list[int],
    params: SamplingParams,
    stop: Sequence[str] = (),
) -> Answer:
    sequence = engine.open(prompt_ids)
    detokenizer = IncrementalDetokenizer(tokenizer, stop)
    answer = Answer()
    request = GenerationRequest(params, stop=Stop(tokenizer, stop) if stop else None)
    async for update in sequence.generate(request):
        if isinstance(update, TokensArrived):
            answer.token_ids += update.token_ids
            answer.streamed += detokenizer.push(update.token_ids)
        elif isinstance(update, GenerationFinished):
            answer.reason = update.reason
    answer.streamed += detokenizer.finish()
    await sequence.close()
    return answer


def question(tokenizer: Tokenizer, directory: Path) -> list[int]:
    template = ChatTemplate.from_directory(directory, tokenizer)
    return template.render([Message("user", "What is 2+2?")])


@pytest.mark.parametrize(
    ("reply", "expected"), [("The capital is ", [41, 37, 38]), ("The capital is", [7042, 30, 2])]
)
async def test_a_continued_message_goes_on_behind_its_last_space(
    engine: Engine,
    tokenizer: Tokenizer,
    default_model_dir: Path,
    reply: str,
    expected: list[int],
) -> None:
    """TK-016."""
    template = ChatTemplate.from_directory(default_model_dir, tokenizer)
    user = Message("user", "Capital of France?")
    messages = [Message("system", "S"), user, Message("assistant", reply)]
    prompt = template.render(messages, continue_final=True)

    answer = await answer_to(engine, tokenizer, prompt, SamplingParams(max_tokens=3))

    assert expected == answer.token_ids


@pytest.mark.parametrize(("max_tokens", "text"), [(7, "👎👎\ufffd"), (6, "👎👎")])
async def test_an_answer_cut_inside_a_character_streams_what_the_whole_decodes_to(
    engine: Engine, tokenizer: Tokenizer, max_tokens: int, text: str
) -> None:
    """TK-025."""
    prompt = tokenizer.encode_completion("👍" * 8)
    assert len(prompt) == 24

    answer = await answer_to(engine, tokenizer, prompt, SamplingParams(max_tokens=max_tokens))

    assert [10813, 235, 232, 10813, 235, 232, 10813][:max_tokens] == answer.token_ids
    assert text == answer.streamed == tokenizer.decode(answer.token_ids)
    assert "length" == answer.reason


async def test_nothing_behind_a_stop_string_is_streamed(
    engine: Engine, tokenizer: Tokenizer
) -> None:
    """TK-031."""
    prompt = tokenizer.encode_completion("Here is the English alphabet: A B C D")
    params = SamplingParams(max_tokens=16)

    free = await answer_to(engine, tokenizer, prompt, params)
    stopped = await answer_to(engine, tokenizer, prompt, params, [" H I"])

    assert " E F G H I J K L M N O P Q R S T" == free.streamed
    assert (" E F G", "stop") == (stopped.streamed, stopped.reason)


async def test_a_stop_string_of_the_prompt_does_not_stop_the_answer(
    engine: Engine, tokenizer: Tokenizer
) -> None:
    """TK-034."""
    prompt = tokenizer.encode_completion("1, 2, 3, 4, 5,")

    answer = await answer_to(engine, tokenizer, prompt, SamplingParams(max_tokens=16), ["3,"])

    assert " 6, 7, 8, 9, 10," == answer.streamed


async def test_samples_with_seeds_of_their_own_differ_and_repeat(
    engine: Engine, tokenizer: Tokenizer
) -> None:
    """TK-045: the runtime gives each of n samples a seed derived from the request's."""
    prompt = tokenizer.encode_completion("Once upon a time")

    async def three() -> list[list[int]]:
        found: list[list[int]] = [[], [], []]

        async def one(place: int) -> None:
            seed = derived_seed(7, str(place))
            params = SamplingParams(max_tokens=16, temperature=1.0, seed=seed)
            found[place] = (await answer_to(engine, tokenizer, prompt, params)).token_ids

        async with anyio.create_task_group() as tasks:
            for place in range(3):
                tasks.start_soon(one, place)
        return found

    first = await three()

    assert 3 == len(set(map(tuple, first)))
    assert first == await three()


async def test_an_ignored_end_is_no_text_and_stops_nothing(
    engine: Engine, tokenizer: Tokenizer, default_model_dir: Path
) -> None:
    """TK-050."""
    prompt = question(tokenizer, default_model_dir)
    params = SamplingParams(max_tokens=32, ignore_eos=True)

    stopped = await answer_to(engine, tokenizer, prompt, params, ["4."])
    free = await answer_to(engine, tokenizer, prompt, params)

    expected = "The answer to this classic math problem is "
    assert (expected, "stop") == (stopped.streamed, stopped.reason)
    assert (32, "length") == (len(free.token_ids), free.reason)
    assert 2 in free.token_ids
    assert "<|" not in free.streamed


async def test_a_banned_token_gives_way_to_the_next_best(
    engine: Engine, tokenizer: Tokenizer
) -> None:
    """TK-051."""
    prompt = tokenizer.encode_completion("The capital of France is")
    params = SamplingParams(max_tokens=8, logit_bias={7042: -100})

    answer = await answer_to(engine, tokenizer, prompt, params)

    assert [260, 3575, 282, 260, 3432, 5261, 30, 198] == answer.token_ids
