"""Ask the same question several times and take the answer that most samples agree on; stop when enough agree."""

from collections import Counter

from ramet import State, assistant, function, gen, gen_int, user


@function
def agree(s: State, question: str, n: int = 5, enough: int = 3) -> int:
    s += user(question + " Think first, then give the number.")
    samples = s.fork(n)
    samples += lambda i: assistant(gen("reasoning", max_tokens=48, temperature=0.8, seed=i))
    samples += user("The number alone:")
    samples += assistant(gen_int("number", max_tokens=6, temperature=0))
    first = samples.first(enough)
    votes = Counter(sample.get("number", int) for sample in first)
    s["votes"] = dict(votes)
    return votes.most_common(1)[0][0]


def main(backend: object = None) -> int:
    state = agree.run("A pen costs 2 and a book costs 7. What do three pens and a book cost?", backend=backend)
    print("votes:", state["votes"], "answer:", state.ret_value)
    return int(state.ret_value)


if __name__ == "__main__":
    main()
