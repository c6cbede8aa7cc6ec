"""Llama 2 and 3, SmolLM2, Mistral (the same with a sliding window). The plain form of the family; nothing peculiar."""

from ramet.runtime.models.layers import Builder, Decoder, Layer
from ramet.runtime.models.rope import rope_table


def build(builder: Builder, num_positions: int) -> Decoder:
    """The model, for positions below `num_positions`."""
    config = builder.config
    rope = rope_table(config.rope, config.head_dim, num_positions).to(builder.placement.device)
    return builder.decoder([
        Layer(
            input_norm=builder.norm(f"model.layers.{index}.input_layernorm"),
            attention=builder.attention(index, rope),
            feed_forward_norm=builder.norm(f"model.layers.{index}.post_attention_layernorm"),
            feed_forward=builder.feed_forward(index),
        )
        for index in range(config.num_layers)
    ])  # fmt: skip
