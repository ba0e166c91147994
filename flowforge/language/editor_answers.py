"""What a step or a turn may ask of an answer, for the editors' schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.language.editor_words import integer, ref, strings, words

if TYPE_CHECKING:
    from flowforge.language.editor_words import Schema

GRAMMAR: Schema = {
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
                "parser": words("Which parser of lark judges the answer.", "earley", "lalr"),
                "dialect": words("Whose Lark it is.", "lark", "llguidance"),
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
}
"""A grammar of an answer, or of a tool's argument."""
_SAMPLING: Schema = {
    "max_tokens": integer(1, "How many tokens the answer has at most."),
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
    "top_k": integer(1, "How many tokens are considered."),
    "seed": integer(0, "The same seed gives the same answer."),
    "stop": {
        "anyOf": [{"type": "string"}, strings("The texts.")],
        "description": "Texts before the first of which the answer ends.",
    },
}
_FORMS: Schema = {
    "json": ref("type", "The answer is JSON of this type."),
    "choice": {
        "description": "The answer is one of these texts; beside 'tools', a text: which is called.",
        "anyOf": [strings("The texts."), {"type": "string"}],
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
        "anyOf": [{"type": "boolean"}, integer(1, "Tokens that it may think, at most.")],
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
    "grammar": GRAMMAR,
}
_TOOL_USE: Schema = {
    "tools": strings("The tools that the model may call before it answers."),
    "rounds": integer(1, "How many turns with calls there are at most."),
    "parallel": {
        "anyOf": [{"type": "boolean"}, integer(1, "How many calls one turn has at most.")],
        "description": "Whether one turn may hold several calls.",
    },
    "on_rounds": words("What follows after 'rounds' turns with calls.", "answer", "fail"),
    "on_tool_error": words("What follows when a call fails.", "tell", "fail"),
}
ANSWER_DEFINITIONS: Schema = {
    "gen_options": {
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {
            **_SAMPLING,
            **_FORMS,
            **_TOOL_USE,
            "n": integer(1, "How many samples are taken."),
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
            "user": ref("text", "What is said to the model."),
            "assistant": ref("text", "What the model is told that it has said."),
            "gen": {
                "type": ["object", "null"],
                "additionalProperties": False,
                "properties": {**_SAMPLING, **_FORMS},
                "description": "The model answers here; options as on a step.",
            },
            "as": {"type": "string", "description": "The name of that answer, for later turns."},
        },
    },
}
"""Definitions of `gen` and of a turn."""
