"""A GGUF file as a weight source: its tensors by Hugging Face's names, dequantised or as blocks.

Two things the format does are undone. Llama files store query and key rows with the halves of each head interleaved
(for ggml's rotary form): rows go back to Hugging Face's order, which works on blocks too, since a block never spans
rows. Gemma files store 1 + w as norm weights: 1 is taken off.
"""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ramet.runtime.errors import UnsupportedModel, WeightsCorrupt
from ramet.runtime.models.base import QuantizedTensor
from ramet.runtime.models.config import ModelConfig, config_from_gguf
from ramet.runtime.tokenizer import Tokenizer
from ramet.runtime.weights.ggml import PLAIN_TYPES, dequantize
from ramet.runtime.weights.gguf import GgufFile, TensorRecord, open_gguf
from ramet.runtime.weights.gguf_tokenizer import tokenizer_from_gguf

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_IN_GEMMA_LAYER = _IN_LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_TEMPLATE = "tokenizer.chat_template"
_ROPE_DIVISORS = "rope_freqs.weight"


class GgufSource:
    """One GGUF file, mapped. See WeightSource."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: GgufFile = open_gguf(path)
        _refuse_parts(self._file)
        self._records = _by_huggingface_name(self._file)
        self.config: ModelConfig = self._read_config()

    def _read_config(self) -> ModelConfig:
        embedding = self._record("model.embed_tokens.weight")
        divisors = self._file.tensors.get(_ROPE_DIVISORS)
        return config_from_gguf(
            self._file.metadata,
            vocab_size=embedding.shape[0],
            has_output="lm_head.weight" in self._records,
            rope_divisors=self._numbers(divisors, torch.float32).tolist() if divisors is not None else (),
        )

    # ---- tensors

    def names(self) -> Sequence[str]:
        return list(self._records)

    def has(self, name: str) -> bool:
        return name in self._records

    def num_bytes(self, name: str) -> int:
        return self._record(name).num_bytes

    def num_parameters(self) -> int:
        return sum(math.prod(record.shape) for record in self._records.values())

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """Numbers, dequantised in float32 and rounded to `dtype` once. A fresh tensor."""
        record = self._record(name)
        if self._counts_from_one(name):  # in float32: 1.01 has lost most of its 0.01 once it is rounded
            return self._undo(name, self._numbers(record, torch.float32)).to(dtype)
        return self._undo(name, self._numbers(record, dtype))

    def read_raw(self, name: str) -> QuantizedTensor | Tensor:
        """ggml blocks where the tensor is quantised, else numbers in the file's dtype."""
        record = self._record(name)
        if record.type.name in PLAIN_TYPES:
            return self._undo(name, self._numbers(record, PLAIN_TYPES[record.type.name]))
        rows, columns = record.shape if len(record.shape) == 2 else (1, math.prod(record.shape))
        blocks = self._undo(name, self._bytes(record).view(rows, -1))
        return QuantizedTensor(blocks, record.type.name, (rows, columns))

    def _record(self, name: str) -> TensorRecord:
        try:
            return self._records[name]
        except KeyError:
            raise WeightsCorrupt(f"{self.path} has no tensor for {name!r}; its architecture needs one.") from None

    def _bytes(self, record: TensorRecord) -> Tensor:
        return torch.frombuffer(self._file.data, dtype=torch.uint8, count=record.num_bytes, offset=record.offset)

    def _numbers(self, record: TensorRecord, dtype: torch.dtype) -> Tensor:
        plain = PLAIN_TYPES.get(record.type.name)
        if plain is not None:
            return self._bytes(record).view(plain).view(record.shape).to(dtype, copy=True)
        out = torch.empty(record.shape, dtype=dtype)
        dequantize(self._bytes(record), record.type, out)
        return out

    def _undo(self, name: str, tensor: Tensor) -> Tensor:
        """Back to Hugging Face's rows and norms. Works on numbers and on rows of blocks."""
        if self._counts_from_one(name):
            return tensor - 1
        heads = {"q_proj": self.config.num_heads, "k_proj": self.config.num_kv_heads}.get(name.split(".")[-2])
        if heads is None or self.config.model_type != "llama":
            return tensor
        if len(tensor) % (2 * heads):
            raise WeightsCorrupt(f"{self.path}: {name} has {len(tensor)} rows, which {heads} heads can't share.")
        return _without_interleaving(tensor, heads)

    def _counts_from_one(self, name: str) -> bool:
        """Gemma files store 1 + w as a norm's weight w."""
        return self.config.model_type == "gemma3_text" and name.endswith("norm.weight")

    # ---- what comes with the tensors

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """`tokenizer.chat_template` is the default; `tokenizer.chat_template.NAME` are further ones."""
        named = {
            key.removeprefix(_TEMPLATE + "."): str(text)
            for key, text in self._file.metadata.items()
            if key.startswith(_TEMPLATE + ".")
        }
        default = self._file.metadata.get(_TEMPLATE)
        return named if default is None else {**named, "default": str(default)}

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return tokenizer_from_gguf(self._file.metadata)

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def generation_end_ids(self) -> Sequence[int]:
        return self._tokenizer.end_ids


def _refuse_parts(file: GgufFile) -> None:
    count = file.metadata.get("split.count", 0)
    if isinstance(count, int) and count > 1:
        raise UnsupportedModel(
            f"{file.path} is one of {count} parts. Join them first: llama-gguf-split --merge FIRST_PART WHOLE.gguf"
        )


def _by_huggingface_name(file: GgufFile) -> dict[str, TensorRecord]:
    in_layer = _IN_GEMMA_LAYER if file.metadata.get("general.architecture") == "gemma3" else _IN_LAYER
    named: dict[str, TensorRecord] = {}
    for name, record in file.tensors.items():
        inside = _LAYER_TENSOR.fullmatch(name)
        if name in _OUTSIDE:
            named[_OUTSIDE[name]] = record
        elif inside and inside[2] in in_layer:
            named[f"model.layers.{inside[1]}.{in_layer[inside[2]]}.{inside[3]}"] = record
    return named


def _without_interleaving(rows: Tensor, num_heads: int) -> Tensor:
    """[heads * D, ...] with each head's rows as (0, D/2), (1, D/2 + 1), ... -> 0, 1, ..., D/2, D/2 + 1, ..."""
    tail = rows.shape[1:]
    return rows.view(num_heads, -1, 2, *tail).transpose(1, 2).reshape(rows.shape)
