"""Qwen 3: Llama whose queries and keys are normed, head by head, before they are rotated."""

from ramet.runtime.models.layers import Builder, Decoder, Layer
from ramet.runtime.models.rope import rope_table


def build(builder: Builder, num_positions: int) -> Decoder:
    """The model, for positions below `num_positions`."""
    config = builder.config
    rope = rope_table(config.rope, config.head_dim, num_positions).to(builder.placement.device)
    layers = []
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}"
        query_norm, key_norm = (builder.norm(f"{prefix}.self_attn.{name}_norm", size=config.head_dim) for name in "qk")
        layers.append(
            Layer(
                input_norm=builder.norm(f"{prefix}.input_layernorm"),
                attention=builder.attention(index, rope, query_norm=query_norm, key_norm=key_norm),
                feed_forward_norm=builder.norm(f"{prefix}.post_attention_layernorm"),
                feed_forward=builder.feed_forward(index),
            )
        )
    return builder.decoder(layers)
