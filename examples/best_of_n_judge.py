"""Sample n answers side by side, and let the model judge them: `select` grades each on its own branch."""

from ramet import State, assistant, function, gen, select, user


@function
def best_of(s: State, question: str, n: int = 4) -> str:
    s += user(question)
    answers = s.fork(n)
    answers += assistant(gen("answer", max_tokens=48, temperature=0.9))
    answers += user("Is that a good answer?")
    answers += assistant(select("good", ["yes", "no"]))
    scores = [answer.get_meta_info("good")["probabilities"][0] for answer in answers]
    best = max(range(n), key=scores.__getitem__)
    s["scores"] = scores
    return str(answers[best]["answer"])


def main(backend: object = None) -> str:
    state = best_of.run("Why is the sky blue?", backend=backend)
    print("scores:", [round(score, 3) for score in state["scores"]])
    print("best:", state.ret_value)
    return str(state.ret_value)


if __name__ == "__main__":
    main()
