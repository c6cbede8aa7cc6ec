"""Reason and act: the model calls a real Python tool until it knows the answer.

The tool runs what the model writes in a process of its own, without your environment and with a time limit; that is no
sandbox.
"""

import subprocess
import sys

from ramet import State, assistant, describe_tools, function, gen, system, tool, user


@tool(timeout_s=10)
def run_python(code: str) -> str:
    """Run a Python program and return what it prints.

    Args:
        code: The program.
    """
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=8, env={})
    return done.stdout or done.stderr


@function
def react(s: State, question: str, max_steps: int = 4) -> str:
    s += system(describe_tools([run_python]))
    s += user(question)
    s += assistant(gen("step", tools=[run_python], max_tokens=256, temperature=0))
    for _ in range(max_steps):
        if not s.call_tools():
            break
        s += assistant(gen("step", tools=[run_python], max_tokens=256, temperature=0))
    return str(s["step"])


def main(backend: object = None) -> str:
    state = react.run("What is the sum of the first 100 squares?", backend=backend)
    for message in state.messages()[1:]:
        print(f"{message['role']}: {message['content']}")
    return str(state.ret_value)


if __name__ == "__main__":
    main()
