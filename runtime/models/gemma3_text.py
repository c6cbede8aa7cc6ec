"""Gemma 3, text: what each half of a layer adds is normed too, norms count from 1, queries and keys are normed,
embeddings are scaled by sqrt(d), and most layers see a window and rotate with a base of their own."""

from ramet.runtime.models.layers import Builder, Decoder, Layer
from ramet.runtime.models.rope import rope_table

_OFFSET = 1.0
"""A stored norm weight w means 1 + w."""


def build(builder: Builder, num_positions: int) -> Decoder:
    """The model, for positions below `num_positions`."""
    config, device = builder.config, builder.placement.device
    rope = rope_table(config.rope, config.head_dim, num_positions).to(device)
    local = rope_table(config.local_rope or config.rope, config.head_dim, num_positions).to(device)
    layers = []
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}"
        query_norm, key_norm = (
            builder.norm(f"{prefix}.self_attn.{name}_norm", _OFFSET, config.head_dim) for name in "qk"
        )
        table = rope if config.window(index) is None else local
        layers.append(
            Layer(
                input_norm=builder.norm(f"{prefix}.input_layernorm", _OFFSET),
                attention=builder.attention(index, table, query_norm=query_norm, key_norm=key_norm),
                after_attention_norm=builder.norm(f"{prefix}.post_attention_layernorm", _OFFSET),
                feed_forward_norm=builder.norm(f"{prefix}.pre_feedforward_layernorm", _OFFSET),
                feed_forward=builder.feed_forward(index),
                after_feed_forward_norm=builder.norm(f"{prefix}.post_feedforward_layernorm", _OFFSET),
            )
        )
    return builder.decoder(layers, norm_offset=_OFFSET, embedding_scale=config.hidden_size**0.5)
