"""Few examples, then a question: the examples are one shared prefix, computed once for the whole batch."""

from ramet import State, function, gen

EXAMPLES = """\
Q: What is the opposite of hot?
A: cold
Q: What is the opposite of tall?
A: short
"""


@function
def opposite(s: State, word: str) -> None:
    s += EXAMPLES
    s += f"Q: What is the opposite of {word}?\n"
    s += "A:" + gen(
        "answer", stop="\n", max_tokens=8, temperature=0
    )  # the model writes the blank: it is part of its word


def main(backend: object = None) -> dict[str, str]:
    words = ["big", "fast", "early"]
    states = opposite.run_batch([{"word": word} for word in words], backend=backend)
    answers = {word: state["answer"].strip() for word, state in zip(words, states, strict=True)}
    for word, answer in answers.items():
        print(f"{word} -> {answer}")
    return answers


if __name__ == "__main__":
    main()
