"""What the families share: projections, attention over pages, gated feed-forward, and the body that stacks them.

Knows no family: a model file says which norms and tables a layer has. Weights are plain tensors in frozen records;
every op is a function of `ramet.kernels`, so a faster backend changes nothing here. Query, key and value projections
are one matrix, so are gate and up: fewer, larger products.

Letters as in batch.py, and d hidden size, F feed-forward width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor

from ramet.kernels.gated import geglu, swiglu
from ramet.kernels.kv_quantize import kv_write_int8
from ramet.kernels.kv_write import rope_kv_write
from ramet.kernels.rmsnorm import rms_norm
from ramet.kernels.rope import rope
from ramet.kernels.step_attention import StepAttention, plan_attention
from ramet.runtime.errors import WeightsCorrupt
from ramet.runtime.models.base import WeightReader
from ramet.runtime.models.batch import KVPool, StepBatch
from ramet.runtime.models.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where weights go, and as what."""

    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """y = x W^T + b."""

    weight: Tensor
    """[out, in]"""
    bias: Tensor | None = None
    """[out]"""

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """y = x / rms(x) * (offset + weight)."""

    weight: Tensor
    eps: float
    offset: float = 0.0

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Norm of x, or of residual + x, which is then stored in `residual`."""
        return rms_norm(x, self.weight, eps=self.eps, residual=residual, offset=self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Grouped-query attention of one layer."""

    index: int
    """Its place in the KV pool"""
    qkv: Projection
    """[(H + 2G) D, d]"""
    output: Projection
    """[d, H D]"""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: Tensor
    """float32 [M, 2, D / 2], shared by layers"""
    window: int | None = None
    soft_cap: float | None = None
    query_norm: Norm | None = None
    """Over each head, before the rotation"""
    key_norm: Norm | None = None

    def __call__(self, x: Tensor, batch: StepBatch, kv: KVPool, attend: StepAttention) -> Tensor:
        """x, result: [T, d]."""
        H, G, D = self.num_heads, self.num_kv_heads, self.head_dim
        fused = self.qkv(x).view(-1, H + 2 * G, D)
        q, key, value = fused[:, :H], fused[:, H : H + G], fused[:, H + G :]
        if self.query_norm is not None and self.key_norm is not None:
            q, key = self.query_norm(q), self.key_norm(key)
        keys, values = kv.keys[self.index], kv.values[self.index]
        if kv.key_scales is None or kv.value_scales is None:
            rope_kv_write(q, key, value, batch.positions, self.rope, keys, values, batch.slots)
            seen = attend(q, keys, values, scale=self.scale, window=self.window, soft_cap=self.soft_cap)
        else:
            scales = kv.key_scales[self.index], kv.value_scales[self.index]
            rope(q, key, batch.positions, self.rope)
            kv_write_int8(key, value, keys, values, *scales, batch.slots)
            seen = attend(
                q, keys, values, scale=self.scale, window=self.window, soft_cap=self.soft_cap,
                key_scales=scales[0], value_scales=scales[1],
            )  # fmt: skip
        return self.output(seen.view(-1, H * D))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """down(act(gate(x)) * up(x))."""

    gate_up: Projection
    """[2F, d]"""
    down: Projection
    """[d, F]"""
    is_gelu: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        fused = self.gate_up(x)
        return self.down(geglu(fused) if self.is_gelu else swiglu(fused))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A pre-norm transformer layer; Gemma also norms what each half adds."""

    input_norm: Norm
    attention: Attention
    feed_forward_norm: Norm
    feed_forward: FeedForward
    after_attention_norm: Norm | None = None
    after_feed_forward_norm: Norm | None = None

    def __call__(
        self, delta: Tensor | None, residual: Tensor, batch: StepBatch, kv: KVPool, attend: StepAttention
    ) -> Tensor:
        """Adds `delta`, the layer before's result, to `residual` in place, and returns what this layer adds to it."""
        x = self.input_norm(residual) if delta is None else self.input_norm(delta, residual)
        delta = self.attention(x, batch, kv, attend)
        if self.after_attention_norm is not None:
            delta = self.after_attention_norm(delta)
        delta = self.feed_forward(self.feed_forward_norm(delta, residual))
        return delta if self.after_feed_forward_norm is None else self.after_feed_forward_norm(delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The body: embed, layers, norm, logits. Implements `Model`."""

    config: ModelConfig
    embedding: Tensor
    """[V, d]"""
    layers: Sequence[Layer]
    norm: Norm
    head: Projection
    """[V, d]; the embedding itself where they are tied"""
    embedding_scale: float = 1.0

    def weight_bytes(self) -> int:
        """What the weights take in memory, each once."""
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in _tensors(self)}.values())

    @torch.inference_mode()
    def forward(self, batch: StepBatch, kv: KVPool) -> Tensor:
        """float32 [O, V]; see `Model`."""
        residual = torch.nn.functional.embedding(batch.tokens, self.embedding)  # [T, d]
        if self.embedding_scale != 1.0:
            residual *= self.embedding_scale
        attend = plan_attention(
            batch.query_offsets, batch.context_lengths, batch.page_tables, page_size=kv.page_size, groups=batch.groups,
            tree_masks=batch.tree_masks, positions=batch.positions,
        )  # fmt: skip
        delta: Tensor | None = None
        for layer in self.layers:
            delta = layer(delta, residual, batch, kv, attend)
        assert delta is not None
        wanted = batch.output_rows
        logits = self.head(self.norm(delta[wanted], residual[wanted])).float()
        cap = self.config.final_softcap
        return logits if cap is None else (logits / cap).tanh_().mul_(cap)


class Builder:
    """Reads one model's weights into layers; a model file composes what it gives."""

    def __init__(self, config: ModelConfig, weights: WeightReader, placement: Placement) -> None:
        self.config, self.weights, self.placement = config, weights, placement

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The tensor on its device; WeightsCorrupt where its shape is not what the config says."""
        tensor = self.weights.read(name, self.placement.dtype)
        if tuple(tensor.shape) != shape:
            raise WeightsCorrupt(
                f"{name} has shape {tuple(tensor.shape)}, expected {shape}: config and weights are of different models."
            )
        return tensor.to(self.placement.device)

    def norm(self, name: str, offset: float = 0.0, size: int | None = None) -> Norm:
        """Over the last axis, of `size` (None: the hidden size)."""
        weight = self.tensor(f"{name}.weight", self.config.hidden_size if size is None else size)
        return Norm(weight=weight, eps=self.config.rms_norm_eps, offset=offset)

    def projection(self, inputs: int, **outputs: int) -> Projection:
        """One matrix of several (`outputs`: name -> rows), stacked; with biases where the file has them."""
        weight = _stacked([self.tensor(f"{name}.weight", rows, inputs) for name, rows in outputs.items()])
        biases = {name: rows for name, rows in outputs.items() if self.weights.has(f"{name}.bias")}
        if not biases:
            return Projection(weight=weight)
        bias = _stacked([self.tensor(f"{name}.bias", rows) for name, rows in outputs.items()])
        return Projection(weight=weight, bias=bias)

    def attention(
        self, index: int, rope: Tensor, *, query_norm: Norm | None = None, key_norm: Norm | None = None
    ) -> Attention:
        config, prefix = self.config, f"model.layers.{index}.self_attn"
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        qkv = {f"{prefix}.q_proj": queries, f"{prefix}.k_proj": keys, f"{prefix}.v_proj": keys}
        return Attention(
            index=index,
            qkv=self.projection(config.hidden_size, **qkv),
            output=self.projection(queries, **{f"{prefix}.o_proj": config.hidden_size}),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.scale,
            rope=rope,
            window=config.window(index),
            soft_cap=config.attention_softcap,
            query_norm=query_norm,
            key_norm=key_norm,
        )

    def feed_forward(self, index: int) -> FeedForward:
        config, prefix = self.config, f"model.layers.{index}.mlp"
        gate_up = {f"{prefix}.{name}_proj": config.intermediate_size for name in ("gate", "up")}
        return FeedForward(
            gate_up=self.projection(config.hidden_size, **gate_up),
            down=self.projection(config.intermediate_size, **{f"{prefix}.down_proj": config.hidden_size}),
            is_gelu=config.activation == "gelu_tanh",
        )

    def decoder(self, layers: Sequence[Layer], *, norm_offset: float = 0.0, embedding_scale: float = 1.0) -> Decoder:
        config = self.config
        shape = (config.vocab_size, config.hidden_size)
        embedding = self.tensor("model.embed_tokens.weight", *shape)
        return Decoder(
            config=config,
            embedding=embedding,
            layers=layers,
            norm=self.norm("model.norm", norm_offset),
            head=Projection(weight=embedding if config.tie_word_embeddings else self.tensor("lm_head.weight", *shape)),
            # rounded as the weights are: the scale is one of them where the model was trained
            embedding_scale=torch.tensor(embedding_scale, dtype=self.placement.dtype).item(),
        )


def _tensors(part: object) -> Iterator[Tensor]:
    """Every weight below a record, a list of records, or a tensor. Rotary tables are no weights."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, list | tuple):
        for item in part:
            yield from _tensors(item)
    elif is_dataclass(part):
        for field in fields(part):
            if field.name not in ("rope", "config"):
                yield from _tensors(getattr(part, field.name))


def _stacked(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
