"""What clients send, as the OpenAI API has it; fields that are not here are passed over.

Beside them are extensions that vLLM made common: top_k, min_p, repetition_penalty, min_tokens,
ignore_eos, cache_salt, structured_outputs and the older guided_…, continue_final_message.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

_MOST_LOGPROBS = 20
_TOKENS_OF_COMPLETIONS = 16

Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


WRONG_TOGETHER = "wrong_together"
"""The type of a problem of several fields; the context of such an error names one as `field`."""


def _wrong(field: str, problem: str) -> PydanticCustomError:
    return PydanticCustomError(WRONG_TOGETHER, "{problem}", {"field": field, "problem": problem})


class _Body(BaseModel):
    # What stands below a field is its description in the OpenAPI document.
    model_config = ConfigDict(extra="ignore", strict=True, use_attribute_docstrings=True)


class FunctionSpec(_Body):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=64, pattern="^[a-zA-Z0-9_.-]+$")
    """Letters, digits, `_`, `.` and `-`."""
    description: str | None = None
    """What it is for; the model reads it."""
    parameters: dict[str, Any] | None = None
    """JSON Schema of its arguments."""
    strict: bool | None = None
    """Refuse a schema with keywords that arguments cannot be held to."""


class ToolSpec(_Body):
    """A tool that the model may call."""

    type: Literal["function"]
    """The only kind that there is."""
    function: FunctionSpec
    """What the model is told of it."""


class FunctionName(_Body):
    """A function by its name."""

    name: str
    """As one of `tools` says it."""


class NamedChoice(_Body):
    """The tool that the model must call."""

    type: Literal["function"]
    """The only kind that there is."""
    function: FunctionName
    """The one that is called."""


class CalledFunction(_Body):
    """What an earlier answer called. arguments: JSON text."""

    name: str
    """Of one of `tools`."""
    arguments: str
    """JSON text."""


class Call(_Body):
    """A call of an earlier answer."""

    id: str
    """By which a tool's message answers it."""
    type: Literal["function"] = "function"
    """The only kind that there is."""
    function: CalledFunction
    """What was called."""


class Part(_Body):
    """A part of a message. Only text and refusals can be read here."""

    type: str
    """`text` or `refusal`."""
    text: str | None = None
    """Of a part that is `text`."""
    refusal: str | None = None
    """Of a part that is `refusal`."""


class ChatMessage(_Body):
    """One message. tool_call_id: which call a tool's message answers."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """`developer` is `system`."""
    content: str | list[Part] | None = None
    """A text, or parts of text."""
    name: str | None = None
    """Who says it; told by chat templates that have names."""
    refusal: str | None = None
    """What an assistant said in place of an answer."""
    tool_calls: list[Call] | None = None
    """What an assistant's message called."""
    tool_call_id: str | None = None
    """Which call a tool's message answers."""


class SchemaSpec(_Body):
    """A JSON Schema by name. strict: nothing of it may be left to chance."""

    model_config = ConfigDict(extra="ignore", strict=True, populate_by_name=True)

    name: str = Field(min_length=1, max_length=64, pattern="^[a-zA-Z0-9_-]+$")
    """For the client's own use."""
    description: str | None = None
    """For the client's own use."""
    json_schema: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    """The schema."""
    strict: bool | None = None
    """Refuse keywords that the answer cannot be held to; without it they are passed over."""


class ResponseFormat(_Body):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    """Any text, any JSON object, or JSON of a schema."""
    json_schema: SchemaSpec | None = None
    """With `json_schema` as the type."""

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema is missing")
        return self


class StructuredOutputs(_Body):
    """vLLM's way to say a form; one of them."""

    model_config = ConfigDict(extra="ignore", strict=True, populate_by_name=True)

    json_: dict[str, Any] | str | bool | None = Field(default=None, alias="json")
    """A JSON Schema, or its text."""
    regex: str | None = None
    """A regular expression for the whole answer."""
    choice: list[str] | None = Field(default=None, min_length=1)
    """Texts of which one is the answer."""
    grammar: str | None = None
    """A Lark grammar."""
    json_object: bool | None = None
    """Any JSON object."""


class StreamOptions(_Body):
    """include_usage: the last chunk before the end tells what all cost."""

    include_usage: bool | None = None
    """The last chunk before the end tells what all cost."""


class SamplingFields(_Body):
    """What chats and completions share."""

    model: str = Field(min_length=1)
    """Which model answers, by one of its names."""
    n: int | None = Field(default=None, ge=1, le=128)
    """Answers to one prompt, which is computed once."""
    stream: bool | None = None
    """Send the answer as events, while it is written."""
    stream_options: StreamOptions | None = None
    """Of a stream."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """0 always takes the likeliest token; 1 without it."""
    top_p: float | None = Field(default=None, ge=0, le=1)
    """Of the likeliest tokens, those that come to this probability."""
    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    """The likeliest tokens; 0 and -1 are all."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Tokens with at least this share of the likeliest one's probability."""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Subtracted from the logits of tokens that the answer has."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """The same, for each time that it has them."""
    repetition_penalty: float | None = Field(default=None, gt=0, le=100)
    """For all tokens of prompt and answer: above 1 makes them rarer."""
    logit_bias: dict[str, float] | None = None
    """Added to the logits of token ids."""
    seed: int | None = Field(default=None, ge=-(2**63), le=2**64 - 1)
    """The same seed gives the same answer, whatever else is asked."""
    stop: str | list[str] | None = None
    """Texts that end the answer, and are no part of it; at most 64."""
    min_tokens: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Before which the answer cannot end."""
    ignore_eos: bool | None = None
    """Go on behind the end, to the limit of tokens."""
    cache_salt: str | None = None
    """Parts the prefix cache of one key further."""
    user: str | None = None
    """Passed over."""
    structured_outputs: StructuredOutputs | None = None
    """The form of the answer, as vLLM says it."""
    guided_json: dict[str, Any] | str | bool | None = None
    """The older `structured_outputs.json`."""
    guided_regex: str | None = None
    """The older `structured_outputs.regex`."""
    guided_choice: list[str] | None = Field(default=None, min_length=1)
    """The older `structured_outputs.choice`."""
    guided_grammar: str | None = None
    """The older `structured_outputs.grammar`."""

    @model_validator(mode="after")
    def _has_stops(self) -> SamplingFields:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if any(not stop for stop in stops):
            raise _wrong("stop", "a stop sequence is empty, expected at least one character")
        if len(stops) > 64:
            raise _wrong("stop", f"{len(stops)} sequences, expected at most 64")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end the text."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class ChatRequest(SamplingFields):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1)
    """The conversation; the last message is what is answered."""
    max_tokens: Count | None = None
    """Of the answer, at most."""
    max_completion_tokens: Count | None = None
    """Of the answer, at most; goes before `max_tokens`. Without both, to the end of the context."""
    logprobs: bool | None = None
    """Tell the log probability of each token."""
    top_logprobs: int | None = Field(default=None, ge=0, le=_MOST_LOGPROBS)
    """And of so many of the likeliest at its place."""
    response_format: ResponseFormat | None = None
    """The form of the answer."""
    tools: list[ToolSpec] | None = Field(default=None, max_length=128)
    """What the model may call."""
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    """Whether it may call, must, or what."""
    parallel_tool_calls: bool | None = None
    """False: at most one call."""
    continue_final_message: bool | None = None
    """Go on with the last message instead of answering it."""

    @property
    def strict_tools(self) -> frozenset[str]:
        """The names of tools whose calls must be held to their whole schemas."""
        return frozenset(tool.function.name for tool in self.tools or () if tool.function.strict)

    @model_validator(mode="after")
    def _fits_together(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise _wrong("top_logprobs", "needs 'logprobs': true")
        choice = self.tool_choice
        if choice not in (None, "none", "auto") and not self.tools:
            raise _wrong("tool_choice", "needs 'tools'")
        names = [tool.function.name for tool in self.tools or ()]
        if isinstance(choice, NamedChoice) and choice.function.name not in names:
            name = choice.function.name
            raise _wrong("tool_choice", f"names {name!r}, which is none of the tools")
        return self


class CompletionRequest(SamplingFields):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    """One or several, each a text or token ids."""
    max_tokens: int | None = Field(default=_TOKENS_OF_COMPLETIONS, ge=0, le=2**31 - 1)
    """Of each text, at most; 0 only with `echo`."""
    best_of: int | None = Field(default=None, ge=1, le=128)
    """As many as `n`."""
    echo: bool | None = None
    """Give the prompt back in front of the text."""
    logprobs: int | None = Field(default=None, ge=0, le=_MOST_LOGPROBS)
    """Log probabilities of each token, with so many of the likeliest."""
    suffix: str | None = None
    """Not supported."""

    @field_validator("max_tokens")
    @classmethod
    def _or_sixteen(cls, most: int | None) -> int:
        return _TOKENS_OF_COMPLETIONS if most is None else most

    @model_validator(mode="after")
    def _fits_together(self) -> CompletionRequest:
        if self.suffix:
            raise _wrong("suffix", "not supported: the model has no way to fill in")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise _wrong("best_of", "must be n: every text that is written is given back")
        if self.max_tokens == 0 and not self.echo:
            raise _wrong("max_tokens", "must be at least 1, or 0 with 'echo': true")
        if not self.prompt or [] in self.prompts:
            raise _wrong("prompt", "empty, expected text or token ids")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or several, each a text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [one for one in self.prompt if isinstance(one, int)]
        return [ids] if ids else [one for one in self.prompt if not isinstance(one, int)]


class TokenizeRequest(_Body):
    """POST /tokenize. One of prompt and messages."""

    model: str | None = None
    """One of the server's names, if any."""
    prompt: str | None = None
    """A text."""
    messages: list[ChatMessage] | None = Field(default=None, min_length=1)
    """Or a chat, as its prompt."""
    tools: list[ToolSpec] | None = None
    """Of the chat."""
    add_special_tokens: bool = True
    """Begin as the model's texts begin."""
    return_token_strs: bool = False
    """Give each token's text, too."""

    @model_validator(mode="after")
    def _has_one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give one of 'prompt' and 'messages'")
        return self


class DetokenizeRequest(_Body):
    """POST /detokenize."""

    model: str | None = None
    """One of the server's names, if any."""
    tokens: list[int]
    """Token ids."""


class RunRequest(_Body):
    """POST /v1/workflows/NAME/runs."""

    inputs: dict[str, Any] = {}
    """Of the workflow, by their names."""
    seed: int | None = Field(default=None, ge=0, le=2**63 - 1)
    """For everything random; without it one is drawn."""


class AnswerRequest(_Body):
    """POST /v1/runs/ID/answers: what a person says to the question of a step."""

    path: str = Field(min_length=1)
    """The step that asks."""
    text: str
    """What is said to it."""
