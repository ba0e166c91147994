"""A chat: a cursor on a conversation, in the words of a flow's author."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Concatenate, Literal, ParamSpec, TypeVar, overload

from flowforge.errors import WorkflowError
from flowforge.flows.answers import answer_type, choice_of, free_text, text_of_regex
from flowforge.flows.asked_turns import asked_turn
from flowforge.flows.branches import BranchTask, BranchTasks, TaskBoard, run_each
from flowforge.flows.choices import require_exact_options
from flowforge.flows.cursor import Form
from flowforge.flows.functions import step_name_of
from flowforge.flows.grammar_answers import grammar_spec, parsed_answer, transformed
from flowforge.flows.prompts import render_prompt
from flowforge.flows.rounds import require_count
from flowforge.flows.scopes import branch_path, branch_scope
from flowforge.flows.streams import TextStream, ValueStream
from flowforge.flows.votes import vote

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
        Iterable,
        Iterator,
        Sequence,
    )
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path
    from typing import Any, Unpack

    from lark import Transformer
    from pydantic import TypeAdapter

    from flowforge.backends.protocol import GenerationDone, Score
    from flowforge.flows.answers import AnswerType
    from flowforge.flows.branches import ForkJoin
    from flowforge.flows.choices import Scoring
    from flowforge.flows.cursor import Cursor
    from flowforge.flows.grammar_answers import ParsedText
    from flowforge.flows.retries import NextTry, Retry
    from flowforge.flows.sampling import SamplingOptions
    from flowforge.flows.scopes import Scope
    from flowforge.flows.turn_options import TurnOptions
    from flowforge.flows.votes import StopWhen

T = TypeVar("T")
ItemT = TypeVar("ItemT")
TextT = TypeVar("TextT", bound=str)
P = ParamSpec("P")


class Chat:
    """A conversation as its author sees it; made by `Run.chat` and by forks.

    It can be added to by one task at a time, and by none while forks of it are open: ChatBusy
    otherwise. What fails or is cancelled leaves it as it was. After its block it is closed.
    """

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    def user(self, template: str, /, **values: object) -> None:
        """Append a user turn. `{name}` in the template is a hole for the value of that name.

        Values are put in once and never read as template text; nothing in either becomes a control
        token. Raises WorkflowError WF602 when holes and values do not agree, ChatBusy.
        """
        self._cursor.add_user(render_prompt(template, values))

    # -- one turn ---------------------------------------------------------------------------------

    @overload
    async def gen(
        self,
        /,
        *,
        regex: str | None = None,
        retry: Retry | int = 1,
        name: str = "gen",
        **options: Unpack[TurnOptions],
    ) -> str: ...

    @overload
    async def gen(
        self,
        kind: type[T] | TypeAdapter[T],
        /,
        *,
        items: int | None = None,
        retry: Retry | int = 1,
        name: str = "gen",
        **options: Unpack[TurnOptions],
    ) -> T: ...

    async def gen(
        self,
        kind: type[T] | TypeAdapter[T] | None = None,
        /,
        *,
        items: int | None = None,
        regex: str | None = None,
        retry: Retry | int = 1,
        name: str = "gen",
        **options: Unpack[TurnOptions],
    ) -> T | str:
        """Let the model write the next turn: text, or a value of a type.

        kind: a class, `list[…]`, a pydantic model or a TypeAdapter; the model can write nothing but
        JSON of its schema. `str` is text, like no kind at all. items: exact length of a list.
        regex: the whole text matches it. retry: tries in all, or a Retry; each try answers the same
        prompt anew. name: of the step, for its path. options: see SamplingOptions and ToolOptions;
        with tools each turn of the model is calls or the answer.
        Raises WorkflowError WF501 for an answer that must be whole and was cut off, WF513, WF603,
        WF608, WF610, WF616, ChatBusy.
        """
        if kind is None or kind is str:
            read = free_text if regex is None else text_of_regex(regex)
            asked = await asked_turn(self._cursor, options, Form(regex=regex))
            return await asked.write(name, retry, read)
        answer = answer_type(kind, items)
        asked = await asked_turn(self._cursor, options, Form(schema=answer.schema))
        return await asked.write(name, retry, answer.value_of)

    @overload
    async def parse(
        self,
        grammar: str | Path,
        /,
        *,
        start: str = "start",
        parser: Literal["earley", "lalr"] = "earley",
        approximate: bool = False,
        transformer: None = None,
        retry: Retry | int = 1,
        name: str = "parse",
        **options: Unpack[TurnOptions],
    ) -> ParsedText: ...

    @overload
    async def parse(
        self,
        grammar: str | Path,
        /,
        *,
        start: str = "start",
        parser: Literal["earley", "lalr"] = "earley",
        approximate: bool = False,
        transformer: Transformer[Any, T],
        retry: Retry | int = 1,
        name: str = "parse",
        **options: Unpack[TurnOptions],
    ) -> T: ...

    async def parse(
        self,
        grammar: str | Path,
        /,
        *,
        start: str = "start",
        parser: Literal["earley", "lalr"] = "earley",
        approximate: bool = False,
        transformer: Transformer[Any, T] | None = None,
        retry: Retry | int = 1,
        name: str = "parse",
        **options: Unpack[TurnOptions],
    ) -> ParsedText | T:
        """Let the model write a text of a Lark grammar; gives it with its tree.

        grammar: a .lark file, a shipped one such as 'flowforge/json', or the grammar itself. start,
        parser, approximate: as in a workflow's `grammar`. transformer: lark's, whose result is
        given in place of the tree. retry: as for `gen`; a text that lark refuses is such a try.
        options: as for `gen`.
        Raises WorkflowError WF430 to WF434, WF501, ChatBusy.
        """
        spec = grammar_spec(grammar, start, parser, approximate)
        asked = await asked_turn(self._cursor, options, Form(grammar=spec))

        async def attempt(path: str, following: NextTry | None) -> ParsedText | T:
            async with asked.attempt(path, following) as (turn, done):
                answer = await parsed_answer(path, done, spec)
                turn.value = answer.text
                return transformed(answer, transformer)

        return await self._cursor.tried(name, retry, attempt)

    async def choose(
        self,
        options: Sequence[TextT],
        *,
        scoring: Scoring = "masked",
        retry: Retry | int = 1,
        name: str = "choose",
        **settings: Unpack[TurnOptions],
    ) -> TextT:
        """Let the model choose one of some texts; it can write nothing else.

        scoring: "exact" weighs every text as a whole, as `score` does, and draws one by that; the
        options of sampling are then temperature and seed. settings: the options of `gen`. Raises
        WorkflowError WF607, WF610.
        """
        require_count("options", len(options))
        if scoring == "exact":
            require_exact_options(settings)
            _require_distinct(options)

            async def attempt(path: str, following: NextTry | None) -> TextT:
                texts = tuple(options)
                chosen = await self._cursor.choose(path, texts, settings, following)
                return options[texts.index(chosen)]

            return await self._cursor.tried(name, retry, attempt)

        def read(path: str, done: GenerationDone) -> TextT:
            return choice_of(path, done, options)

        asked = await asked_turn(self._cursor, settings, Form(choice=tuple(options)))
        return await asked.write(name, retry, read)

    async def score(
        self, texts: Sequence[str], *, retry: Retry | int = 1, name: str = "score"
    ) -> list[Score]:
        """Say how likely the model would write each of these texts as its next turn.

        Scores are in the order of the texts. Nothing is written and nothing is drawn: the chat
        stays as it is, and what texts have in common is computed once.
        Raises WorkflowError WF607 for no text or an empty one, or one that is given twice.
        """
        require_count("texts", len(texts))
        _require_distinct(texts)
        cursor = self._cursor

        async def attempt(path: str, following: NextTry | None) -> list[Score]:
            return list(await cursor.score(path, tuple(texts), following))

        return await cursor.tried(name, retry, attempt)

    @overload
    def stream(
        self, /, *, name: str = "gen", **sampling: Unpack[SamplingOptions]
    ) -> AbstractAsyncContextManager[TextStream]: ...

    @overload
    def stream(
        self,
        kind: type[T] | TypeAdapter[T],
        /,
        *,
        items: int | None = None,
        name: str = "gen",
        **sampling: Unpack[SamplingOptions],
    ) -> AbstractAsyncContextManager[ValueStream[T]]: ...

    def stream(
        self,
        kind: type[T] | TypeAdapter[T] | None = None,
        /,
        *,
        items: int | None = None,
        name: str = "gen",
        **sampling: Unpack[SamplingOptions],
    ) -> AbstractAsyncContextManager[TextStream] | AbstractAsyncContextManager[ValueStream[T]]:
        """`gen`, seen while it is written.

            async with chat.stream(Critique) as critique:
                async for so_far in critique:
                    ...
            print(critique.result)

        Gives pieces of text, or the JSON value as far as its fields have closed. Leaving the block
        before the end stops the model, cancels the step, and leaves the chat as it was.
        """
        if kind is None or kind is str:
            return self._text_stream(name, sampling)
        return self._value_stream(answer_type(kind, items), name, sampling)

    @asynccontextmanager
    async def _text_stream(
        self, name: str, sampling: SamplingOptions
    ) -> AsyncGenerator[TextStream]:
        async with self._cursor.turn(name, sampling) as turn, aclosing(turn.texts()) as texts:
            yield TextStream(turn, texts)

    @asynccontextmanager
    async def _value_stream(
        self, answer: AnswerType[T], name: str, sampling: SamplingOptions
    ) -> AsyncGenerator[ValueStream[T]]:
        async with (
            self._cursor.turn(name, sampling, Form(schema=answer.schema)) as turn,
            aclosing(turn.texts()) as texts,
        ):
            yield ValueStream(turn, texts, answer)

    async def vote(
        self,
        kind: type[T] | TypeAdapter[T],
        /,
        n: int,
        *,
        stop_when: StopWhen = "decided",
        items: int | None = None,
        name: str = "vote",
        **sampling: Unpack[SamplingOptions],
    ) -> T:
        """Let the model answer n times side by side, and take the answer that most gave.

        stop_when: "decided" cancels the answers that cannot change the result any more, "all" waits
        for them. Among equals the earliest counts. The chat goes on from the answer that won.
        Raises as `gen`, and WorkflowError WF607 for n below 1.
        """
        require_count("answers", n)
        return await vote(self._cursor, answer_type(kind, items), n, stop_when, name, sampling)

    # -- forks ------------------------------------------------------------------------------------

    async def map(
        self,
        function: Callable[[Chat, ItemT], Awaitable[T]],
        items: Iterable[ItemT],
        /,
        *,
        limit: int | None = None,
        name: str | None = None,
    ) -> list[T]:
        """Run a function for every item, each on a fork of this chat; results in item order.

        limit: branches at one time. The first failure cancels the others. name: of the step;
        else that of the function. This chat is frozen until the end. Raises what a branch raises,
        WorkflowError WF607, ChatBusy.
        """
        cursor = self._cursor
        path = cursor.scope.path(name or step_name_of(function))

        async def explore(scope: Scope, item: ItemT) -> T:
            fork = await cursor.fork(scope)
            try:
                return await function(Chat(fork), item)
            finally:
                await fork.close()

        with cursor.frozen(), cursor.session.step(path, "for") as end:
            results = await run_each(cursor.session, path, items, limit, explore)
            end.value = results
        return results

    @asynccontextmanager
    async def fork(
        self, n: int, *, join: ForkJoin = "all", name: str = "fork"
    ) -> AsyncGenerator[Fork]:
        """N forks of this chat, as chats and as places to start functions in.

            async with chat.fork(2) as (a, b):
                cost = a.start(explore, "cost")
                risk = b.start(explore, "risk")
            texts = [cost.result, risk.result]

        The block ends when every started function has ended. This chat is frozen until then.
        join: what one branch's end means to the others, see ForkJoin. Raises what a branch raises,
        WorkflowError WF607 for n below 1, ChatBusy.
        """
        require_count("forks", n)
        cursor = self._cursor
        path = cursor.scope.path(name)
        board = TaskBoard(cursor.session, join, path)
        with cursor.frozen(), cursor.session.step(path, "fork", cursor.last_path) as end:
            forks: list[Cursor] = []
            try:
                # One by one, so that those that are open are closed when another cannot be had.
                for idx in range(n):
                    forks.append(await cursor.fork(branch_scope(path, idx)))  # noqa: PERF401
                async with board.tasks():
                    yield Fork(
                        [Branch(fork, board, branch_path(path, i)) for i, fork in enumerate(forks)]
                    )
            finally:
                for fork in forks:
                    await fork.close()
            board.require_winner()
            end.value = board.results()


class Branch(Chat):
    """One of the chats of a fork: all of `Chat`, and closed at the end of the fork's block."""

    def __init__(self, cursor: Cursor, board: TaskBoard, path: str) -> None:
        super().__init__(cursor)
        self._board = board
        self._path = path

    def start(
        self,
        function: Callable[Concatenate[Chat, P], Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> BranchTask[T]:
        """Run a function with this chat beside the block; its result is there after the block."""
        return self._board.start(
            self._path, self._cursor.scope, lambda: function(self, *args, **kwargs)
        )


class Fork:
    """The branches of `Chat.fork`: a sequence of them, good until the end of its block."""

    def __init__(self, branches: Sequence[Branch]) -> None:
        self._branches = tuple(branches)

    def __iter__(self) -> Iterator[Branch]:
        """Each branch."""
        return iter(self._branches)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._branches)

    def __getitem__(self, idx: int) -> Branch:
        """One branch."""
        return self._branches[idx]

    def start(
        self, function: Callable[[Chat, ItemT], Awaitable[T]], items: Sequence[ItemT]
    ) -> BranchTasks[T]:
        """Run a function once in every branch, each with its item. Raises WorkflowError WF607."""
        if len(items) != len(self._branches):
            raise WorkflowError(
                "WF607",
                f"a fork of {len(self._branches)} branches was given {len(items)} items",
                help="fork as many branches as there are items, or use chat.map",
            )
        pairs = zip(self._branches, items, strict=True)
        return BranchTasks([branch.start(function, item) for branch, item in pairs])


def _require_distinct(texts: Sequence[str]) -> None:
    if "" in texts or len(set(texts)) < len(texts):
        raise WorkflowError(
            "WF607",
            "texts that are scored must not be empty and must differ",
            help="leave out the empty ones and those that come twice",
        )
