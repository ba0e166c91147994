"""The workflow file as a JSON Schema, for editors: completion, hints and first errors.

What a schema cannot say (names in scope, types, cycles) stays with `flowforge check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from flowforge.language.checker import KEYS, LANGUAGE_VERSION
from flowforge.language.common_keys import COMMON_KEYS
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
    from flowforge.language.program import JsonValue

    Schema = dict[str, JsonValue]

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


def _ref(name: str, description: str) -> Schema:
    return {"$ref": f"#/$defs/{name}", "description": description}


def _integer(least: int, description: str) -> Schema:
    return {"type": "integer", "minimum": least, "description": description}


def _words(description: str, *words: str) -> Schema:
    return {"enum": [*words], "description": description}


def _strings(description: str) -> Schema:
    item: Schema = {"type": ["string", "number", "boolean"]}
    return {"type": "array", "items": item, "minItems": 1, "description": description}


def _named(value: JsonValue, description: str) -> Schema:
    return {"type": "object", "additionalProperties": value, "description": description}


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
    "types": _named({"$ref": "#/$defs/schema"}, "JSON Schemas by name."),
    "inputs": _named({"$ref": "#/$defs/input"}, "Values that the caller gives."),
    "secrets": _strings("Variables of the environment that calls and servers may be given."),
    "tools": _named({"$ref": "#/$defs/tool"}, "Tools that steps may call."),
    "models": _named({"$ref": "#/$defs/model"}, "Models of other servers, for remote/NAME."),
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
    "steps": _ref("steps", "The steps, by name; they start as soon as what they use is there."),
    "outputs": _named(_VALUE, "The results, by name."),
}
_STEP_KEYS: dict[str, Schema] = {
    "gen": _ref("gen_options", "Options of the answer; nothing at all means free text."),
    "from": {"type": "string", "description": "The step whose conversation is continued."},
    "system": _ref("text", "The system prompt of a new conversation."),
    "user": _ref("text", "What is said to the model."),
    "turns": {
        "description": "What is said before: a list of turns, or an expression that gives one.",
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"$ref": "#/$defs/turn"}},
        ],
    },
    "prefill": _ref("text", "How the answer begins."),
    "model": {"type": "string", "description": "The model that writes."},
    "tags": _strings("Words by which a route may tell steps apart."),
    "call": {"type": "string", "description": "The name of the tool."},
    "with": _named(_VALUE, "Arguments by name."),
    "for": {"type": "string", "description": "VARIABLE in LIST"},
    "limit": _integer(1, "How many items run at a time."),
    "join": _ref("join", "How the branches' values become one."),
    "do": _ref("steps", "The steps to repeat."),
    "yield": {"$ref": "#/$defs/value", "description": "What the block's value is."},
    "loop": _named(_VALUE, "The carried values before the first round."),
    "until": _ref("condition", "Asked after a round: true ends the loop."),
    "while": _ref("condition", "Asked before a round: false ends the loop."),
    "max": _integer(1, "How many rounds there are at most."),
    "on_max": _words("What follows when 'max' rounds were not enough.", "keep", "fail"),
    "next": _named(_VALUE, "The carried values after a round."),
    "if": _ref("condition", "The condition."),
    "then": _ref("block", "What runs when the condition holds."),
    "else": _ref("block", "What runs when it does not."),
    "switch": _ref("condition", "The value that decides."),
    "cases": _named({"$ref": "#/$defs/block"}, "Blocks by value."),
    "default": _ref("block", "What runs for every other value."),
    "parallel": {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {"anyOf": [_STEP, {"$ref": "#/$defs/explicit_block"}]},
        "description": "Branches by name.",
    },
    "run": {"type": "string", "description": "The workflow's file, relative to this one."},
    "ask": _ref("text", "The question."),
    "choices": _strings("The answers that are allowed."),
    "show": {"$ref": "#/$defs/value", "description": "A value to show with the question."},
    "on_timeout": _ref("text", "The answer after 'timeout' without one."),
    "set": {"$ref": "#/$defs/value", "description": "The value."},
    "when": _ref("condition", "False skips the step, whose value is then null."),
    "after": {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "Steps that come first although nothing of theirs is used.",
    },
    "timeout": _ref("duration", "How long one try may take."),
    "retry": _ref("retry", "How often the step is tried, and how long it waits."),
    "catch": _ref("catch", "What the value is when the step has failed."),
    "finally": _ref("block", "What runs once the step is over, however it ended."),
    "priority": {"type": "integer", "description": "Higher goes first."},
    "cache": {
        "anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/duration"}],
        "description": "Whether, or for how long, the result of an equal step is taken instead.",
    },
}
_SAMPLING: Schema = {
    "max_tokens": _integer(1, "How many tokens the answer has at most."),
    "temperature": {
        "type": "number",
        "minimum": 0,
        "maximum": 2,
        "description": "0 takes the likeliest token; the higher, the more even the choice.",
    },
    "top_p": {
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": 1,
        "description": "Only the likeliest tokens are considered that have this share together.",
    },
    "top_k": _integer(1, "How many tokens are considered."),
    "seed": _integer(0, "The same seed gives the same answer."),
    "stop": {
        "anyOf": [{"type": "string"}, _strings("The texts.")],
        "description": "Texts before the first of which the answer ends.",
    },
}
_FORMS: Schema = {
    "json": _ref("type", "The answer is JSON of this type."),
    "choice": {
        "description": "The answer is one of these texts; beside 'tools', a text: which is called.",
        "anyOf": [_strings("The texts."), {"type": "string"}],
    },
    "regex": {
        "type": "string",
        "description": r"The whole answer matches. Classes of Unicode are known, as \p{L}.",
    },
    "on_unsupported": {
        "enum": ["error", "relax"],
        "description": "Whether JSON Schema keywords that no mask enforces are refused, or judge "
        "only the finished answer.",
    },
    "whitespace": {
        "enum": ["compact", "bounded"],
        "description": "Whether JSON is written without white space, or with a little.",
    },
    "think": {
        "anyOf": [{"type": "boolean"}, _integer(1, "Tokens that it may think, at most.")],
        "description": "Whether the model thinks before its answer, which alone is the value.",
    },
    "scoring": {
        "enum": ["masked", "exact"],
        "description": "Whether a choice is made token by token, or by scores of whole texts.",
    },
    "on_cut": {
        "enum": ["fail", "close"],
        "description": "Whether an answer that comes to max_tokens fails, or is closed in time.",
    },
    "grammar": {
        "description": "The answer is a text of this Lark grammar.",
        "anyOf": [
            {"type": "string", "description": "A file, a shipped grammar, or the grammar itself."},
            {
                "type": "object",
                "properties": {
                    "file": {"type": "string", "description": "A .lark file beside the workflow."},
                    "text": {"type": "string", "description": "The grammar itself."},
                    "name": {"type": "string", "description": "A shipped one: flowforge/json."},
                    "start": {"type": "string", "description": "The rule of the whole answer."},
                    "parser": _words("Which parser of lark judges the answer.", "earley", "lalr"),
                    "dialect": _words("Whose Lark it is.", "lark", "llguidance"),
                    "approximate": {
                        "type": "boolean",
                        "description": "Leave what cannot be masked exactly to lark's judgement.",
                    },
                    "tree": {
                        "type": "boolean",
                        "description": "Whether the value is {text, tree} or the text alone.",
                    },
                },
                "additionalProperties": False,
            },
        ],
    },
}
_TOOL_USE: Schema = {
    "tools": _strings("The tools that the model may call before it answers."),
    "rounds": _integer(1, "How many turns with calls there are at most."),
    "parallel": {
        "anyOf": [{"type": "boolean"}, _integer(1, "How many calls one turn has at most.")],
        "description": "Whether one turn may hold several calls.",
    },
    "on_rounds": _words("What follows after 'rounds' turns with calls.", "answer", "fail"),
    "on_tool_error": _words("What follows when a call fails.", "tell", "fail"),
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
    "gen_options": {
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {
            **_SAMPLING,
            **_FORMS,
            **_TOOL_USE,
            "n": _integer(1, "How many samples are taken."),
            "pick": {
                "description": "Which sample counts.",
                "anyOf": [{"enum": ["majority", "best", "all"]}, {"$ref": "#/$defs/best"}],
            },
        },
    },
    "turn": {
        "type": "object",
        "additionalProperties": False,
        "minProperties": 1,
        "properties": {
            "user": _ref("text", "What is said to the model."),
            "assistant": _ref("text", "What the model is told that it has said."),
            "gen": {
                "type": ["object", "null"],
                "additionalProperties": False,
                "properties": {**_SAMPLING, **_FORMS},
                "description": "The model answers here; options as on a step.",
            },
            "as": {"type": "string", "description": "The name of that answer, for later turns."},
        },
    },
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
                "properties": {"quorum": _integer(1, "How many have to succeed.")},
            },
            {"$ref": "#/$defs/best"},
        ],
    },
    "retry": {
        "anyOf": [
            _integer(1, "How many tries there are in all."),
            {
                "type": "object",
                "required": ["attempts"],
                "additionalProperties": False,
                "properties": {
                    "attempts": _integer(1, "How many tries there are in all."),
                    "backoff": _ref("duration", "The wait before the second try."),
                    "factor": {
                        "type": "number",
                        "minimum": 1,
                        "description": "How many times as long the next wait is.",
                    },
                    "max": _ref("duration", "The longest wait."),
                    "jitter": _words(
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
            "codes": _strings("Only errors whose code begins with one of these."),
            "do": _ref("steps", "The steps that run then."),
            "yield": _ref("value", "What the value of those steps is."),
            "else": _ref("value", "The value in place of steps."),
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
            "dialect": _words(MODEL_KEYS["dialect"], *get_args(Dialect)),
            "api_key": {"type": "string", "description": MODEL_KEYS["api_key"]},
            "tokenizer": {"type": "string", "description": MODEL_KEYS["tokenizer"]},
            "context": _integer(1, MODEL_KEYS["context"]),
            "timeout": _ref("duration", MODEL_KEYS["timeout"]),
            "attempts": _integer(1, MODEL_KEYS["attempts"]),
            "max_wait": _ref("duration", MODEL_KEYS["max_wait"]),
            "concurrency": _integer(1, MODEL_KEYS["concurrency"]),
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
                    "command": _strings("A program and its arguments."),
                    "url": {"type": "string", "pattern": "^https?://"},
                    "env": {
                        "anyOf": [
                            _strings("Variables of the environment that the program gets."),
                            _named({"type": "string"}, "Others, with their values."),
                        ]
                    },
                    "token_env": {"type": "string", "description": "Holds the bearer token."},
                    "headers": _named({"type": "string"}, "What goes with each request."),
                },
            },
            "workflow": {"type": "string", "description": "A workflow's file, as in 'run'."},
            "description": {"type": "string", "description": "What the model is told of it."},
            "only": _strings("The server's tools that are used."),
            "max_result": _integer(1, "How many characters of a result the model is told."),
            "effect": _words("What the tool does to the world.", "read", "idempotent", "write"),
            "on_uncertain": _words(
                "What a resumed run does about a call that may have done its work.",
                "ask",
                "retry",
                "fail",
            ),
            "timeout": _ref("duration", "How long one call may take."),
            "concurrency": _integer(1, "How many calls run at a time."),
            "grammars": {
                "type": "object",
                "additionalProperties": _FORMS["grammar"],
                "description": "Lark grammars of arguments that are texts, by name.",
            },
            "parameters": _ref("type", "What arguments it takes, by name."),
            "returns": _ref("type", "What it gives."),
        },
    },
}
