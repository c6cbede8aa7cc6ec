"""From a path to a model that runs: open, read with progress, build. Places nothing on disk and plans no steps.

Reading is counted in bytes of the file, so a bar can show a rate and an end; drawing it is the command line's business.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ramet.runtime.models.base import Model, QuantizedTensor, WeightReader
from ramet.runtime.models.config import ModelConfig
from ramet.runtime.models.registry import build_model
from ramet.runtime.tokenizer import Tokenizer
from ramet.runtime.weights.source import WeightSource, open_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far reading is."""

    done_bytes: int
    total_bytes: int
    seconds: float
    """Since reading began."""

    @property
    def bytes_per_s(self) -> float:
        return self.done_bytes / self.seconds if self.seconds > 0 else 0.0


class SizedModel(Model, Protocol):
    """A model that knows what its weights take."""

    def weight_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model and what comes with it."""

    model: Model
    config: ModelConfig
    """The model's numbers, with the context length that it was loaded for."""
    tokenizer: Tokenizer
    name: str
    """The folder's or the file's, without its suffix."""
    path: Path
    chat_template: str | None
    chat_templates: Mapping[str, str]
    """All of the model's templates by name ("default", "tool_use")."""
    end_token_ids: tuple[int, ...]
    """A generation stops at any of these."""
    num_parameters: int
    weight_bytes: int
    """What the weights take in memory, tied matrices once."""
    dtype: torch.dtype
    device: torch.device
    load_s: float


def load(
    path: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    context_length: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> LoadedModel:
    """Load the model at `path` (see open_source). `progress` is called after each tensor.

    context_length  positions that can be computed; None: the model's own. More than the model was made for is allowed:
                    dynamic rotary stretching needs it, and other kinds degrade as they do elsewhere.
    """
    began = time.perf_counter()
    source = open_source(path)
    return load_source(
        source, device=device, dtype=dtype, context_length=context_length, progress=progress, began=began
    )


def load_source(
    source: WeightSource,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    context_length: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    began: float | None = None,
    build: "Callable[[ModelConfig, WeightReader], SizedModel] | None" = None,
) -> LoadedModel:
    """The same for a source that is open already (its config was needed to plan memory). `build` makes the model of the
    config and the tensors; None: the torch model."""
    began = time.perf_counter() if began is None else began
    config = source.config.with_context_length(context_length)
    reader = _CountingReader(source, progress)
    model: SizedModel = (
        build(config, reader) if build is not None else build_model(config, reader, dtype=dtype, device=device)
    )
    reader.finish()
    return LoadedModel(
        model=model,
        config=config,
        tokenizer=source.tokenizer(),
        name=_display_name(source.path),
        path=source.path,
        chat_template=source.chat_template,
        chat_templates=source.chat_templates,
        end_token_ids=tuple(source.generation_end_ids),
        num_parameters=source.num_parameters(),
        weight_bytes=model.weight_bytes(),
        dtype=dtype,
        device=torch.device(device),
        load_s=time.perf_counter() - began,
    )


def _display_name(path: Path) -> str:
    """A hub snapshot is named by its repository, not by its commit."""
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return path.stem if path.is_file() else path.resolve().name


class _CountingReader:
    """A source that reports each tensor it reads: each once, though a tied matrix is read twice."""

    def __init__(self, source: WeightSource, progress: Callable[[Progress], None] | None) -> None:
        self._source, self._progress = source, progress
        names: Sequence[str] = source.names() if progress is not None else ()
        self._left = {name: source.num_bytes(name) for name in names}
        self._total, self._done, self._began = sum(self._left.values()), 0, time.perf_counter()

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        tensor = self._source.read(name, dtype)
        self._report(self._left.pop(name, 0))
        return tensor

    def read_raw(self, name: str) -> QuantizedTensor | Tensor:
        tensor = self._source.read_raw(name)
        self._report(self._left.pop(name, 0))
        return tensor

    def finish(self) -> None:
        """What nobody read (the picture half of a model, say) is done as well."""
        self._report(self._total - self._done)

    def _report(self, num_bytes: int) -> None:
        if self._progress is None or num_bytes == 0:
            return
        self._done += num_bytes
        seconds = time.perf_counter() - self._began
        self._progress(Progress(done_bytes=self._done, total_bytes=self._total, seconds=seconds))
