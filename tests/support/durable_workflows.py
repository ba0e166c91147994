"""Workflows with all that a resumed run must take over, and what their models answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ROUNDS = """
flowforge: 1
name: rounds
inputs: { ledger: string }
tools:
  look: { python: "durable_tools:look", effect: read, returns: string }
  handle: { python: "durable_tools:handle", effect: idempotent, returns: string }
  refuse: { python: "durable_tools:refuse", effect: read, returns: string }
  clean: { python: "durable_tools:clean", effect: idempotent, returns: string }
steps:
  brief:
    system: You are careful.
    user: What is to be said?
    gen: {}
  refine:
    loop: { text: "${ brief }", round: 0 }
    max: 3
    until: "${ round >= 2 }"
    do:
      better:
        from: brief
        user: "Make this better: ${ text }"
        prefill: "So: "
        gen: {}
      verdict:
        from: better
        user: Is it good?
        gen: { choice: ["yes", "no"] }
    next:
      text: "${ better }"
      round: "${ round + 1 }"
  source:
    call: look
    with: { ledger: "${ inputs.ledger }", what: source }
    retry: { attempts: 3, backoff: 1ms }
  broken:
    call: refuse
    with: { ledger: "${ inputs.ledger }" }
    catch:
      as: error
      do:
        handled:
          call: handle
          with: { ledger: "${ inputs.ledger }", code: "${ error.code }" }
    finally:
      cleaned:
        call: clean
        with: { ledger: "${ inputs.ledger }" }
  route:
    switch: "${ refine.round }"
    cases:
      2:
        deep:
          from: brief
          user: "Go deep: ${ refine.text }"
          gen: {}
    default:
      shallow:
        set: "shallow"
outputs:
  text: "${ refine.text }"
  source: "${ source }"
  broken: "${ broken }"
  route: "${ route }"
"""

BRANCHES = """
flowforge: 1
name: branches
inputs: { ledger: string }
steps:
  angles:
    system: You are an analyst.
    user: Name four angles.
    gen: { json: { type: array, items: { type: string } } }
  explore:
    for: angle in angles
    limit: 3
    do:
      draft:
        from: angles
        user: "Explore ${ angle }."
        gen: {}
      check:
        from: draft
        user: Is it true?
        gen: { n: 3, pick: all }
    yield: "${ draft } (${ check })"
  named:
    for: angle in angles
    limit: 2
    do:
      word:
        system: Be brief.
        user: "Name ${ angle } in one word."
        gen: {}
  both:
    parallel:
      left:
        from: angles
        user: Left?
        gen: {}
      right:
        do:
          one:
            from: angles
            user: Right?
            gen: {}
          two:
            from: one
            user: And then?
            gen: {}
        yield: "${ two }"
  report:
    from: angles
    user: |
      Merge ${ explore | join("; ") } and ${ both.left } and ${ both.right }.
    gen: {}
outputs: { report: "${ report }", explore: "${ explore }", named: "${ named }" }
"""

APPROVAL = """
flowforge: 1
name: approval
inputs: { ledger: string }
tools:
  pay: { python: "durable_tools:pay", effect: write, on_uncertain: retry, returns: string }
steps:
  offer:
    system: You sell bicycles.
    user: Make an offer.
    gen: {}
  talk:
    from: offer
    turns:
      - user: And cheaper?
        gen: {}
        as: cheaper
    user: "Why ${ cheaper }?"
    gen: {}
  gate:
    ask: "Shall it be paid?"
    choices: ["yes", "no"]
    show: "${ talk }"
  payment:
    if: "${ gate == 'yes' }"
    then:
      paid:
        call: pay
        with: { ledger: "${ inputs.ledger }", what: "${ talk }" }
    else:
      kept:
        set: "kept"
  letter:
    from: talk
    user: "Write: ${ payment }"
    gen: {}
outputs: { letter: "${ letter }", payment: "${ payment }" }
"""

AGENT = """
flowforge: 1
name: agent
inputs: { ledger: string }
tools:
  find: { python: "durable_tools:find", effect: read }
  pay: { python: "durable_tools:pay", effect: write, on_uncertain: retry, returns: string }
steps:
  brief:
    system: You help people who travel.
    user: What is asked?
    gen: {}
  agents:
    for: "place in ['Lima', 'Oslo']"
    do:
      agent:
        from: brief
        user: "Book a room in ${ place }."
        gen: { tools: [find, pay], rounds: 4 }
      word:
        from: agent
        user: In one word?
        gen: {}
    yield: "${ agent } (${ word })"
  letter:
    from: brief
    user: 'Write: ${ agents | join("; ") }'
    gen: {}
outputs: { letter: "${ letter }", agents: "${ agents }" }
"""
"""Its calls name the file `ledger` of the working folder, as models know no other one."""

JOURNEY = """
import flowforge as ff
from durable_tools import find, pay

FIND = ff.tool(effect="read")(find)
PAY = ff.tool(effect="write")(pay)


async def explore(chat: ff.Chat, angle: str) -> str:
    chat.user("Explore {angle}.", angle=angle)
    return await chat.gen(name="draft")


@ff.flow
async def journey(run: ff.Run, ledger: str) -> str:
    async with run.chat(system="You are careful.") as chat:
        chat.user("Name angles.")
        angles = await chat.gen(list[str], name="angles")
        drafts = await chat.map(explore, angles, limit=3)
        go = await run.ask("Shall it be paid?", choices=["yes", "no"], name="gate")
        paid = await run.call(PAY, ledger, drafts[0]) if go == "yes" else "kept"
        chat.user("Look for a room.")
        found = await chat.gen(tools=[FIND], name="agent")
        text = ""
        async for turn in ff.rounds(3):
            chat.user("Write: {paid}, {found}, {text}", paid=paid, found=found, text=text)
            text = await chat.gen(name="better")
        return text
"""

WORKFLOWS = {"rounds": ROUNDS, "branches": BRANCHES, "approval": APPROVAL, "agent": AGENT}
FLOWS = {"journey": JOURNEY}

WANTED = {"ledger": "ledger", "what": "a room with a view"}
FOUND = {"name": "find", "arguments": {"ledger": "ledger", "what": "a room"}}
SCRIPT: Mapping[str, Any] = {
    "brief": "say three things about bicycles",
    "refine*/better": "bicycles are light and quick and cheap",
    "refine*/verdict": "yes",
    "route*": "deep answer of several words",
    "angles": '["cost","range","law","joy"]',
    "explore[*]/draft": "a draft of some words that takes a while",
    "explore[*]/check": "yes",
    "named[*]/word": "a word",
    "both*": "one side of it",
    "report": "the report of it all",
    "offer": "a bicycle for a thousand",
    "talk": "because it is older",
    "letter": "dear customer it is done",
    "agents[*]/agent": {
        "turns": [
            {"text": "let me look", "calls": [FOUND, {**FOUND, "arguments": WANTED}]},
            {"calls": [{"name": "pay", "arguments": {"ledger": "ledger", "what": "a room"}}]},
            "the room is booked and paid",
        ]
    },
    "agents[*]/word": "booked",
    "agent": {"turns": [{"calls": [FOUND]}, "there is a room by the sea"]},
    "better": "a text of some words that is better",
}
ANSWERS = {"gate": "yes"}


def write_workflow(name: str, folder: Path) -> Path:
    """The file of a workflow or a flow in a folder, beside its script and its answers."""
    (folder / "script.json").write_text(json.dumps(SCRIPT), encoding="utf-8")
    (folder / "answers.json").write_text(json.dumps(ANSWERS), encoding="utf-8")
    file = folder / (f"{name}.py" if name in FLOWS else f"{name}.yaml")
    file.write_text({**WORKFLOWS, **FLOWS}[name], encoding="utf-8")
    return file
