"""A program drawn: as a Mermaid flowchart, as a Graphviz digraph, or as a tree of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flowforge.language.join_policies import All, Best, First, Quorum, Settle, Vote
from flowforge.language.program import Ask, Call, ForEach, Gen, If, Loop, Parallel, Run, Set, Switch
from flowforge.language.traversal import blocks_of, expressions_of
from flowforge.language.types import display_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flowforge.language.join_policies import Join
    from flowforge.language.program import Program, Step

EdgeKind = Literal["value", "conversation", "order"]
_MAX_LABEL_CHARS = 60


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A step. id: n0, n1, … in file order. blocks: the steps inside, by the word before them."""

    id: str
    name: str
    label: str
    type: str
    blocks: tuple[tuple[str, tuple[GraphNode, ...]], ...]


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """What one step takes from another: its value, its conversation, or only its turn."""

    source: str
    target: str
    kind: EdgeKind


@dataclass(frozen=True, slots=True)
class WorkflowGraph:
    """The steps of a workflow, and what passes between them."""

    name: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]


def graph_of(program: Program) -> WorkflowGraph:
    """The graph of a program; workflows that it runs are single nodes."""
    builder = _Builder()
    nodes = builder.nodes(program.steps, {})
    return WorkflowGraph(program.name, nodes, tuple(dict.fromkeys(builder.edges)))


def mermaid_of(graph: WorkflowGraph) -> str:
    """A Mermaid flowchart: `-->` passes a value, `==>` a conversation, `-.->` only a turn."""
    arrows = {"value": "-->", "conversation": "==>", "order": "-.->"}
    lines = ["flowchart TD"]
    for node in graph.nodes:
        lines += _mermaid_node(node, "  ")
    lines += [f"  {edge.source} {arrows[edge.kind]} {edge.target}" for edge in graph.edges]
    return "\n".join(lines) + "\n"


def dot_of(graph: WorkflowGraph) -> str:
    """A Graphviz digraph: solid edges pass values, bold ones conversations, dotted ones turns."""
    styles = {"value": "solid", "conversation": "bold", "order": "dotted"}
    lines = [f"digraph {_dot_text(graph.name)} {{", "  node [shape=box];"]
    for node in graph.nodes:
        lines += _dot_node(node, "  ")
    lines += [
        f"  {edge.source} -> {edge.target} [style={styles[edge.kind]}];" for edge in graph.edges
    ]
    return "\n".join([*lines, "}"]) + "\n"


def text_of_graph(graph: WorkflowGraph) -> str:
    """A tree of the steps, with what each takes from where and the type of its value."""
    names = {node.id: node.name for node in _all_nodes(graph.nodes)}
    sources: dict[str, list[str]] = {}
    words = {"value": "", "conversation": "from ", "order": "after "}
    for edge in graph.edges:
        sources.setdefault(edge.target, []).append(words[edge.kind] + names[edge.source])
    lines = [graph.name]
    for idx, node in enumerate(graph.nodes):
        lines += _text_node(node, sources, "", idx == len(graph.nodes) - 1)
    return "\n".join(lines) + "\n"


class _Builder:
    """Gives every step an id, and collects the edges."""

    def __init__(self) -> None:
        self.edges: list[GraphEdge] = []
        self._num_nodes = 0

    def nodes(self, steps: Mapping[str, Step], outer: Mapping[str, str]) -> tuple[GraphNode, ...]:
        ids = dict(outer)
        for name in steps:
            ids[name] = f"n{self._num_nodes}"
            self._num_nodes += 1
        return tuple(self._node(step, ids) for step in steps.values())

    def _node(self, step: Step, ids: Mapping[str, str]) -> GraphNode:
        inner = frozenset[str]().union(*(block.steps for _, block in blocks_of(step)))
        read = frozenset[str]().union(*(one.names for one in expressions_of(step))) - inner
        source = step.verb.from_step if isinstance(step.verb, Gen) else None
        own = ids[step.name]
        for name in sorted(read, key=lambda name: (len(ids.get(name, "")), ids.get(name, ""))):
            self._edge(name, own, "value", ids)
        if source is not None:
            self._edge(source, own, "conversation", ids)
        for name in sorted(step.after):
            self._edge(name, own, "order", ids)
        blocks = tuple((word, self.nodes(block.steps, ids)) for word, block in blocks_of(step))
        if all(len(inner) == 1 and inner[0].name == word for word, inner in blocks):
            # Branches that are one step each need no frames of their own.
            blocks = (("branches", tuple(inner[0] for _, inner in blocks)),) if blocks else ()
        return GraphNode(own, step.name, _label_of(step), display_type(step.type), blocks)

    def _edge(self, name: str, target: str, kind: EdgeKind, ids: Mapping[str, str]) -> None:
        # Inputs, loop variables and carried values are names without a step.
        if name in ids and ids[name] != target:
            self.edges.append(GraphEdge(ids[name], target, kind))


def _label_of(step: Step) -> str:
    label = _label_of_verb(step)
    if step.when is not None:
        label += f" when {step.when.text}"
    return label if len(label) <= _MAX_LABEL_CHARS else label[: _MAX_LABEL_CHARS - 1] + "…"


def _label_of_verb(step: Step) -> str:
    match step.verb:
        case Gen():
            return _label_of_gen(step.verb)
        case Call(tool=tool):
            return f"call {tool}"
        case ForEach() as verb:
            limit = "" if verb.limit is None else f", limit {verb.limit}"
            return f"for {verb.variable} in {verb.items.text}{limit}{_label_of_join(verb.join)}"
        case Loop() as verb:
            return f"loop {', '.join(verb.carried)}, max {verb.max_rounds}"
        case If(condition=condition):
            return f"if {condition.text}"
        case Switch(subject=subject):
            return f"switch {subject.text}"
        case Parallel(join=join):
            return f"parallel{_label_of_join(join)}"
        case Run(program=program):
            return f"run {program.name}"
        case Ask(choices=choices):
            return f"ask {' | '.join(choices)}" if choices else "ask"
        case Set():
            return "set"


def _label_of_gen(verb: Gen) -> str:
    forms = (
        ("json", verb.json_schema),
        ("choice", verb.choice),
        ("regex", verb.regex),
        ("grammar", verb.grammar),
    )
    form = "".join(f" {word}" for word, value in forms if value is not None)
    samples = f" × {verb.n}" if verb.n > 1 else ""
    return f"gen{form}{samples}"


def _label_of_join(join: Join) -> str:
    match join:
        case All():
            return ""
        case Settle():
            return ", join settle"
        case First():
            return ", join first"
        case Quorum(count=count):
            return f", join quorum {count}"
        case Best():
            return ", join best"
        case Vote():
            return ", join vote"


def _all_nodes(nodes: tuple[GraphNode, ...]) -> Iterator[GraphNode]:
    for node in nodes:
        yield node
        for _, inner in node.blocks:
            yield from _all_nodes(inner)


def _mermaid_node(node: GraphNode, indent: str) -> list[str]:
    label = _mermaid_text(f"{node.name}: {node.label}")
    if not node.blocks:
        return [f"{indent}{node.id}[{label}]"]
    lines = [f"{indent}subgraph {node.id}[{label}]"]
    for idx, (word, inner) in enumerate(node.blocks):
        is_plain = len(node.blocks) == 1
        deeper = indent + ("  " if is_plain else "    ")
        if not is_plain:
            lines.append(f"{indent}  subgraph {node.id}b{idx}[{_mermaid_text(word)}]")
        for one in inner:
            lines += _mermaid_node(one, deeper)
        if not is_plain:
            lines.append(f"{indent}  end")
    return [*lines, f"{indent}end"]


def _dot_node(node: GraphNode, indent: str) -> list[str]:
    label = _dot_text(f"{node.name}\n{node.label}")
    if not node.blocks:
        return [f"{indent}{node.id} [label={label}];"]
    lines = [f"{indent}subgraph cluster_{node.id} {{", f"{indent}  style=dashed;"]
    lines.append(f"{indent}  {node.id} [label={label}, style=rounded];")
    for idx, (word, inner) in enumerate(node.blocks):
        lines.append(f"{indent}  subgraph cluster_{node.id}b{idx} {{ label={_dot_text(word)};")
        for one in inner:
            lines += _dot_node(one, indent + "    ")
        lines.append(f"{indent}  }}")
    return [*lines, f"{indent}}}"]


def _text_node(
    node: GraphNode, sources: Mapping[str, list[str]], indent: str, is_last: bool
) -> list[str]:
    taken = ", ".join(sources.get(node.id, ()))
    line = f"{indent}{'└─' if is_last else '├─'} {node.name}: {node.label}"
    line += f"  ← {taken}" if taken else ""
    line += f"  → {node.type}"
    lines = [line]
    deeper = indent + ("   " if is_last else "│  ")
    num_blocks = len(node.blocks)
    for idx, (word, inner) in enumerate(node.blocks):
        last_block = idx == num_blocks - 1
        below = deeper
        if num_blocks > 1:
            lines.append(f"{deeper}{'└─' if last_block else '├─'} {word}")
            below = deeper + ("   " if last_block else "│  ")
        for one_idx, one in enumerate(inner):
            lines += _text_node(one, sources, below, one_idx == len(inner) - 1)
    return lines


def _mermaid_text(text: str) -> str:
    """Quoted; characters that Mermaid reads as markup are written by their numbers."""
    safe = (char if char.isalnum() or char in " _-.,:|×…=<>" else f"#{ord(char)};" for char in text)
    return '"' + "".join(safe).replace("<", "#60;").replace(">", "#62;") + '"'


def _dot_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
