"""The native CPU decoder as a Model: weights packed once, one call into C++ a step, no tensor allocated but the logits.

It knows files only through a WeightReader and kernels only through kernels/cpu. `build_native` packs what a family's
file has into the formats of kernels/cpu/gemm.h; `NativeModel.forward` hands over pointers. Heads whose size is no
multiple of 32 get rows and columns of zeros up to the next one, in the weights and not in the KV pool. What the C++
does not do (a hidden size that is no multiple of 32) raises NotBuilt when it is built, and `build_for_cpu` takes the
torch model.
"""

import ctypes
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from ramet.kernels.cpu import interface
from ramet.kernels.cpu.build import load_library
from ramet.kernels.cpu.interface import FORMATS, SLOTS, SOURCES, WeightFormat
from ramet.runtime.errors import EngineFailed, NotBuilt
from ramet.runtime.models.base import Model, QuantizedTensor, WeightReader
from ramet.runtime.models.batch import KVPool, StepBatch
from ramet.runtime.models.config import ModelConfig
from ramet.runtime.models.registry import build_model
from ramet.runtime.models.rope import rope_table

log = logging.getLogger(__name__)

FormatChoice = Literal["auto", "w4", "w8", "bf16", "fp32"]

_PLAIN_SOURCES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
KV_DTYPES = {torch.bfloat16: 0, torch.float32: 1, torch.int8: 2}


def build_native(
    config: ModelConfig,
    source: WeightReader,
    *,
    weight_format: FormatChoice = "auto",
    threads: int | None = None,
    num_positions: int | None = None,
    variant: str | None = None,
) -> "NativeModel":
    """Pack the weights of `source` for this CPU. NotBuilt where the native code can't be built or can't run the model.

    weight_format  "auto" keeps what the file has: 4-bit and 8-bit ggml blocks code by code (other blocks become w8),
                   plain numbers bf16. "w4", "w8", "bf16" and "fp32" convert; the output matrix never goes under 8 bits.
                   Products with w4 and w8 weights take activations as int8 per block of 32.
    threads        None: the CPUs that this process may use
    num_positions  positions that can be computed; None: the model's context length
    variant        a build of kernels/cpu/build.py by name; None: the best that this CPU runs
    """
    _refuse_what_is_not_built(config)
    library = interface.declare(load_library(variant))
    packer = _Packer(config, source, weight_format, library, threads or _usable_cpus())
    packer.pack(num_positions or config.context_length)
    return packer.model


def build_for_cpu(
    config: ModelConfig,
    source: WeightReader,
    *,
    weight_format: FormatChoice = "auto",
    threads: int | None = None,
    num_positions: int | None = None,
) -> Model:
    """The native model, or, with one log line that says why, the torch model in bfloat16 (float32 for "fp32")."""
    try:
        return build_native(config, source, weight_format=weight_format, threads=threads, num_positions=num_positions)
    except NotBuilt as reason:
        log.warning("running on torch, which is slower: %s", reason)
        dtype = torch.float32 if weight_format == "fp32" else torch.bfloat16
        return build_model(config, source, dtype=dtype, num_positions=num_positions)


def _refuse_what_is_not_built(config: ModelConfig) -> None:
    if config.head_dim % 2:
        raise NotBuilt(f"a head size of {config.head_dim}", hint="Rotary embedding pairs channels.")
    sizes = {
        "hidden size": config.hidden_size,
        "feed-forward size": config.intermediate_size,
    }
    for name, size in sizes.items():
        if size % 32:
            raise NotBuilt(f"the native CPU path for a {name} of {size}", hint="It takes multiples of 32.")


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class NativeModel:
    """A decoder whose step is one native call. Implements `Model`. Calls from several threads queue."""

    def __init__(self, config: ModelConfig, library: ctypes.CDLL, handle: int, kept: list[Tensor]) -> None:
        self.config = config
        self._library, self._handle = library, handle
        self._kept = kept
        """Embedding, norms, biases and rotary tables: the native side holds their addresses."""
        self._pool: KVPool | None = None
        self._pool_layers: ctypes.Array[interface.KVLayer] | None = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.ramet_destroy(self._handle)

    def weight_bytes(self) -> int:
        """What the packed weights take in memory."""
        return int(self._read_statistics().weight_bytes)

    def statistics(self) -> Mapping[str, float]:
        """Since start: steps, sleeps of waiting threads, KV tokens read and seen, KV bytes read, seconds per kind of
        phase; and the threads of the last step.

        kv_tokens_seen counts the keys of every row; kv_tokens_read counts shared ones once: their ratio is what fork
        groups save. kv_bytes_read is counted where attention reads pages, in every layer and head.
        """
        raw = self._read_statistics()
        counts = {
            name: int(getattr(raw, name))
            for name in ("steps", "sleeps", "active_threads", "kv_tokens_read", "kv_tokens_seen", "kv_bytes_read")
        }
        return counts | {f"{name}_s": raw.seconds[i] for i, name in enumerate(interface.PHASES)}

    def measure_ceilings(self) -> tuple[float, float]:
        """What this machine does at most: bytes read per second, int8 multiply-adds per second. Takes half a second."""
        read, int8 = ctypes.c_double(), ctypes.c_double()
        self._library.ramet_ceilings(self._handle, ctypes.byref(read), ctypes.byref(int8))
        return read.value, int8.value

    def limit_threads(self, num: int) -> None:
        """Use at most so many threads from the next step on."""
        self._library.ramet_limit_threads(self._handle, num)

    def forward(self, batch: StepBatch, kv: KVPool) -> Tensor:
        """float32 [O, V]; see `Model`."""
        logits = torch.empty((len(batch.output_rows), self.config.vocab_size), dtype=torch.float32)
        pool = self._layers_of(kv)
        trees, groups = _Trees(batch), _Groups(batch)
        step = interface.Step(
            num_rows=len(batch.context_lengths),
            num_tokens=len(batch.tokens),
            num_outputs=len(batch.output_rows),
            table_width=batch.page_tables.shape[1],
            tokens=_address(batch.tokens, torch.int64),
            positions=_address(batch.positions, torch.int64),
            query_offsets=_address(batch.query_offsets, torch.int32),
            context_lengths=_address(batch.context_lengths, torch.int32),
            page_tables=_address(batch.page_tables, torch.int32),
            slots=_address(batch.slots, torch.int64),
            output_rows=_address(batch.output_rows, torch.int64),
            trees=trees.address,
            num_groups=groups.count,
            group_offsets=groups.offsets,
            group_rows=groups.rows,
            group_shared=groups.shared,
            kv=ctypes.addressof(pool),
            kv_type=KV_DTYPES[kv.dtype],
            page_size=kv.page_size,
            num_pages=kv.keys[0].shape[0],
            logits=logits.data_ptr(),
        )
        code = self._library.ramet_forward(self._handle, ctypes.byref(step))
        if code != 0:
            raise EngineFailed(f"native step refused: {self._library.ramet_error().decode()} ({code})")
        return logits

    def _read_statistics(self) -> interface.Statistics:
        raw = interface.Statistics()
        self._library.ramet_statistics(self._handle, ctypes.byref(raw))
        return raw

    def _layers_of(self, kv: KVPool) -> "ctypes.Array[interface.KVLayer]":
        """Addresses of the pool's layers; a pool is checked when it is first met."""
        if self._pool is kv and self._pool_layers is not None:
            return self._pool_layers
        config = self.config
        shape = (config.num_kv_heads, config.head_dim)
        if kv.dtype not in KV_DTYPES or len(kv.keys) != config.num_layers:
            raise EngineFailed(
                f"KV pool of {len(kv.keys)} layers, {kv.dtype}: the model has {config.num_layers} layers"
            )
        for tensor in (*kv.keys, *kv.values):
            if tuple(tensor.shape[2:]) != shape or not tensor.is_contiguous() or tensor.device.type != "cpu":
                raise EngineFailed(
                    f"KV pool layer {tuple(tensor.shape)}: expected contiguous [N, S, {shape}] on the CPU"
                )
        layers = (interface.KVLayer * config.num_layers)()
        for layer, keys, values in zip(layers, kv.keys, kv.values, strict=True):
            layer.keys, layer.values = keys.data_ptr(), values.data_ptr()
        for name in ("key_scales", "value_scales"):
            for layer, scales in zip(layers, getattr(kv, name, None) or (), strict=False):
                setattr(layer, name, _address(scales, torch.float16))
        self._pool, self._pool_layers = kv, layers
        return layers


class _Trees:
    """Tree masks as an array of addresses, one per row; keeps them alive for the call."""

    def __init__(self, batch: StepBatch) -> None:
        self.address: int | None = None
        if not batch.tree_masks:
            return
        self.masks = {row: mask.to(torch.uint8).contiguous() for row, mask in batch.tree_masks.items()}
        self.array = (ctypes.c_void_p * len(batch.context_lengths))()
        for row, mask in self.masks.items():
            self.array[row] = mask.data_ptr()
        self.address = ctypes.addressof(self.array)


class _Groups:
    """Fork groups as three int32 arrays."""

    def __init__(self, batch: StepBatch) -> None:
        self.count = len(batch.groups)
        self.offsets = self.rows = self.shared = None
        if not self.count:
            return
        offsets = [0]
        for group in batch.groups:
            offsets.append(offsets[-1] + len(group.rows))
        rows = [row for group in batch.groups for row in group.rows]
        shared = [group.num_shared_tokens for group in batch.groups]
        self.tensors = [torch.tensor(values, dtype=torch.int32) for values in (offsets, rows, shared)]
        self.offsets, self.rows, self.shared = (tensor.data_ptr() for tensor in self.tensors)


def _address(tensor: Tensor, dtype: torch.dtype) -> int:
    if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise EngineFailed(
            f"native step: expected contiguous {dtype} on the CPU, got {tensor.dtype} on {tensor.device}"
        )
    return tensor.data_ptr()


class _Packer:
    """Reads one model's tensors and hands them to the native side."""

    def __init__(
        self, config: ModelConfig, source: WeightReader, choice: FormatChoice, library: ctypes.CDLL, threads: int
    ) -> None:
        self.config, self.source, self.choice, self.library = config, source, choice, library
        self.kept: list[Tensor] = []
        self.is_gemma = config.model_type == "gemma3_text"
        self.norm_offset = 1.0 if self.is_gemma else 0.0
        embedding, kind = self._embedding()
        self.handle = library.ramet_create(ctypes.byref(self._native_config(kind, threads)))
        self.model = NativeModel(config, library, self.handle, self.kept)
        library.ramet_set_shared(self.handle, embedding, self._norm("model.norm.weight"))

    def pack(self, num_positions: int) -> None:
        """All layers and the head."""
        tables = {
            is_local: self._keep(rope_table(rope, self.config.head_dim, num_positions))
            for is_local, rope in ((False, self.config.rope), (True, self.config.local_rope))
            if rope is not None
        }
        for index in range(self.config.num_layers):
            window = self.config.window(index)
            rope = tables[window is not None and True in tables]
            layer = self._small_tensors(f"model.layers.{index}", rope, num_positions, window)
            self._check(self.library.ramet_set_layer(self.handle, index, ctypes.byref(layer)))
            for slot, name in enumerate(SLOTS):
                part = "self_attn" if slot < 4 else "mlp"
                self._matrix(index, slot, f"model.layers.{index}.{part}.{name}")
        tied = self.config.tie_word_embeddings
        self._matrix(-1, 0, "model.embed_tokens" if tied else "lm_head")

    def _native_config(self, embedding_kind: str, threads: int) -> interface.Config:
        config = self.config
        # rounded as the weights were where the model was trained
        dtype = torch.float32 if self.choice == "fp32" else torch.bfloat16
        scale = torch.tensor(config.hidden_size**0.5, dtype=dtype).item() if self.is_gemma else 1.0
        return interface.Config(
            num_layers=config.num_layers,
            hidden=config.hidden_size,
            feed_forward=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=_padded(config.head_dim),
            stored_head_dim=config.head_dim,
            vocabulary=config.vocab_size,
            is_gelu=config.activation == "gelu_tanh",
            embedding_source=SOURCES[embedding_kind],
            num_threads=threads,
            eps=config.rms_norm_eps,
            attention_scale=config.scale,
            attention_softcap=config.attention_softcap or 0.0,
            final_softcap=config.final_softcap or 0.0,
            embedding_scale=scale,
        )

    def _embedding(self) -> tuple[int, str]:
        """Rows as the file has them where the native side reads that kind, else bfloat16."""
        raw = self.source.read_raw("model.embed_tokens.weight")
        if isinstance(raw, QuantizedTensor):
            if raw.type == "Q8_0":
                return self._keep_any(raw.blocks), "Q8_0"
            raw = self.source.read("model.embed_tokens.weight", torch.bfloat16)
        if raw.dtype not in _PLAIN_SOURCES:
            raw = raw.to(torch.bfloat16)
        return self._keep_any(raw), _PLAIN_SOURCES[raw.dtype]

    def _small_tensors(self, prefix: str, rope: int, num_positions: int, window: int | None) -> interface.Layer:
        feed_forward = "pre_feedforward_layernorm" if self.is_gemma else "post_attention_layernorm"
        optional = {
            "after_attention": f"{prefix}.post_attention_layernorm.weight" if self.is_gemma else None,
            "after_feed_forward": f"{prefix}.post_feedforward_layernorm.weight" if self.is_gemma else None,
            "query_norm": f"{prefix}.self_attn.q_norm.weight",
            "key_norm": f"{prefix}.self_attn.k_norm.weight",
        }
        return interface.Layer(
            input_norm=self._norm(f"{prefix}.input_layernorm.weight"),
            feed_forward_norm=self._norm(f"{prefix}.{feed_forward}.weight"),
            rope=rope,
            num_positions=num_positions,
            window=window or 0,
            **{field: self._norm(name) for field, name in optional.items() if name and self.source.has(name)},
        )

    def _norm(self, name: str) -> int:
        weight = self.source.read(name, torch.float32) + self.norm_offset
        is_of_heads = name.endswith(("q_norm.weight", "k_norm.weight"))
        return self._keep(_pad_heads(weight[None], self.config.head_dim, axis=1) if is_of_heads else weight)

    def _matrix(self, layer: int, slot: int, name: str) -> None:
        """Pack one matrix, in the format that the choice and the file lead to."""
        raw = self.source.read_raw(f"{name}.weight")
        rows, kind, target = self._rows(name, raw, is_head=layer < 0)
        columns = raw.shape[1]
        bias = self.source.read(f"{name}.bias", torch.float32) if self.source.has(f"{name}.bias") else None
        size = self.config.head_dim
        if size % HEAD_UNIT and layer >= 0 and SLOTS[slot] in ("q_proj", "k_proj", "v_proj"):
            rows = _pad_heads(rows, size, axis=0)  # ggml blocks of zeros are zeros too
            bias = None if bias is None else _pad_heads(bias, size, axis=0)
        if size % HEAD_UNIT and layer >= 0 and SLOTS[slot] == "o_proj":
            rows = _pad_heads(
                self.source.read(f"{name}.weight", torch.float32), size, axis=1
            )  # blocks would straddle heads
            kind, target, columns = "F32", "w8" if target == "w4" else target, rows.shape[1]
        address = None if bias is None else self._keep(bias)
        code = self.library.ramet_set_matrix(
            self.handle, layer, slot, FORMATS[target], SOURCES[kind], len(rows), columns, rows.data_ptr(), address
        )
        self._check(code)

    def _rows(self, name: str, raw: QuantizedTensor | Tensor, *, is_head: bool) -> tuple[Tensor, str, WeightFormat]:
        """The rows to pack, what they are, and what they become."""
        has = _NATURAL_FORMAT.get(raw.type, "w8") if isinstance(raw, QuantizedTensor) else "bf16"
        target = has if self.choice == "auto" else self.choice
        if is_head and target == "w4":
            target = "w8"
        if isinstance(raw, QuantizedTensor):
            if raw.type in _NATURAL_FORMAT and _NATURAL_FORMAT[raw.type] == target:
                return raw.blocks.contiguous(), raw.type, target
            raw = self.source.read(f"{name}.weight", torch.float32)
        if raw.dtype not in _PLAIN_SOURCES:
            raw = raw.float()
        return raw.contiguous(), _PLAIN_SOURCES[raw.dtype], target

    def _keep(self, tensor: Tensor) -> int:
        return self._keep_any(tensor.float())

    def _keep_any(self, tensor: Tensor) -> int:
        self.kept.append(tensor.contiguous())
        return self.kept[-1].data_ptr()

    def _check(self, code: int) -> None:
        if code != 0:
            raise NotBuilt(f"the native CPU path for this model: {self.library.ramet_error().decode()}")


HEAD_UNIT = 32
"""The C++ computes heads whose size is a multiple of this."""


def _padded(size: int) -> int:
    return -(-size // HEAD_UNIT) * HEAD_UNIT


def _pad_heads(tensor: Tensor, size: int, *, axis: int) -> Tensor:
    """Zeros behind each run of `size` along an axis, up to a multiple of HEAD_UNIT."""
    before, behind = tensor.shape[:axis], tensor.shape[axis + 1 :]
    heads = tensor.reshape(*before, -1, size, *behind)
    shape = list(heads.shape)
    shape[axis + 1] = _padded(size) - size
    return torch.cat([heads, heads.new_zeros(shape)], dim=axis + 1).flatten(axis, axis + 1).contiguous()


_NATURAL_FORMAT: Mapping[str, WeightFormat] = {"Q4_0": "w4", "Q4_1": "w4", "Q8_0": "w8"}
"""ggml types whose codes are kept as they are."""

__all__: Sequence[str] = ("FormatChoice", "NativeModel", "build_for_cpu", "build_native")
