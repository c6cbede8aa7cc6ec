"""transformers' own log probabilities, computed where the server's weights are: run with the server's interpreter.

stdin: [[context ids, continuation ids], ...]; stdout: [[sum of log probabilities, all of them the likeliest], ...].
"""

import json
import sys
from pathlib import Path

import torch

from ramet.runtime.weights.discover import find_default_model

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime" / "models"))
from conftest import transformers_from_gguf


def main() -> None:
    model = transformers_from_gguf(find_default_model())
    answers = []
    for context, continuation in json.load(sys.stdin):
        with torch.no_grad():
            logits = model(torch.tensor([[*context, *continuation]])).logits[0]
        rows = torch.log_softmax(logits.double(), -1)[len(context) - 1 : -1]
        chosen = rows[torch.arange(len(continuation)), torch.tensor(continuation)]
        answers.append([chosen.sum().item(), rows.argmax(-1).tolist() == continuation])
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
