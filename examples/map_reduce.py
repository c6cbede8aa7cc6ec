"""A text too long to read at once: summarise its chunks side by side, then the summaries.

Each chunk is a program of its own, a child of the one that asked for it.
"""

from ramet import AsyncState, State, assistant, function, gen, system, user

TEXT = """\
Bees live in colonies of up to fifty thousand. Most of them are workers, and all of the workers are sisters.
A worker visits some hundred flowers on one flight, and tells the others by a dance where the good ones are.
Honey is their store for the winter: the colony hangs in a ball, shivers to keep warm, and eats its way through it.
In spring the queen lays up to two thousand eggs a day, and the colony grows until it is time to swarm.
"""


@function
def summarise(s: State, text: str) -> None:
    s += system("Summarise in one short sentence.")
    s += user(text)
    s += assistant(gen("summary", max_tokens=32, temperature=0))


@function
async def map_reduce(s: AsyncState, text: str, chunk_lines: int = 1) -> str:
    import asyncio

    lines = text.splitlines()
    chunks = ["\n".join(lines[at : at + chunk_lines]) for at in range(0, len(lines), chunk_lines)]
    parts = await asyncio.gather(*(summarise.arun(chunk) for chunk in chunks))
    s += system("Summarise in one short sentence.")
    s += user("\n".join(part["summary"] for part in parts))
    s += assistant(gen("summary", max_tokens=48, temperature=0))
    return str(await s["summary"])


def main(backend: object = None) -> str:
    summary = str(map_reduce.run(TEXT, backend=backend).ret_value)
    print(summary)
    return summary


if __name__ == "__main__":
    main()
