"""An outline, then every point of it written at the same time, then all together."""

from ramet import State, assistant, function, gen, system, user


@function
def tips(s: State, topic: str, n: int = 3) -> None:
    s += system("You give short practical tips.")
    s += user(f"Name {n} tips on {topic}, as a numbered list of a few words each.")
    s += assistant(gen("outline", max_tokens=60, temperature=0))
    forks = s.fork(n)
    forks += lambda i: user(f"Explain tip {i + 1} in one sentence.")
    forks += assistant(gen("detail", max_tokens=40, temperature=0))
    forks.join()
    s += user("Here they are:\n" + "\n".join(s["detail"]) + "\nSum them up in one sentence.")
    s += assistant(gen("summary", max_tokens=40, temperature=0))


def main(backend: object = None) -> str:
    state = tips.run("staying healthy", backend=backend)
    for number, detail in enumerate(state["detail"], start=1):
        print(f"{number}. {detail}")
    print("summary:", state["summary"])
    print(state.tree())
    return str(state["summary"])


if __name__ == "__main__":
    main()
