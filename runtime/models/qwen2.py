"""Qwen 2 and 2.5: Llama with biases on query, key and value, which `Builder.projection` reads where a file has them."""

from ramet.runtime.models.llama import build

__all__ = ["build"]
