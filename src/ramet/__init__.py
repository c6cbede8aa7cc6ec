"""Ramet: a runtime for LLM programs.

Everything public is named here and imported on first use, so `import ramet` costs milliseconds and loads no torch.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOMES: dict[str, str] = {}
"""Public name -> module that defines it. `ramet.lang` fills the language's words in `_words`."""

__all__ = ["__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'ramet' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
