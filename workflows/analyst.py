"""The analyst of analyst.yaml in Python: the same prompts, token for token, and the same steps.

flowforge run workflows/analyst.py -i topic="electric bicycles"
"""

from typing import Annotated

from pydantic import Field

import flowforge as ff

# The mask holds the model to this pattern token by token.
Angle = Annotated[str, Field(pattern="^[A-Z][A-Za-z ,-]{7,59}$")]


@ff.flow
async def analyst(
    run: ff.Run, topic: str = "electric bicycles", audience: str = "executives"
) -> str:
    """Name three angles, explore each in a branch of its own, and merge the notes."""

    async def explore(chat: ff.Chat, angle: str) -> str:
        chat.user("Explore this angle for {audience}: {angle}\n", audience=audience, angle=angle)
        return await chat.gen(name="draft", max_tokens=160, temperature=0.3, seed=4)

    async with run.chat(system="You are a careful analyst. Say what you do not know.") as chat:
        chat.user("Topic: {topic}\nName three distinct angles worth investigating.\n", topic=topic)
        angles = await chat.gen(list[Angle], items=3, name="angles", temperature=0.6, seed=8)

        drafts = await chat.map(explore, angles, limit=3)  # each branch forks the KV of the chat

        chat.user("Merge these notes into one report.\n{notes}\n", notes="\n\n---\n\n".join(drafts))
        return await chat.gen(name="report", max_tokens=250, temperature=0.3, seed=4)
