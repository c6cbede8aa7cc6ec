"""A folder in Hugging Face's layout as a weight source: config.json, safetensors (whole or sharded), tokenizer.json,
chat template and generation config. Reads only what is on disk; pickles are refused, since opening one runs code."""

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer as RawTokenizer
from torch import Tensor

from ramet.runtime.errors import ModelNotFound, UnsupportedModel, WeightsCorrupt
from ramet.runtime.models.base import QuantizedTensor
from ramet.runtime.models.config import ModelConfig, config_from_huggingface
from ramet.runtime.tokenizer import Tokenizer

_TEXT_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.")
"""Where a multimodal checkpoint keeps its text part."""

_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
}
_READ_TYPES = {"F64", "F32", "F16", "BF16"}


class HuggingFaceSource:
    """A folder. See WeightSource."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._raw_config = _json(path / "config.json")
        self.config: ModelConfig = config_from_huggingface(self._raw_config)
        self._files = {file: _opened(file) for file in _weight_files(path)}
        self._places = {
            _text_name(name): (file, name) for file, opened in self._files.items() for name in opened.keys()  # noqa: SIM118
        }  # fmt: skip

    # ---- tensors

    def names(self) -> Sequence[str]:
        return list(self._places)

    def has(self, name: str) -> bool:
        return name in self._places

    def num_bytes(self, name: str) -> int:
        piece = self._slice(name)
        return int(math.prod(piece.get_shape())) * _BYTES.get(piece.get_dtype(), 1)

    def num_parameters(self) -> int:
        return sum(math.prod(self._slice(name).get_shape()) for name in self._places)

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        file, inner = self._place(name)
        stored = self._slice(name).get_dtype()
        if stored not in _READ_TYPES:
            raise UnsupportedModel(
                f"{file}: tensor {inner!r} has type {stored}; {', '.join(sorted(_READ_TYPES))} are read."
            )
        return self._files[file].get_tensor(inner).to(dtype)  # type: ignore[no-any-return]

    def read_raw(self, name: str) -> QuantizedTensor | Tensor:
        file, inner = self._place(name)
        return self._files[file].get_tensor(inner)  # type: ignore[no-any-return]

    def _place(self, name: str) -> tuple[Path, str]:
        try:
            return self._places[name]
        except KeyError:
            raise WeightsCorrupt(f"{self.path} has no tensor {name!r}; its architecture needs one.") from None

    def _slice(self, name: str) -> Any:
        file, inner = self._place(name)
        return self._files[file].get_slice(inner)

    # ---- what comes with the tensors

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")

    @functools.cached_property
    def chat_templates(self) -> Mapping[str, str]:
        return dict(_chat_templates(self.path, self._tokenizer_config))

    @functools.cached_property
    def _tokenizer_config(self) -> dict[str, Any]:
        return _json_or_empty(self.path / "tokenizer_config.json")

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        raw = _raw_tokenizer(self.path / "tokenizer.json")
        settings = self._tokenizer_config
        bos = _token_id(raw, settings.get("bos_token"))
        if bos is None:
            bos = next(iter(_ids(self._raw_config.get("bos_token_id"))), None)
        named_end = _token_id(raw, settings.get("eos_token"))
        generation = _json_or_empty(self.path / "generation_config.json")
        ends = [
            *([named_end] if named_end is not None else []),
            *_ids(generation.get("eos_token_id")),
            *_ids(self._raw_config.get("eos_token_id")),
        ]
        return Tokenizer(raw, bos_id=bos, eos_ids=list(dict.fromkeys(ends)), adds_bos=_adds_bos(raw, settings, bos))

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def generation_end_ids(self) -> Sequence[int]:
        return self._tokenizer.end_ids


def _weight_files(folder: Path) -> list[Path]:
    """The shards that the index names, or every safetensors file of the folder."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = _json(index).get("weight_map")
        if not isinstance(shards, dict):
            raise WeightsCorrupt(f"{index} has no weight_map.")
        files = sorted({folder / str(name) for name in shards.values()})
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise WeightsCorrupt(f"{folder} lacks {len(missing)} of {len(files)} shards: {', '.join(missing[:3])}.")
        return files
    files = sorted(folder.glob("*.safetensors"))
    if not files and any(folder.glob("*.bin")):
        raise UnsupportedModel(
            f"{folder} has only PyTorch pickles, which Ramet does not open. Convert them to safetensors."
        )
    if not files:
        raise ModelNotFound(f"{folder} has a config.json but no .safetensors file.")
    return files


def _opened(file: Path) -> Any:
    try:
        return safe_open(str(file), framework="pt")
    except (SafetensorError, OSError) as error:
        raise WeightsCorrupt(f"{file} is damaged or cut short: {error}. Download it again.") from error


def _text_name(name: str) -> str:
    """The name in a text-only checkpoint."""
    for prefix in _TEXT_PREFIXES:
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            return rest if rest.startswith(("model.", "lm_head.")) else f"model.{rest}"
    return name


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsCorrupt(f"{file} is not readable JSON: {error}") from error
    if not isinstance(value, dict):
        raise WeightsCorrupt(f"{file} holds {type(value).__name__}, expected an object.")
    return value


def _json_or_empty(file: Path) -> dict[str, Any]:
    return _json(file) if file.is_file() else {}


def _raw_tokenizer(file: Path) -> RawTokenizer:
    if not file.is_file():
        raise ModelNotFound(
            f"{file.parent} has no tokenizer.json. Save one with the tokenizer's fast class, or use a GGUF file."
        )
    try:
        return RawTokenizer.from_file(str(file))
    except Exception as error:  # the Rust side raises bare Exception
        raise WeightsCorrupt(f"{file} is not a tokenizer: {error}") from error


def _token_id(raw: RawTokenizer, token: object) -> int | None:
    """tokenizer_config spells a token as text, or as an object with its content."""
    content = token.get("content") if isinstance(token, dict) else token
    return raw.token_to_id(content) if isinstance(content, str) else None


def _ids(value: object) -> list[int]:
    """eos_token_id is a number, a list or absent."""
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool)]


def _adds_bos(raw: RawTokenizer, settings: Mapping[str, Any], bos: int | None) -> bool:
    """What Hugging Face's own tokenizer puts before a plain text."""
    told = settings.get("add_bos_token")
    if told is not None:
        return bool(told)
    try:
        return bool(raw.encode("x").ids[:1] == [bos])
    except BaseException as error:
        if (
            type(error).__name__ != "PanicException"
        ):  # how Rust dies of a post-processor that names no token; no Exception
            raise
        raise WeightsCorrupt(f"tokenizer.json is damaged: its post-processor fails with {error}.") from error


def _chat_templates(folder: Path, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Later pairs win: a .jinja file goes before what tokenizer_config.json says."""
    old = settings.get("chat_template") or _json_or_empty(folder / "chat_template.json").get("chat_template")
    if isinstance(old, str):
        yield "default", old
    elif isinstance(old, list):
        yield from ((str(entry["name"]), str(entry["template"])) for entry in old)
    for file in sorted(folder.glob("additional_chat_templates/*.jinja")):
        yield file.stem, file.read_text(encoding="utf-8")
    new = folder / "chat_template.jinja"
    if new.is_file():
        yield "default", new.read_text(encoding="utf-8")
