"""Acceptance T5: lm-eval's loglikelihood over our server equals what transformers computes on the same weights.

lm-eval needs no tokenizer of its own: it asks /tokenizer_info and /tokenize.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shared import own_server

pytestmark = pytest.mark.clients

QUESTIONS = [
    ("The capital of France is", [" Paris", " Rome", " a town in the north of Antarctica"]),
    ("Water boils at a temperature of 100 degrees", [" Celsius", " Kelvin", " under the sea, it is said"]),
    ("def add(a, b):\n    return", [" a + b", " b", " None  # nothing to add"]),
    ("Zürich liegt in der", [" Schweiz", " Türkei", " Nähe von 東京 🙂"]),
    ("1, 2, 3, 4, 5,", [" 6", " 6, 7, 8, 9, 10", " 42"]),
]
PAIRS = [(question, answer) for question, answers in QUESTIONS for answer in answers]
TOLERANCE = 1e-4
"""A token, in log probability."""


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with own_server("--dtype", "float32", "--backend", "torch", "--kv-tokens", "16384") as found:
        yield found


def model(base: str, batch_size: int) -> Any:
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    return LocalCompletionsAPI(base_url=f"{base}/v1/completions", model="m", batch_size=batch_size, max_length=2048)


def instances() -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(PAIRS)]


def reference(pairs: list[Any]) -> list[Any]:
    command = [os.environ["RAMET_PYTHON"], "-P", str(Path(__file__).with_name("reference_logprobs.py"))]
    ran = subprocess.run(command, input=json.dumps(pairs), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def expected(base: str) -> tuple[list[Any], list[Any]]:
    """Token ids of each pair, and transformers' answer to each."""
    lm = model(base, 1)
    ids = [lm._encode_pair(question, answer) for question, answer in PAIRS]
    return ids, reference(ids)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_loglikelihood_equals_transformers(
    base: str, expected: tuple[list[Any], list[Any]], batch_size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    lm, (ids, theirs) = model(base, batch_size), expected
    assert lm.tokenizer_backend == "remote"
    for state in ("first", "cached"):
        ours = lm.loglikelihood(instances(), disable_tqdm=True)
        pairs = zip(ours, theirs, ids, strict=True)
        worst = max(abs(mine - his) / len(answer) for (mine, _), (his, _), (_, answer) in pairs)
        with capsys.disabled():
            print(f"lm-eval, batches of {batch_size}, {state}: largest difference a token {worst:.1e}")
        assert worst < TOLERANCE
        assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]


def test_a_whole_task(base: str, tmp_path: Path) -> None:
    """Multiple choice from a file, scored by lm-eval itself."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    rows = [{"question": question, "choices": answers, "answer": 0} for question, answers in QUESTIONS]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    task = {
        "task": "small",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    (tmp_path / "small.yaml").write_text(json.dumps(task))
    os.environ["HF_DATASETS_CACHE"] = str(tmp_path / "cache")
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    result = lm_eval.simple_evaluate(model=model(base, 4), tasks=["small"], task_manager=manager)
    assert result["results"]["small"]["acc,none"] >= 0.6
