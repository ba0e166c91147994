"""`gen`: the model writes one turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowforge.backends.protocol import GenerateRequest, Sampling
from flowforge.errors import InternalError, WorkflowError
from flowforge.runtime.verbs.rules import Finish, Generate, Reaction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowforge.backends.protocol import GenerationDone
    from flowforge.language.program import Block, Gen, JsonValue, SamplingSpec
    from flowforge.language.templates import Template
    from flowforge.runtime.verbs.rules import StepContext


class GenRules:
    """Renders the prompt, asks for one turn, and under `json` takes nothing but a valid value."""

    word = "gen"

    def body(self, verb: Gen) -> Block | None:
        """Never: `gen` has no block."""
        del verb
        return None

    def continues(self, verb: Gen) -> frozenset[str]:
        """The step named by `from`."""
        return frozenset() if verb.from_step is None else frozenset({verb.from_step})

    def start(self, verb: Gen, context: StepContext) -> Reaction:
        """Render the prompt with the values in scope."""
        request = GenerateRequest(
            sampling=_sampling(verb.sampling), json_schema=verb.json_schema, label=context.path
        )
        generate = Generate(
            continues=verb.from_step,
            system=_rendered(verb.system, context.scope),
            user=_rendered(verb.user, context.scope),
            request=request,
        )
        return Reaction(None, (generate,))

    def answered(self, verb: Gen, context: StepContext, done: GenerationDone) -> Reaction:
        """Take the text, or the JSON value it spells."""
        value: JsonValue = done.text
        if verb.json_schema is not None:
            if done.finish_reason == "length":
                raise _cut_off(context.path, done)
            value = context.validate(done.text, verb.json_schema)
        return Reaction(None, (Finish(value, done.finish_reason, done.usage),))

    def branch_done(
        self, verb: Gen, memory: object, branch_values: Mapping[int, JsonValue]
    ) -> Reaction:
        """Never: `gen` opens no branches."""
        del verb, memory, branch_values
        raise InternalError("IN502", "a gen step was told of a branch it never opened")


def _sampling(spec: SamplingSpec) -> Sampling:
    return Sampling(
        max_tokens=spec.max_tokens,
        temperature=spec.temperature,
        top_p=spec.top_p,
        top_k=spec.top_k,
        seed=spec.seed,
        stop=spec.stop,
    )


def _rendered(template: Template | None, scope: Mapping[str, JsonValue]) -> str | None:
    return None if template is None else template.render(scope)


def _cut_off(path: str, done: GenerationDone) -> WorkflowError:
    return WorkflowError(
        "WF501",
        f"step {path!r} must answer in JSON and was cut off after "
        f"{done.usage.generated_tokens} tokens, before the value was complete",
        help="raise max_tokens in the step's gen, or bound its schema (maxItems, maxLength)",
    )
