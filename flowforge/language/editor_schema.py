"""The workflow file as a JSON Schema, for editors: completion, hints and first errors.

What a schema cannot say (names in scope, types, cycles) stays with `flowforge check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from flowforge.language.checker import KEYS, LANGUAGE_VERSION
from flowforge.language.common_keys import COMMON_KEYS
from flowforge.language.editor_answers import ANSWER_DEFINITIONS, GRAMMAR
from flowforge.language.editor_words import integer, named, ref, strings, words
from flowforge.language.remote_models import MODEL_KEYS, Dialect
from flowforge.language.schema_nodes import (
    LISTS_OF_SCHEMAS,
    MAPS_OF_SCHEMAS,
    SCHEMA_TYPES,
    SCHEMAS,
)
from flowforge.language.steps import VERBS
from flowforge.language.types import TYPE_WORDS

if TYPE_CHECKING:
    from flowforge.language.editor_words import Schema
    from flowforge.language.program import JsonValue

_NAME = r"^[^\W\d][\w-]*$"
_DURATION = r"^\s*([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+\s*$"


def editor_schema() -> dict[str, JsonValue]:
    """A JSON Schema (2020-12) that every workflow satisfies which `check` accepts."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "FlowForge workflow",
        "type": "object",
        "required": ["flowforge", "name", "steps"],
        "additionalProperties": False,
        "properties": {key: _TOP_KEYS[key] for key in KEYS},
        "$defs": {
            **_DEFINITIONS,
            "step": {
                "type": "object",
                "oneOf": [{"$ref": f"#/$defs/{verb}"} for verb in VERBS],
            },
            **{verb: _step_schema(verb) for verb in VERBS},
        },
    }


def _step_schema(verb: str) -> Schema:
    keys = (*VERBS[verb].keys, *COMMON_KEYS)
    properties: Schema = {key: _STEP_KEYS[key] for key in keys}
    required: list[JsonValue] = [verb, *_REQUIRED.get(verb, ())]
    return {
        "title": f"{verb} step",
        "description": _VERB_SUMMARIES[verb],
        "type": "object",
        "required": required,
        "additionalProperties": False,
        "properties": properties,
    }


_VALUE: Schema = {"$ref": "#/$defs/value"}
_STEP: Schema = {"$ref": "#/$defs/step"}
_VERB_SUMMARIES = {
    "gen": "The model writes.",
    "call": "The orchestrator runs a tool.",
    "for": "A block once per item of a list; results in item order.",
    "loop": "A block again and again, with named values carried from round to round.",
    "if": "One of two blocks.",
    "switch": "The block for a value.",
    "parallel": "Named branches at once.",
    "run": "Another workflow as one step.",
    "ask": "A person answers.",
    "set": "A value, computed.",
}
_REQUIRED: dict[str, tuple[str, ...]] = {
    "for": ("do",),
    "loop": ("max", "do", "next"),
    "if": ("then",),
    "switch": ("cases",),
}
_TOP_KEYS: dict[str, Schema] = {
    "flowforge": {"const": LANGUAGE_VERSION, "description": "The version of the language."},
    "name": {"type": ["string", "number"], "description": "The name of the workflow."},
    "types": named({"$ref": "#/$defs/schema"}, "JSON Schemas by name."),
    "inputs": named({"$ref": "#/$defs/input"}, "Values that the caller gives."),
    "secrets": strings("Variables of the environment that calls and servers may be given."),
    "tools": named({"$ref": "#/$defs/tool"}, "Tools that steps may call."),
    "models": named({"$ref": "#/$defs/model"}, "Models of other servers, for remote/NAME."),
    "defaults": {
        "type": "object",
        "additionalProperties": False,
        "description": "What holds for every step that does not say it itself.",
        "properties": {
            "gen": {"type": "object"},
            "retry": {"$ref": "#/$defs/retry"},
            "timeout": {"$ref": "#/$defs/duration"},
            "model": {"type": "string"},
        },
    },
    "steps": ref("steps", "The steps, by name; they start as soon as what they use is there."),
    "outputs": named(_VALUE, "The results, by name."),
}
_STEP_KEYS: dict[str, Schema] = {
    "gen": ref("gen_options", "Options of the answer; nothing at all means free text."),
    "from": {"type": "string", "description": "The step whose conversation is continued."},
    "system": ref("text", "The system prompt of a new conversation."),
    "user": ref("text", "What is said to the model."),
    "turns": {
        "description": "What is said before: a list of turns, or an expression that gives one.",
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"$ref": "#/$defs/turn"}},
        ],
    },
    "prefill": ref("text", "How the answer begins."),
    "model": {"type": "string", "description": "The model that writes."},
    "tags": strings("Words by which a route may tell steps apart."),
    "call": {"type": "string", "description": "The name of the tool."},
    "with": named(_VALUE, "Arguments by name."),
    "for": {"type": "string", "description": "VARIABLE in LIST"},
    "limit": integer(1, "How many items run at a time."),
    "join": ref("join", "How the branches' values become one."),
    "do": ref("steps", "The steps to repeat."),
    "yield": {"$ref": "#/$defs/value", "description": "What the block's value is."},
    "loop": named(_VALUE, "The carried values before the first round."),
    "until": ref("condition", "Asked after a round: true ends the loop."),
    "while": ref("condition", "Asked before a round: false ends the loop."),
    "max": integer(1, "How many rounds there are at most."),
    "on_max": words("What follows when 'max' rounds were not enough.", "keep", "fail"),
    "next": named(_VALUE, "The carried values after a round."),
    "if": ref("condition", "The condition."),
    "then": ref("block", "What runs when the condition holds."),
    "else": ref("block", "What runs when it does not."),
    "switch": ref("condition", "The value that decides."),
    "cases": named({"$ref": "#/$defs/block"}, "Blocks by value."),
    "default": ref("block", "What runs for every other value."),
    "parallel": {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {"anyOf": [_STEP, {"$ref": "#/$defs/explicit_block"}]},
        "description": "Branches by name.",
    },
    "run": {"type": "string", "description": "The workflow's file, relative to this one."},
    "ask": ref("text", "The question."),
    "choices": strings("The answers that are allowed."),
    "show": {"$ref": "#/$defs/value", "description": "A value to show with the question."},
    "on_timeout": ref("text", "The answer after 'timeout' without one."),
    "set": {"$ref": "#/$defs/value", "description": "The value."},
    "when": ref("condition", "False skips the step, whose value is then null."),
    "after": {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "Steps that come first although nothing of theirs is used.",
    },
    "timeout": ref("duration", "How long one try may take."),
    "retry": ref("retry", "How often the step is tried, and how long it waits."),
    "catch": ref("catch", "What the value is when the step has failed."),
    "finally": ref("block", "What runs once the step is over, however it ended."),
    "priority": {"type": "integer", "description": "Higher goes first."},
    "cache": {
        "anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/duration"}],
        "description": "Whether, or for how long, the result of an equal step is taken instead.",
    },
}
_TYPE_WORD: Schema = {"type": "string", "examples": [*TYPE_WORDS]}
_SCHEMA_TYPE: Schema = {"enum": [*SCHEMA_TYPES]}
_INNER: Schema = {"$ref": "#/$defs/inner_schema"}
_SCHEMA_PARTS: Schema = {
    **dict.fromkeys(SCHEMAS, _INNER),
    **{key: {"type": "object", "additionalProperties": _INNER} for key in MAPS_OF_SCHEMAS},
    **{key: {"type": "array", "items": _INNER} for key in LISTS_OF_SCHEMAS},
}
_DEFINITIONS: Schema = {
    "value": {"description": "Any value; texts in it may hold ${ … }."},
    "text": {"type": ["string", "number", "boolean"]},
    "condition": {"type": ["string", "boolean"]},
    "duration": {"type": "string", "pattern": _DURATION},
    "type": {"anyOf": [_TYPE_WORD, {"$ref": "#/$defs/schema"}]},
    "input": {
        "anyOf": [
            _TYPE_WORD,
            {
                "type": "object",
                "properties": {
                    **_SCHEMA_PARTS,
                    "type": {"anyOf": [_TYPE_WORD, {"type": "array", "items": _SCHEMA_TYPE}]},
                },
            },
        ]
    },
    "schema": {
        "description": "A JSON Schema.",
        "type": "object",
        "properties": {
            "type": {"anyOf": [_SCHEMA_TYPE, {"type": "array", "items": _SCHEMA_TYPE}]},
            **_SCHEMA_PARTS,
        },
    },
    "inner_schema": {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/schema"}]},
    "steps": {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": _NAME},
        "additionalProperties": _STEP,
    },
    "explicit_block": {
        "type": "object",
        "required": ["do"],
        "additionalProperties": False,
        "properties": {"do": {"$ref": "#/$defs/steps"}, "yield": _VALUE},
    },
    "block": {
        "if": {"type": "object", "required": ["do"]},
        "then": {"$ref": "#/$defs/explicit_block"},
        "else": {"$ref": "#/$defs/steps"},
    },
    **ANSWER_DEFINITIONS,
    "best": {
        "type": "object",
        "required": ["best"],
        "additionalProperties": False,
        "properties": {"best": {"type": "string"}},
    },
    "join": {
        "anyOf": [
            {"enum": ["all", "settle", "first", "vote"]},
            {
                "type": "object",
                "required": ["quorum"],
                "additionalProperties": False,
                "properties": {"quorum": integer(1, "How many have to succeed.")},
            },
            {"$ref": "#/$defs/best"},
        ],
    },
    "retry": {
        "anyOf": [
            integer(1, "How many tries there are in all."),
            {
                "type": "object",
                "required": ["attempts"],
                "additionalProperties": False,
                "properties": {
                    "attempts": integer(1, "How many tries there are in all."),
                    "backoff": ref("duration", "The wait before the second try."),
                    "factor": {
                        "type": "number",
                        "minimum": 1,
                        "description": "How many times as long the next wait is.",
                    },
                    "max": ref("duration", "The longest wait."),
                    "jitter": words(
                        "Whether a wait is drawn from none up to its length, or is that.",
                        "full",
                        "none",
                    ),
                },
            },
        ],
    },
    "catch": {
        "type": "object",
        "additionalProperties": False,
        "oneOf": [{"required": ["do"]}, {"required": ["else"]}],
        "properties": {
            "as": {"type": "string", "description": "The name of the error; 'error' without it."},
            "codes": strings("Only errors whose code begins with one of these."),
            "do": ref("steps", "The steps that run then."),
            "yield": ref("value", "What the value of those steps is."),
            "else": ref("value", "The value in place of steps."),
        },
    },
    "model": {
        "type": "object",
        "required": ["url"],
        "additionalProperties": False,
        "properties": {
            "url": {
                "type": "string",
                "pattern": "^https?://",
                "description": MODEL_KEYS["url"],
            },
            "model": {"type": "string", "description": MODEL_KEYS["model"]},
            "dialect": words(MODEL_KEYS["dialect"], *get_args(Dialect)),
            "api_key": {"type": "string", "description": MODEL_KEYS["api_key"]},
            "tokenizer": {"type": "string", "description": MODEL_KEYS["tokenizer"]},
            "context": integer(1, MODEL_KEYS["context"]),
            "timeout": ref("duration", MODEL_KEYS["timeout"]),
            "attempts": integer(1, MODEL_KEYS["attempts"]),
            "max_wait": ref("duration", MODEL_KEYS["max_wait"]),
            "concurrency": integer(1, MODEL_KEYS["concurrency"]),
        },
    },
    "tool": {
        "type": "object",
        "oneOf": [{"required": ["python"]}, {"required": ["mcp"]}, {"required": ["workflow"]}],
        "additionalProperties": False,
        "properties": {
            "python": {"type": "string", "description": "module:function"},
            "mcp": {
                "type": "object",
                "oneOf": [{"required": ["command"]}, {"required": ["url"]}],
                "additionalProperties": False,
                "description": "A server that speaks the Model Context Protocol.",
                "properties": {
                    "command": strings("A program and its arguments."),
                    "url": {"type": "string", "pattern": "^https?://"},
                    "env": {
                        "anyOf": [
                            strings("Variables of the environment that the program gets."),
                            named({"type": "string"}, "Others, with their values."),
                        ]
                    },
                    "token_env": {"type": "string", "description": "Holds the bearer token."},
                    "headers": named({"type": "string"}, "What goes with each request."),
                },
            },
            "workflow": {"type": "string", "description": "A workflow's file, as in 'run'."},
            "description": {"type": "string", "description": "What the model is told of it."},
            "only": strings("The server's tools that are used."),
            "max_result": integer(1, "How many characters of a result the model is told."),
            "effect": words("What the tool does to the world.", "read", "idempotent", "write"),
            "on_uncertain": words(
                "What a resumed run does about a call that may have done its work.",
                "ask",
                "retry",
                "fail",
            ),
            "timeout": ref("duration", "How long one call may take."),
            "concurrency": integer(1, "How many calls run at a time."),
            "grammars": {
                "type": "object",
                "additionalProperties": GRAMMAR,
                "description": "Lark grammars of arguments that are texts, by name.",
            },
            "parameters": ref("type", "What arguments it takes, by name."),
            "returns": ref("type", "What it gives."),
        },
    },
}
