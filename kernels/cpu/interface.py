"""The C interface of the native decoder, as ctypes sees it: structures as in decoder.cpp, and prototypes."""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from typing import Literal

WeightFormat = Literal["w4", "w8", "bf16", "fp32"]
FORMATS: dict[WeightFormat, int] = {"w4": 0, "w8": 1, "bf16": 2, "fp32": 3}
"""Enum Format of gemm.h."""

SOURCES = {"Q4_0": 0, "Q4_1": 1, "Q8_0": 2, "BF16": 3, "F32": 4, "F16": 5}
"""Enum Source of pack.h."""

SLOTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Enum Slot of decoder.cpp, by Hugging Face's names."""

PHASES = ("embed", "norm", "qkv", "attend", "output", "gate_up", "down", "head")
"""Enum PhaseKind of decoder.cpp."""


class Config(Structure):
    """RametConfig."""

    _fields_ = (
        *(
            (name, c_int32)
            for name in ("num_layers", "hidden", "feed_forward", "num_heads", "num_kv_heads", "head_dim")
        ),
        *((name, c_int32) for name in ("vocabulary", "is_gelu", "embedding_source", "num_threads")),
        ("stored_head_dim", c_int32),
        *((name, c_float) for name in ("eps", "attention_scale", "attention_softcap", "final_softcap")),
        ("embedding_scale", c_float),
    )


class Layer(Structure):
    """RametLayer: addresses of float32 data that the caller keeps alive."""

    _fields_ = (
        *((name, c_void_p) for name in ("input_norm", "feed_forward_norm", "after_attention", "after_feed_forward")),
        *((name, c_void_p) for name in ("query_norm", "key_norm", "rope")),
        ("num_positions", c_int32),
        ("window", c_int32),
    )


class KVLayer(Structure):
    """KVLayer of attention.h."""

    _fields_ = tuple((name, c_void_p) for name in ("keys", "values", "key_scales", "value_scales"))


class Step(Structure):
    """RametStep."""

    _fields_ = (
        *((name, c_int32) for name in ("num_rows", "num_tokens", "num_outputs", "table_width")),
        *((name, c_void_p) for name in ("tokens", "positions", "query_offsets", "context_lengths", "page_tables")),
        *((name, c_void_p) for name in ("slots", "output_rows", "trees")),
        ("num_groups", c_int32),
        *((name, c_void_p) for name in ("group_offsets", "group_rows", "group_shared", "kv")),
        *((name, c_int32) for name in ("kv_type", "page_size", "num_pages")),
        ("logits", c_void_p),
    )


class Statistics(Structure):
    """RametStatistics."""

    _fields_ = (
        *((name, c_int64) for name in ("steps", "sleeps", "active_threads", "weight_bytes")),
        *((name, c_int64) for name in ("kv_tokens_read", "kv_tokens_seen", "kv_bytes_read")),
        ("seconds", c_double * 8),
    )


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Set argument and result types; returns the library."""
    library.ramet_error.restype = c_char_p
    library.ramet_create.argtypes, library.ramet_create.restype = [POINTER(Config)], c_void_p
    library.ramet_destroy.argtypes, library.ramet_destroy.restype = [c_void_p], None
    library.ramet_set_shared.argtypes = [c_void_p, c_void_p, c_void_p]
    library.ramet_set_layer.argtypes = [c_void_p, c_int, POINTER(Layer)]
    library.ramet_set_matrix.argtypes = [c_void_p, *[c_int] * 6, c_void_p, c_void_p]
    library.ramet_forward.argtypes = [c_void_p, POINTER(Step)]
    library.ramet_statistics.argtypes, library.ramet_statistics.restype = [c_void_p, POINTER(Statistics)], None
    library.ramet_ceilings.argtypes = [c_void_p, POINTER(c_double), POINTER(c_double)]
    library.ramet_ceilings.restype = None
    library.ramet_limit_threads.argtypes, library.ramet_limit_threads.restype = [c_void_p, c_int], None
    return library
