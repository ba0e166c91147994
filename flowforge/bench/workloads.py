"""Nineteen workloads of language-model programs, after those of published studies.

Lengths are drawn from fixed seeds: each workload is the same whenever it is made. The shapes come
from tree of thoughts, branch-solve-merge judges, ReAct, generative agents, few-shot benchmarks,
skeleton of thought, chats, JSON fields, summaries by chain and by map and reduce, shared system
prompts (SGLang's and Parrot's suites), MetaGPT, rollouts of agents, KVFlow and FastTree.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from flowforge.bench.program_calls import Continued, Output, Part, Segment, Workload

if TYPE_CHECKING:
    from collections.abc import Callable


def tree_of_thoughts(name: str, num_branches: int, num_levels: int, seed: int) -> Workload:
    """Each thought is continued by several, level by level."""
    workload, draw = Workload(name), Random(seed).randint
    lengths = [(70, 130), (110, 200), (80, 160), (60, 140)]
    asks = [Segment(("tot ask", level), length) for level, length in enumerate((0, 42, 36, 30))]
    for program in range(8):
        prompt = [Segment("tot system", 68), Segment((name, program), draw(35, 95))]
        layer = [workload.add(program, prompt, draw(*lengths[0])) for _ in range(num_branches)]
        for level in range(1, num_levels):
            layer = [
                workload.add(
                    program, [Continued(parent), asks[level]], draw(*lengths[level]), [parent]
                )
                for parent in layer
                for _ in range(num_branches)
            ]
    return workload


def judge() -> Workload:
    """An article is judged in six dimensions, and the judgements are scored together."""
    workload, draw = Workload("judge6"), Random(1).randint
    system = Segment("judge", 32)
    dimensions = [Segment(("dimension", i), Random(i).randint(95, 125)) for i in range(6)]
    for program in range(8):
        article = Segment(("article", program), draw(700, 1300))
        judged = [
            workload.add(program, [system, article, dimension], draw(80, 160))
            for dimension in dimensions
        ]
        parts: list[Part] = [system, article, Segment("judge join", 14)]
        for i, idx in enumerate(judged):
            parts += [Segment(("judge label", i), 5), Output(idx)]
        workload.add(program, [*parts, Segment("judge end", 22)], 2, judged)
    return workload


def react() -> Workload:
    """Thoughts and actions in turn with what tools return, behind examples."""
    workload, draw = Workload("react"), Random(2).randint
    for program in range(16):
        parts: list[Part] = [
            Segment("react examples", 1340),
            Segment(("react", program), draw(15, 35)),
        ]
        before: list[int] = []
        for turn in range(5):
            parts.append(Segment(("thought", turn), 3))
            idx = workload.add(program, parts, draw(35, 75), before, 0.5 if turn < 4 else 0.0)
            parts += [Output(idx), Segment(("observation", program, turn), draw(30, 110))]
            before = [idx]
    return workload


def generative_agents() -> Workload:
    """Five short questions about each event, each with a prompt of its own."""
    workload = Workload("genagents")
    asks = {
        "poignancy": (8, 70, 2),
        "triple": (190, 22, 12),
        "pronunciation": (24, 16, 4),
        "sector": (420, 190, 8),
        "object": (210, 120, 5),
    }
    draw = Random(3).randint
    personas = [Segment(("persona", i), draw(90, 140)) for i in range(25)]
    for event in range(30):
        before: list[int] = []
        for ask, (num_static, num_changing, num_output) in asks.items():
            parts: list[Part] = [Segment(("agents", ask), num_static)]
            if ask == "poignancy":
                parts.append(personas[event % 25])
            parts.append(Segment(("agents", ask, event), num_changing))
            before = [workload.add(event, parts, num_output, before)]
    return workload


def mmlu() -> Workload:
    """Questions of ten subjects in mixed order, each behind its subject's examples."""
    workload, random = Workload("mmlu5shot"), Random(4)
    order = [(subject, question) for subject in range(10) for question in range(20)]
    random.shuffle(order)
    examples = [Segment(("subject", i), Random(i).randint(420, 1100)) for i in range(10)]
    for program, (subject, question) in enumerate(order):
        asked = Segment(("question", subject, question), random.randint(50, 150))
        workload.add(program, [examples[subject], asked], 1)
    return workload


def hellaswag() -> Workload:
    """Four endings of each question are scored, behind twenty examples."""
    workload, draw = Workload("hellaswag20"), Random(5).randint
    for question in range(40):
        asked = Segment(("hellaswag", question), draw(20, 70))
        for choice in range(4):
            ending = Segment(("ending", question, choice), draw(12, 40))
            program = question
            workload.add(program, [Segment("hellaswag examples", 1650), asked, ending], 0)
    return workload


def tips() -> Workload:
    """Five tips are listed one behind the other, and each is expanded meanwhile."""
    workload, draw = Workload("tips5"), Random(6).randint
    for program in range(8):
        topic = Segment(("topic", program), draw(4, 12))
        parts: list[Part] = [Segment("tips", 30), topic, Segment("tips end", 18)]
        before: list[int] = []
        for i in range(5):
            tip = workload.add(program, parts, draw(5, 12), before)
            parts += [Output(tip), Segment(("tip label", i), 3)]
            before = [tip]
            expanded: list[Part] = [Segment("tips examples", 330), topic, Segment("tip is", 3)]
            expanded += [Output(tip), Segment("tip end", 4)]
            workload.add(program, expanded, draw(90, 128), [tip])
    return workload


def skeleton() -> Workload:
    """A skeleton of points, all expanded at once."""
    workload, draw = Workload("skeleton"), Random(7).randint
    for program in range(8):
        asked = Segment(("skeleton", program), draw(15, 60))
        num_points = draw(4, 9)
        parts = [Segment("skeleton system", 165), asked, Segment("skeleton end", 4)]
        listed = workload.add(program, parts, num_points * 9)
        for i in range(num_points):
            point: list[Part] = [Segment("point system", 95), asked, Segment("point list", 8)]
            point += [Output(listed), Segment(("point", i), 28)]
            workload.add(program, point, draw(35, 80), [listed])
    return workload


def chat(name: str, least_output: int, most_output: int) -> Workload:
    """Chats of four turns that share nothing."""
    workload, draw = Workload(name), Random(8).randint
    for program in range(20):
        parts: list[Part] = []
        before: list[int] = []
        for turn in range(4):
            parts.append(Segment((name, program, turn), draw(256, 512)))
            idx = workload.add(program, parts, draw(least_output, most_output), before)
            parts.append(Output(idx))
            before = [idx]
    return workload


def json_fields() -> Workload:
    """Five fields of a JSON text about a long document, written one by one."""
    workload, draw = Workload("json_fields"), Random(9).randint
    for program in range(10):
        parts: list[Part] = [Segment("json", 16), Segment(("document", program), draw(1500, 3000))]
        parts.append(Segment("json end", 24))
        before: list[int] = []
        for i, num_output in enumerate((5, 4, 6, 7, 24)):
            parts.append(Segment(("field", i), 6))
            idx = workload.add(program, parts, num_output, before)
            parts.append(Output(idx))
            before = [idx]
    return workload


def chain_summary() -> Workload:
    """A summary is carried from chunk to chunk: outputs stand before what is new."""
    workload, draw = Workload("chain_sum"), Random(10).randint
    for program in range(4):
        before: list[int] = []
        for i in range(12):
            parts: list[Part] = [Segment("chain", 36)]
            if before:
                parts += [Output(before[0]), Segment("chain join", 10)]
            parts += [Segment(("chunk", program, i), 1024), Segment("chain end", 8)]
            before = [workload.add(program, parts, draw(50, 100), before)]
    return workload


def map_reduce() -> Workload:
    """Sixteen chunks are summarised at once, and the summaries together."""
    workload, draw = Workload("map_reduce"), Random(11).randint
    for program in range(4):
        mapped = [
            workload.add(
                program,
                [Segment("map", 36), Segment(("map", program, i), 1024), Segment("map end", 8)],
                draw(50, 100),
            )
            for i in range(16)
        ]
        parts: list[Part] = [Segment("reduce", 40), *(Output(idx) for idx in mapped)]
        workload.add(program, parts, draw(100, 200), mapped)
    return workload


def system_prompts() -> Workload:
    """Users of four applications with long system prompts."""
    workload, draw = Workload("gpts4"), Random(12).randint
    applications = [Segment(("app", i), n) for i, n in enumerate((1400, 3000, 4500, 6000))]
    for program in range(48):
        asked = Segment(("user", program), draw(20, 180))
        workload.add(program, [applications[program % 4], asked], draw(180, 400))
    return workload


def multi_agent_code() -> Workload:
    """An architect, six coders and reviewers that read all files, in three rounds."""
    workload, draw = Workload("multi_agent_code"), Random(13).randint
    architect, coder, reviewer = (
        Segment(("role", role), n)
        for role, n in (("architect", 260), ("coder", 330), ("reviewer", 300))
    )
    for program in range(2):
        task = Segment(("task", program), 120)
        plan = workload.add(program, [architect, task], draw(350, 500))
        names = [Segment(("file", i), 12) for i in range(6)]
        opening: list[Part] = [coder, task, Output(plan)]
        files = [workload.add(program, [*opening, name], draw(250, 450), [plan]) for name in names]
        for _ in range(3):
            read: list[Part] = [reviewer, task, Output(plan), *(Output(idx) for idx in files)]
            reviews = [
                workload.add(program, [*read, Segment(("review", i), 14)], draw(60, 130), files)
                for i in range(6)
            ]
            files = [
                workload.add(
                    program,
                    [*opening, name, Output(file), Segment("reviewed", 8), Output(review)],
                    draw(250, 450),
                    [review],
                )
                for name, file, review in zip(names, files, reviews, strict=True)
            ]
    return workload


def agent_rollout() -> Workload:
    """Agents that wait for a tool between turns."""
    workload, random = Workload("agent_rollout"), Random(14)
    for program in range(8):
        parts: list[Part] = [Segment(("agent", program), 2048)]
        before: list[int] = []
        for turn in range(8):
            wait_s = random.uniform(1, 3) if turn < 7 else 0.0
            idx = workload.add(program, parts, 128, before, wait_s)
            parts += [Output(idx), Segment(("tool", program, turn), 256)]
            before = [idx]
    return workload


def agent_cycle() -> Workload:
    """Ten agents in turn, each with a long fixed prompt, four times round."""
    workload = Workload("kvflow_cycle")
    for program in range(2):
        before: list[int] = []
        for turn in range(4):
            for agent in range(10):
                parts: list[Part] = [Segment(("fixed", agent), 2048)]
                parts.append(Segment(("changing", program, turn, agent), 64))
                parts += [Output(idx) for idx in before]
                before = [workload.add(program, parts, 64, before)]
    return workload


def few_shot_tree() -> Workload:
    """Questions behind eight sets of examples behind one system prompt."""
    workload, draw = Workload("multi_few_shot"), Random(16).randint
    for branch in range(8):
        examples = Segment(("few shots", branch), 2000)
        for question in range(16):
            asked = Segment(("shot", branch, question), draw(50, 110))
            program = branch * 16 + question
            workload.add(program, [Segment("few shot system", 900), examples, asked], 128)
    return workload


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "tot3x3": lambda: tree_of_thoughts("tot3x3", 3, 3, 0),
    "tot_deep2x4": lambda: tree_of_thoughts("tot_deep2x4", 2, 4, 20),
    "judge6": judge,
    "react": react,
    "genagents": generative_agents,
    "mmlu5shot": mmlu,
    "hellaswag20": hellaswag,
    "tips5": tips,
    "skeleton": skeleton,
    "chat_short": lambda: chat("chat_short", 4, 8),
    "chat_long": lambda: chat("chat_long", 256, 512),
    "json_fields": json_fields,
    "chain_sum": chain_summary,
    "map_reduce": map_reduce,
    "gpts4": system_prompts,
    "multi_agent_code": multi_agent_code,
    "agent_rollout": agent_rollout,
    "kvflow_cycle": agent_cycle,
    "multi_few_shot": few_shot_tree,
}
