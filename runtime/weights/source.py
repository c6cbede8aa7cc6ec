"""Where a model comes from: a name -> tensor source over a Hugging Face folder or a GGUF file, behind one protocol.

Tensors go by Hugging Face's names whatever the file; config, tokenizer and chat template come with them. What a format
does differently (GGUF's rotary order of llama rows, Gemma norms stored as 1 + w) is undone before a model sees it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ramet.runtime.errors import ModelNotFound, UnsupportedModel
from ramet.runtime.models.base import QuantizedTensor, WeightReader
from ramet.runtime.models.config import ModelConfig
from ramet.runtime.tokenizer import Tokenizer
from ramet.runtime.weights.discover import FoundModel, describe_models, find_default_model, find_models
from ramet.runtime.weights.gguf_source import GgufSource
from ramet.runtime.weights.huggingface import HuggingFaceSource

__all__ = [
    "FoundModel",
    "QuantizedTensor",
    "WeightSource",
    "describe_models",
    "find_default_model",
    "find_models",
    "open_source",
]


class WeightSource(WeightReader, Protocol):
    """A model on disk, opened: its numbers are known, its tensors are read one by one."""

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def chat_template(self) -> str | None:
        """The model's own jinja template, where it has one."""
        ...

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """All of its templates by name; "default" is `chat_template`. Some models have one for tools."""
        ...

    @property
    def generation_end_ids(self) -> Sequence[int]:
        """Ids at which a generation ends: from config, generation config and the vocabulary's end-of-turn tokens."""
        ...

    def names(self) -> Sequence[str]:
        """Of all tensors, in Hugging Face's spelling."""
        ...

    def has(self, name: str) -> bool: ...

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor: ...

    def read_raw(self, name: str) -> QuantizedTensor | Tensor: ...

    def num_bytes(self, name: str) -> int:
        """Bytes of this tensor in its file: what a progress bar counts."""
        ...

    def num_parameters(self) -> int:
        """Numbers in all tensors together."""
        ...

    def tokenizer(self) -> Tokenizer: ...


def open_source(path: str | Path) -> WeightSource:
    """A folder in Hugging Face's layout, or a .gguf file (or a folder with exactly one).

    Raises ModelNotFound, WeightsCorrupt or UnsupportedModel. Reads headers only.
    """
    path = Path(path).expanduser()
    if path.is_file():
        if path.suffix == ".gguf":
            return GgufSource(path)
        raise UnsupportedModel(f"{path} is not a model: expected a folder with config.json, or a .gguf file.")
    if (path / "config.json").is_file():
        return HuggingFaceSource(path)
    files = sorted(path.glob("*.gguf")) if path.is_dir() else []
    if len(files) == 1:
        return GgufSource(files[0])
    if files:
        raise ModelNotFound(f"{path} has {len(files)} GGUF files; name one: {', '.join(file.name for file in files)}.")
    what = "has neither config.json nor a .gguf file" if path.is_dir() else "does not exist"
    raise ModelNotFound(f"{path} {what}. `ramet models` lists the models on this machine.")
