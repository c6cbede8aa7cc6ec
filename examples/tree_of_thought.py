"""Think in a tree: at each level every thought branches, each branch is graded, and the best ones grow on.

A branch continues its parent's KV; nothing is computed twice, and what is not followed is freed.
"""

from ramet import State, assistant, function, gen, select, system, user


@function
def think(s: State, puzzle: str, width: int = 3, keep: int = 2, depth: int = 2) -> str:
    s += system("You solve puzzles step by step. Each step is one short sentence.")
    s += user(puzzle)
    frontier = [s]
    for level in range(depth):
        grown = [child for state in frontier for child in state.fork(width)]
        for child in grown:
            child += user(f"Step {level + 1}?")
            child += assistant(gen("thought", max_tokens=40, temperature=0.9))
            child += user("How promising is that, from 0 to 9?")
            child += assistant(select("grade", list("0123456789")))
        grown.sort(key=lambda child: -int(child["grade"]))  # waits for all: they ran side by side
        frontier = grown[:keep]
    best = frontier[0]
    best += user("So the answer is?")
    best += assistant(gen("answer", max_tokens=40, temperature=0))
    return str(best["answer"])


def main(backend: object = None) -> str:
    state = think.run("How can three people cross a river in a boat for two?", backend=backend)
    print(state.tree())
    print("answer:", state.ret_value)
    return str(state.ret_value)


if __name__ == "__main__":
    main()
