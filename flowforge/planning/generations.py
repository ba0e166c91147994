"""What one `gen` step will make the model do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from flowforge.backends.prefix_trie import PrefixTrie
from flowforge.language.join_policies import All
from flowforge.language.program import Gen, SaidTurn, WrittenTurn
from flowforge.planning.answer_size import most_thoughts, size_of_answer, value_of_answer
from flowforge.planning.costs import Cost
from flowforge.planning.plan import PlannedGeneration, ReadAgain
from flowforge.planning.prefixes import length_of
from flowforge.planning.prompts import (
    PlannedTurn,
    WrittenContent,
    elements_of_text,
    lay_out,
    written_run,
)
from flowforge.planning.quantity import NONE, UNBOUNDED, Quantity, exactly, total
from flowforge.planning.scope import Conversation
from flowforge.planning.values import (
    MixedText,
    Pieces,
    PlanValue,
    Unknown,
    joined_pieces,
    pieces_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from flowforge.language.templates import Template
    from flowforge.planning.answer_size import AnswerSize
    from flowforge.planning.evaluation import Evaluator
    from flowforge.planning.prefixes import Charge, Element, PrefixBook
    from flowforge.planning.prompts import Tokenizing
    from flowforge.planning.scope import PlanScope

_Said: TypeAlias = "SaidTurn | WrittenTurn | PlannedTurn"


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model's tokens, and the prefixes that it will have computed."""

    tokens: Tokenizing
    book: PrefixBook


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step comes to: its cost, its value, and its conversation if it has one."""

    cost: Cost
    value: PlanValue
    conversation: Conversation | None = None


class GenerationPlanner:
    """Plans generations against the prefixes of their models; keeps a record of each.

    models: by name, None for the run's own. page_size: tokens a KV page.
    """

    def __init__(
        self, models: Mapping[str | None, PlannedModel], evaluator: Evaluator, page_size: int
    ) -> None:
        self._models = models
        self._evaluator = evaluator
        self._page_size = page_size
        self._path_to_model: dict[str, str | None] = {}
        self.generations: list[PlannedGeneration] = []
        self.read_again: list[ReadAgain] = []

    def plan(self, verb: Gen, path: str, scope: PlanScope, *, is_certain: bool) -> Outcome:
        """Plan a step whose source, if it has one, is there."""
        source = None if verb.from_step is None else scope.conversations[verb.from_step]
        turns = list(source.turns) if source is not None else []
        if verb.system is not None:
            system = self._pieces(verb.system, scope, verb.model)
            turns.append(PlannedTurn("system", (*system, *_told_of_tools(verb, path))))
        inner = scope.inner({})
        cost = Cost()
        writing = _Writing(self, verb.model, path, source, is_certain)
        num_said = len(turns)
        for idx, turn in enumerate(self._turns(verb, inner)):
            if not isinstance(turn, WrittenTurn):
                turns.append(self._said(turn, inner, verb.model))
                continue
            written = writing.write(turn, turns, (), f"{path} turn {idx}", 1)
            self._note_read_again(path, turns[num_said:])
            cost = cost.then(written.cost)
            turns.append(PlannedTurn("assistant", written.content))
            num_said = len(turns)
            if turn.name is not None:
                inner.values[turn.name] = written.value
        if verb.user is not None:
            user = self._pieces(verb.user, inner, verb.model)
            turns.append(PlannedTurn("user", (*_told_of_tools(verb, path), *user)))
        beginning = () if verb.prefill is None else self._pieces(verb.prefill, inner, verb.model)
        answer = writing.write(verb, turns, beginning, path, verb.n)
        if verb.tool_use is not None:
            answer = replace(answer, cost=self._with_rounds(answer.cost, verb.tool_use.rounds))
        self._note_read_again(path, turns[num_said:])
        cost = cost.then(answer.cost)
        if verb.n > 1 and isinstance(verb.pick, All):
            values = [_renamed(answer.value, f"{path}[{idx}]") for idx in range(verb.n)]
            return Outcome(cost, values)
        turns.append(PlannedTurn("assistant", answer.content))
        conversation = Conversation(tuple(turns), path, answer.length)
        return Outcome(cost, answer.value, conversation)

    def _with_rounds(self, cost: Cost, rounds: int) -> Cost:
        """The cost of an answer before which the model may call tools so often; noted as well."""
        turns = Quantity(1, rounds + 1)
        cost = replace(
            cost,
            generated=cost.generated.times(turns),
            decode_steps=cost.decode_steps.times(turns),
            reused=Quantity(cost.reused.least, None),
        )
        self.generations[-1] = replace(
            self.generations[-1], generated=cost.generated, reused=cost.reused
        )
        return cost

    def _turns(self, verb: Gen, scope: PlanScope) -> Sequence[_Said]:
        if isinstance(verb.turns, tuple):
            return verb.turns
        listed = self._evaluator.value_of(verb.turns, scope.values)
        if not isinstance(listed, list):
            # How many turns it will be is not known: their texts in one stand for them all.
            return [PlannedTurn("user", pieces_of(listed))]
        return [turn for entry in listed for turn in _turns_of_entry(entry)]

    def _said(
        self, turn: SaidTurn | PlannedTurn, scope: PlanScope, model: str | None
    ) -> PlannedTurn:
        if isinstance(turn, SaidTurn):
            return PlannedTurn(turn.role, self._pieces(turn.text, scope, model))
        if isinstance(turn.content, WrittenContent):
            return turn
        return replace(turn, content=self._counted(turn.content, model))

    def _pieces(self, template: Template, scope: PlanScope, model: str | None) -> Pieces:
        return self._counted(self._evaluator.pieces_of(template, scope.values), model)

    def _counted(self, pieces: Pieces, model: str | None) -> Pieces:
        """Texts of which only the number of tokens is known, for a model that may count otherwise.

        The number is in tokens of those that wrote the text, or of the run's own model if none did.
        """
        own = self._models[model]

        def counted(text: Unknown) -> Unknown:
            is_other = any(self._models[name] is not own for name in self._counters_of(text))
            return replace(text, tokens=UNBOUNDED) if is_other else text

        return tuple(counted(piece) if isinstance(piece, Unknown) else piece for piece in pieces)

    def _counters_of(self, text: Unknown) -> set[str | None]:
        if len(self._models) == 1:
            return {*self._models}
        return {self._path_to_model.get(origin) for origin in text.origins} or {None}

    def _note_read_again(self, path: str, said: Sequence[PlannedTurn]) -> None:
        unknowns = [
            piece
            for turn in said
            if not isinstance(turn.content, WrittenContent)
            for piece in turn.content
            if isinstance(piece, Unknown) and piece.origins
        ]
        if unknowns:
            origins = tuple(sorted(frozenset[str]().union(*(one.origins for one in unknowns))))
            self.read_again.append(
                ReadAgain(path, origins, total(unknown.tokens for unknown in unknowns))
            )

    def note(self, generation: PlannedGeneration) -> None:
        """Keep the record of a generation, and by which model its text is counted."""
        self.generations.append(generation)
        self._path_to_model[generation.path] = generation.model

    def doubt_since(self, num_planned: int) -> Cost:
        """Take back the certainty of all generations but the first so many; what they may cost."""
        doubtful = [replace(one, is_certain=False) for one in self.generations[num_planned:]]
        self.generations[num_planned:] = doubtful
        cost = Cost()
        for one in doubtful:
            pages = cost.pages + one.pages
            alone = Cost(one.prefilled, one.reused, one.generated, one.generated)
            cost = replace(cost.then(alone), pages=pages)
        return cost.or_nothing()

    def model(self, name: str | None) -> PlannedModel:
        """A model that a step runs on."""
        return self._models[name]

    def pages(self, sequence: Quantity, held: Quantity) -> Quantity:
        """Pages of a sequence beside those that it has in common with one that is held."""
        size = self._page_size
        most_held = 0 if held.most is None else held.most // size
        least = max(1, -(-sequence.least // size) - most_held)
        most = None if sequence.most is None else -(-sequence.most // size) - held.least // size
        return Quantity(least, most)


@dataclass(frozen=True, slots=True)
class _Written:
    """length: of prompt and answer."""

    cost: Cost
    value: PlanValue
    content: WrittenContent
    length: Quantity


@dataclass(frozen=True, slots=True)
class _Writing:
    """The generations of one step."""

    planner: GenerationPlanner
    model: str | None
    path: str
    source: Conversation | None
    is_certain: bool

    def write(
        self,
        written: Gen | WrittenTurn,
        turns: Sequence[PlannedTurn],
        beginning: Pieces,
        path: str,
        num_samples: int,
    ) -> _Written:
        planner, model = self.planner, self.planner.model(self.model)
        tokens = model.tokens
        prompt = (*lay_out(turns, tokens), *elements_of_text(beginning, tokens))
        prompt_len = length_of(prompt)
        size = size_of_answer(written, max(1, tokens.context_len - prompt_len.least))
        weighed = _num_weighed(written, tokens)
        content = WrittenContent(path, beginning, _len_with_kv(size, weighed), size.pending)
        charges = self._charges(prompt, content, num_samples)
        length = prompt_len + size.generated + exactly(weighed)
        cost = Cost(
            prefilled=total(charge.new for charge in charges) + exactly(weighed),
            reused=total(charge.reused for charge in charges),
            generated=size.generated.times(exactly(num_samples)),
            decode_steps=size.generated,
            pages=self._pages(length, prompt_len, num_samples),
        )
        asked = weighed + (written.sampling.max_tokens or 1) + most_thoughts(written)
        record = PlannedGeneration(
            path=path,
            num_samples=num_samples,
            prompt=prompt_len,
            prefilled=cost.prefilled,
            reused=cost.reused,
            generated=cost.generated,
            continues=None if self.source is None else self.source.path,
            reused_from=charges[0].source,
            sequence=prompt_len + exactly(asked),
            pages=cost.pages,
            is_certain=self.is_certain,
            model=self.model,
            context_len=tokens.context_len,
        )
        planner.note(record)

        def count(text: str) -> int:
            return len(tokens.encode(text))

        value = value_of_answer(written, path, size.generated, count)
        if beginning and isinstance(value, Unknown) and not _is_parsed(written):
            value = MixedText(joined_pieces([*beginning, value]))
        return _Written(cost, value, content, length)

    def _charges(
        self, prompt: tuple[Element, ...], content: WrittenContent, num_samples: int
    ) -> list[Charge]:
        """What each sample is charged for the prompt; all of them are in the book then."""
        book = self.planner.model(self.model).book
        names = (f"{content.key}[{idx}]" for idx in range(1, num_samples))
        charges: list[Charge] = []
        for one in (content, *(replace(content, key=name) for name in names)):
            charges.append(book.charge(prompt))
            book.add(prompt, (written_run(one),), content.key)
        return charges

    def _pages(self, length: Quantity, prompt_len: Quantity, num_samples: int) -> Quantity:
        """Pages of all samples: the first has the source's in common, the others the prompt's."""
        held = NONE if self.source is None else self.source.length
        others = self.planner.pages(length, prompt_len).times(exactly(num_samples - 1))
        return self.planner.pages(length, held) + others


def _len_with_kv(size: AnswerSize, weighed: int) -> Quantity:
    """Tokens of an answer whose KV is there for who reads it again: the last one's never is."""
    if weighed:
        return Quantity(0, size.pending.most)
    least = max(0, size.generated.least - (size.pending.most or 0))
    return Quantity(least, max(0, (size.generated.most or 1) - 1))


def _num_weighed(written: Gen | WrittenTurn, tokens: Tokenizing) -> int:
    """Distinct tokens of texts that are scored, each with its end; 0 where none are."""
    if written.options.scoring != "exact" or written.choice is None:
        return 0
    distinct = PrefixTrie()
    for text in written.choice:
        distinct.add(tuple(tokens.encode(text)))
    return len(distinct) + len(written.choice)


def _told_of_tools(verb: Gen, path: str) -> Pieces:
    """What tools are told to be, and what they say: the run alone knows how long that is."""
    return () if verb.tool_use is None else (Unknown(f"{path} tools"),)


def _is_parsed(written: Gen | WrittenTurn) -> bool:
    return written.json_schema is not None or written.choice is not None


def _renamed(value: PlanValue, key: str) -> PlanValue:
    """The same of another sample."""
    match value:
        case Unknown():
            return replace(value, key=f"{key}:{value.key}")
        case MixedText(pieces):
            renamed = (
                replace(piece, key=f"{key}:{piece.key}") if isinstance(piece, Unknown) else piece
                for piece in pieces
            )
            return MixedText(tuple(renamed))
        case list():
            return [_renamed(item, key) for item in value]
        case dict():
            return {name: _renamed(item, key) for name, item in value.items()}
        case _:
            return value


def _turns_of_entry(entry: PlanValue) -> Iterator[PlannedTurn]:
    if not isinstance(entry, dict):
        yield PlannedTurn("user", pieces_of(entry))
        return
    if entry.get("user") is not None:
        yield PlannedTurn("user", pieces_of(entry["user"]))
    if entry.get("assistant") is not None:
        yield PlannedTurn("assistant", pieces_of(entry["assistant"]))
