"""A chat of three turns that streams. Each turn costs its own tokens only: the past stays on the branch."""

from ramet import State, assistant, function, gen, system, user


@function
def chat(s: State, questions: list[str]) -> None:
    s += system("You are a helpful assistant. Answer in one sentence.")
    for number, question in enumerate(questions):
        s += user(question)
        s += assistant(gen(f"answer_{number}", max_tokens=40, temperature=0))


def main(backend: object = None) -> list[str]:
    questions = ["What is a bee?", "What do they make?", "Why does it matter?"]
    state = chat.run(questions, backend=backend, stream=True)
    for number, question in enumerate(questions):
        print(f"user: {question}\nassistant: ", end="")
        for piece in state.text_iter(f"answer_{number}"):
            print(piece, end="", flush=True)
        print()
    state.sync()
    usage = state.usage
    print(f"{usage.prompt_tokens} prompt tokens, {usage.cached_tokens} of them found in the cache")
    return [state[f"answer_{number}"] for number in range(len(questions))]


if __name__ == "__main__":
    main()
