"""What was said in a conversation, so that any model can be told of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from flowforge.language.remote_models import REMOTE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowforge.backends.protocol import Conversation, GenerationDone, JsonValue, ToolOffer


@dataclass(frozen=True, slots=True)
class SaidText:
    """A turn whose text was given."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class SaidResults:
    """The results of the calls of the turn before."""

    results: tuple[JsonValue, ...]


@dataclass(frozen=True, slots=True)
class WrittenBy:
    """A turn that a model wrote. model: which; None where an earlier process had it."""

    done: GenerationDone
    prefill: str
    offer: ToolOffer | None
    model: str | None


SaidTurn: TypeAlias = SaidText | SaidResults | WrittenBy


def tell(conversation: Conversation, turns: Iterable[SaidTurn], model: str) -> None:
    """Say turns on a conversation with a model, which need not have written them.

    A model of this process that did not write a turn is told of it as text, of its calls, too: its
    own tokens for them are not known.
    """
    calls_as_text = False
    for turn in turns:
        match turn:
            case SaidText("user", text):
                conversation.add_user(text)
            case SaidText(_, text):
                conversation.add_assistant(text)
            case SaidResults(results) if calls_as_text:
                conversation.add_user(json.dumps({"results": [*results]}, ensure_ascii=False))
            case SaidResults(results):
                conversation.add_results(results)
            case WrittenBy(done, prefill, offer, by):
                # Servers go on from texts, whoever wrote them.
                calls_as_text = by != model and not model.startswith(REMOTE)
                if calls_as_text:
                    conversation.add_assistant(text_of(done))
                else:
                    conversation.add_written(done, prefill, offer)


def text_of(done: GenerationDone) -> str:
    """An answer as one text, its calls included."""
    calls = (
        json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
        for call in done.calls
    )
    return "\n".join(part for part in (done.text, *calls) if part)


def num_chars_of(turns: Iterable[SaidTurn]) -> int:
    """How long a prompt of these turns is, in characters."""
    return sum(len(_shown(turn)) for turn in turns)


def _shown(turn: SaidTurn) -> str:
    match turn:
        case SaidText(_, text):
            return text
        case SaidResults(results):
            return json.dumps([*results], ensure_ascii=False)
        case WrittenBy(done):
            return text_of(done)
