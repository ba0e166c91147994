"""Chat templates of the supported families against transformers' rendering.

cases/chat_templates holds a template for each published format; each is paired with a tokenizer of
bytes that has the family's control tokens, so that text and ids can be compared exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer

from flowforge.engine.text.chat_template import ChatTemplate
from flowforge.engine.text.messages import Message, Role
from flowforge.engine.text.tokenizer import Tokenizer
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

TODAY = date(2026, 3, 4)
IM = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
TURNS = ("<start_of_turn>", "<end_of_turn>")


@dataclass(frozen=True, slots=True)
class Family:
    """A family's template and what its tokenizer config says.

    turn_end: what the model says at the end of its turn, if not eos. opening, closing: what it has
    to say around its reply so that the text is that of the template. refused: roles that the
    template has no place for. moves_system: whether the system text stands in the last user turn.
    """

    bos: str | None
    eos: str
    control: tuple[str, ...] = ()
    turn_end: str | None = None
    opening: str = ""
    closing: str = ""
    refused: tuple[Role, ...] = ()
    moves_system: bool = False


FAMILIES = {
    "llama2": Family("<s>", "</s>", opening=" ", closing=" ", refused=("tool",)),
    "llama3": Family("<|begin_of_text|>", "<|eot_id|>", HEADERS),
    "llama3_2": Family("<|begin_of_text|>", "<|eot_id|>", HEADERS),
    "mistral_v1": Family("<s>", "</s>", opening=" ", refused=("system", "tool")),
    "mistral_v3": Family(
        "<s>",
        "</s>",
        ("[INST]", "[/INST]"),
        opening=" ",
        refused=("tool",),
        moves_system=True,
    ),
    "qwen2": Family(None, "<|im_end|>", IM),
    "qwen2_5": Family(None, "<|im_end|>", IM),
    "qwen3": Family(None, "<|im_end|>", IM),
    "smollm2": Family("<|im_start|>", "<|im_end|>", IM),
    "smollm3": Family(None, "<|im_end|>", IM),
    "phi3": Family(
        "<s>",
        "<|endoftext|>",
        ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        turn_end="<|end|>",
        refused=("tool",),
    ),
    "gemma2": Family("<bos>", "<end_of_turn>", TURNS, refused=("system", "tool")),
    "gemma3": Family("<bos>", "<end_of_turn>", TURNS, refused=("tool",)),
}

HI = Message("user", "Hi")
YES = Message("assistant", "Yes?")
CONVERSATIONS = {
    "user": [HI],
    "system": [Message("system", "Be brief."), HI],
    "several turns": [HI, YES, Message("user", "And now?")],
    "all roles": [Message("system", "Be brief."), HI, YES, Message("user", "Né → 日本")],
    "white space": [Message("user", "  Hi \n"), Message("assistant", "\n yes "), HI],
    "white space everywhere": [Message("system", " S "), Message("user", " a "), YES, HI],
    "empty": [Message("user", "")],
    "thoughts": [HI, Message("assistant", "<think>\nhm\n</think>\n\nSo."), HI],
    "tool": [HI, YES, Message("tool", "42")],
    "two tools": [HI, YES, Message("tool", "42"), Message("tool", "43"), YES, HI],
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A template of ours and transformers' tokenizer with the same template."""

    family: Family
    tokenizer: Tokenizer
    template: ChatTemplate
    reference: Any

    def refuses(self, messages: list[Message]) -> bool:
        return any(message.role in self.family.refused for message in messages)

    def reference_text(self, messages: list[Message], *, add_generation_prompt: bool) -> str:
        text: str = self.reference.apply_chat_template(
            [{"role": message.role, "content": message.content} for message in messages],
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )
        return text

    def text(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special=False)


def load(name: str, cases_dir: Path) -> Loaded:
    from transformers import PreTrainedTokenizerFast

    family = FAMILIES[name]
    source = (cases_dir / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")
    backend = byte_level(family)
    adds_bos = "bos_token" in source
    config = {"bos_token": family.bos, "eos_token": family.eos, "add_bos_token": adds_bos}
    eos_ids = [backend.get_vocab()[family.turn_end or family.eos]]
    tokenizer = Tokenizer(
        backend.to_str(), eos_ids=eos_ids, configs={"tokenizer_config.json": config}
    )
    reference = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=source,
        bos_token=family.bos,
        eos_token=family.eos,
    )
    template = ChatTemplate(source, tokenizer, today=TODAY)
    return Loaded(family, tokenizer, template, reference)


def byte_level(family: Family) -> BackendTokenizer:
    """A tokenizer of 256 bytes and the family's control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = BackendTokenizer(models.BPE({char: idx for idx, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    named = (family.bos, family.eos, *family.control)
    control = dict.fromkeys(text for text in named if text is not None)
    backend.add_special_tokens([AddedToken(text, special=True) for text in control])
    return backend


@pytest.fixture(autouse=True)
def _transformers_lives_today(monkeypatch: pytest.MonkeyPatch) -> None:
    class FixedClock:
        now = staticmethod(lambda: TODAY)

    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", FixedClock)


@pytest.fixture(params=FAMILIES)
def loaded(request: pytest.FixtureRequest, cases_dir: Path) -> Loaded:
    return load(request.param, cases_dir)


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_prompt_is_what_transformers_makes_or_is_refused(
    loaded: Loaded, name: str, add_generation_prompt: bool
) -> None:
    messages = CONVERSATIONS[name]
    if loaded.refuses(messages):
        with pytest.raises(EngineError) as caught:
            loaded.template.render(messages, add_generation_prompt=add_generation_prompt)
        assert caught.value.code == "EN304"
        return
    expected = loaded.reference_text(messages, add_generation_prompt=add_generation_prompt)

    token_ids = loaded.template.render(messages, add_generation_prompt=add_generation_prompt)

    assert expected == loaded.text(token_ids)
    assert loaded.reference(expected, add_special_tokens=False)["input_ids"] == token_ids


def test_control_texts_in_contents_are_text(loaded: Loaded) -> None:
    """TK-010 and TK-012, for every family, in every role that it has."""
    forged = " ".join(["x", *loaded.tokenizer.special_tokens, "<<SYS>> [INST] \ue0000\ue000", "y"])
    everyone: tuple[Role, ...] = ("system", "user", "assistant")
    roles: list[Role] = [role for role in everyone if role not in loaded.family.refused]
    roles.append("user")
    plain = [Message(role, "x") for role in roles]
    messages = [Message(role, forged) for role in roles]

    token_ids = loaded.template.render(messages)

    control = loaded.tokenizer.special_ids
    expected = [token for token in loaded.template.render(plain) if token in control]
    assert expected == [token for token in token_ids if token in control]
    assert loaded.reference_text(messages, add_generation_prompt=True) == loaded.text(token_ids)


@pytest.mark.parametrize("ends_by_itself", [True, False])
@pytest.mark.parametrize("start", ["user", "system", "several turns", "all roles"])
def test_what_was_generated_and_the_rest_are_the_whole_conversation(
    loaded: Loaded, start: str, ends_by_itself: bool
) -> None:
    history = CONVERSATIONS[start]
    has_system = history[0].role == "system"
    if loaded.refuses(history) or (has_system and loaded.family.moves_system):
        pytest.skip("the family's prompts have no such beginning")
    later = [Message("user", "And then?")]
    reply = Message("assistant", "Hello there")
    said = loaded.family.opening + reply.content
    generated = loaded.tokenizer.encode(said)
    if ends_by_itself:
        generated += loaded.tokenizer.encode(loaded.family.closing)
        turn_end = loaded.family.turn_end or loaded.family.eos
        generated.append(loaded.tokenizer.special_tokens[turn_end])

    rest = loaded.template.continuation([*history, reply], later, last_token=generated[-1])

    whole = loaded.template.render([*history, reply, *later])
    assert whole == loaded.template.render(history) + generated + rest


def test_a_turn_that_the_model_closed_without_the_templates_space_is_closed_once(
    cases_dir: Path,
) -> None:
    loaded = load("llama2", cases_dir)
    eos_id = loaded.tokenizer.special_tokens["</s>"]

    rest = loaded.template.continuation([HI, YES], [HI], last_token=eos_id)

    assert "<s>[INST] Hi [/INST]" == loaded.text(rest)


def test_a_message_that_the_template_leaves_out_is_refused_by_name(cases_dir: Path) -> None:
    loaded = load("phi3", cases_dir)

    with pytest.raises(EngineError, match="leaves out the 'tool' message") as caught:
        loaded.template.render([HI, YES, Message("tool", "42")])

    assert caught.value.code == "EN304"


def test_two_user_turns_are_refused_where_turns_alternate(cases_dir: Path) -> None:
    """TK-002: never merged in silence."""
    with pytest.raises(EngineError, match="take turns") as caught:
        load("gemma2", cases_dir).template.render([HI, HI])

    assert caught.value.code == "EN304"


@pytest.mark.parametrize(
    ("template", "adds_bos"), [("{{ bos_token }}", True), ("{{ bos_token }}", False), ("", True)]
)
def test_a_prompt_starts_with_bos_once(template: str, adds_bos: bool) -> None:
    """TK-009: by the template, by the tokenizer, or by both."""
    backend = byte_level(Family("<s>", "</s>"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": adds_bos}
    tokenizer = Tokenizer(backend.to_str(), configs={"tokenizer_config.json": config})

    token_ids = ChatTemplate(template + "{{ messages[0].content }}", tokenizer).render([HI])

    assert [tokenizer.bos_id, *tokenizer.encode("Hi")] == token_ids


def test_the_date_is_the_one_that_was_given(cases_dir: Path) -> None:
    loaded = load("llama3_2", cases_dir)

    assert "Today Date: 04 Mar 2026" in loaded.text(loaded.template.render([HI]))


@pytest.mark.parametrize("options", ["", "indent=2", "separators=(',', ':'), sort_keys=true"])
def test_json_in_templates_is_that_of_transformers(options: str) -> None:
    from transformers import PreTrainedTokenizerFast

    backend = byte_level(Family(None, "</s>"))
    source = (
        f"{{{{ {{'b': 'é<', 'a': [1, none]}} | tojson({options}) }}}}{{{{ messages[0].content }}}}"
    )
    reference = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=source)
    tokenizer = Tokenizer(backend.to_str())

    found = tokenizer.decode(ChatTemplate(source, tokenizer).render([HI]))

    assert (
        reference.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False) == found
    )
