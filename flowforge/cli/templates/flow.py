"""A workflow as an async function, with the same steps, events and figures as a workflow file."""

import flowforge as ff


async def explain(chat: ff.Chat, point: str) -> str:
    """Write one sentence, on a fork of the chat that named the point."""
    chat.user("Say one sentence about {point}.", point=point)
    return await chat.gen(name="detail", max_tokens=40, temperature=0, stop=["\n"])


@ff.flow
async def advice(run: ff.Run, topic: str = "bicycles") -> list[str]:
    """Name two things that matter about a topic, and explain each; both at once."""
    async with run.chat(system="You answer briefly.") as chat:
        chat.user("Name two things that matter about {topic}.", topic=topic)
        points = await chat.gen(list[str], items=2, name="points", max_tokens=60, temperature=0)
        return await chat.map(explain, points, name="details")
