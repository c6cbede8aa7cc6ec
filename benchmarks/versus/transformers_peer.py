"""transformers as a peer of `ramet bench engine`: the GGUF's weights as bfloat16, its eager forward.

Its environment, once:
    python -m venv ~/.cache/ramet/peers/transformers
    ~/.cache/ramet/peers/transformers/bin/pip install "torch==2.13.0" transformers gguf accelerate

Run with that environment's python; speaks lines of JSON (see Peer in src/ramet/bench/engine.py).
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache, GgufConfig


def main(path: str) -> None:
    file = Path(path)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    ).eval()
    answer({"batch": 64, "context": 2048})
    with torch.inference_mode():
        for line in sys.stdin:
            question = json.loads(line)
            answer(decode(model, *question["decode"]) if "decode" in question else prefill(model, question["prefill"]))


def decode(model, batch: int, context: int) -> float:
    """Seconds a step, median of 5, around `context` keys; the cache is filled one row at a time and repeated."""
    cache = DynamicCache()
    prompt = torch.arange(17, 17 + context - 3)[None]
    model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
    cache.batch_repeat_interleave(batch)
    tokens = torch.full((batch, 1), 11)
    times = [timed(lambda: model(tokens, past_key_values=cache, use_cache=True)) for _ in range(5)]
    return statistics.median(times)


def prefill(model, length: int) -> float:
    prompt = torch.arange(17, 17 + length)[None]
    return timed(lambda: model(prompt, past_key_values=DynamicCache(), use_cache=True, logits_to_keep=1))


def timed(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def answer(value: object) -> None:
    print("ANSWER " + json.dumps(value), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
