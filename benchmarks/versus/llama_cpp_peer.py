"""llama.cpp as a peer of `ramet bench engine`: the same GGUF file, one sequence, a thread per CPU.

Its environment, once (it compiles for some minutes):
    python -m venv ~/.cache/ramet/peers/llama-cpp-python
    ~/.cache/ramet/peers/llama-cpp-python/bin/pip install llama-cpp-python

Run with that environment's python; speaks lines of JSON (see Peer in src/ramet/bench/engine.py).
"""

import json
import os
import statistics
import sys
import time

from llama_cpp import Llama


def main(path: str) -> None:
    threads = len(os.sched_getaffinity(0))
    model = Llama(path, n_ctx=8192, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False)
    answer({"batch": 1, "context": 8192})
    for line in sys.stdin:
        question = json.loads(line)
        answer(decode(model, *question["decode"]) if "decode" in question else prefill(model, question["prefill"]))


def decode(model: Llama, batch: int, context: int) -> float:
    """Seconds a step, median of 20, around `context` keys."""
    model.reset()
    model.eval([17 + i for i in range(context - 10)])
    return statistics.median(timed(lambda: model.eval([11])) for _ in range(20))


def prefill(model: Llama, length: int) -> float:
    model.reset()
    return timed(lambda: model.eval([17 + i for i in range(length)]))


def timed(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def answer(value: object) -> None:
    print("ANSWER " + json.dumps(value), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
