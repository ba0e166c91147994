"""A chat template's source: found in a model directory, compiled in a sandbox.

A model file is foreign code as far as its template goes (CVE-2024-34359), so there is one place
where a template is compiled, and it is this one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import date

    from jinja2.parser import Parser

    from flowforge.engine.text.tokenizer import Tokenizer

    View = dict[str, object]

# What a template's own expressions can raise while they run.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)


def read_template_source(directory: Path | str) -> str:
    """Find a model directory's chat template.

    chat_template.jinja wins over tokenizer_config.json; of several named ones "default" is taken.
    Raises EngineError EN302 when there is none.
    """
    template = find_template_source(directory)
    if template is None:
        raise _missing(
            Path(directory), "neither chat_template.jinja nor tokenizer_config.json has one"
        )
    return template


def find_template_source(directory: Path | str) -> str | None:
    """As `read_template_source`, with None for a model without one. Raises EngineError EN302."""
    folder = Path(directory)
    separate, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    try:
        if separate.exists():
            return separate.read_text(encoding="utf-8")
        found = json.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
    except (OSError, ValueError) as error:
        raise _missing(folder, str(error)) from error
    template: object = found.get("chat_template") if isinstance(found, dict) else None
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template if "name" in entry}
        template = named.get("default")
    return template if isinstance(template, str) else None


def compile_template(
    source: str, tokenizer: Tokenizer, *, today: date | None
) -> Callable[[Sequence[View], Sequence[View], bool], str]:
    """Compile a template into (messages, tools, add_generation_prompt) -> text.

    Raises EngineError EN303 here and when called for a broken template; when called, EN304 with
    the template's own words if it refuses the messages and EN305 if it tries to leave the sandbox.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
    )
    environment.filters["tojson"] = _to_json
    names: dict[str, object] = {"raise_exception": _refuse, **_token_texts(tokenizer)}
    if today is not None:
        names["strftime_now"] = today.strftime
    try:
        template = environment.from_string(source, globals=names)
    except jinja2.TemplateError as error:
        raise _broken(str(error)) from error

    def render(messages: Sequence[View], tools: Sequence[View], add_generation_prompt: bool) -> str:
        try:
            return template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=tools or None,
                documents=None,
            )
        except SecurityError as error:
            raise _unsafe(str(error)) from error
        except _Refused as error:
            raise _refused(str(error)) from error
        except _TEMPLATE_FAULTS as error:
            raise _broken(str(error)) from error

    return render


class _GenerationBlock(Extension):
    """`{% generation %}`: marks what the assistant says, for training; its body is printed."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """See `jinja2.ext.Extension.parse`. Names set inside stay inside, as in transformers."""
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


class _Refused(jinja2.TemplateError):
    """The template called raise_exception."""


def _refuse(message: object) -> NoReturn:
    raise _Refused(str(message))


def _token_texts(tokenizer: Tokenizer) -> dict[str, str]:
    text_of = {token_id: text for text, token_id in tokenizer.special_tokens.items()}
    texts: dict[str, str] = {}
    if tokenizer.bos_id is not None:
        texts["bos_token"] = text_of[tokenizer.bos_id]
    if tokenizer.turn_end_id is not None:
        texts["eos_token"] = text_of[tokenizer.turn_end_id]
    return texts


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not jinja2's own filter: that one escapes for HTML, and models were not trained on that.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _missing(folder: Path, reason: str) -> EngineError:
    return EngineError(
        "EN302",
        f"no chat template in {str(folder)!r}: {reason}",
        help="choose an instruction-tuned model, or add its chat_template.jinja",
    )


def _broken(reason: str) -> EngineError:
    return EngineError(
        "EN303",
        f"chat template fails: {reason}",
        help="the template comes with the model: check the model's version",
    )


def _refused(reason: str) -> EngineError:
    return EngineError(
        "EN304",
        f"chat template refuses the messages: {reason}",
        help="the model's template limits which roles there are and in which order",
    )


def _unsafe(reason: str) -> EngineError:
    return EngineError(
        "EN305",
        f"chat template is not safe and was stopped: {reason}",
        help="do not use this model file: its template tries to run code",
    )
