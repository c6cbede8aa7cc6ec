"""Ramet: a runtime for LLM programs.

Everything public is named here and imported on first use, so `import ramet` costs milliseconds and loads no torch.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from ramet.version import __version__

if TYPE_CHECKING:
    from ramet.lang.api import (
        assistant,
        assistant_begin,
        assistant_end,
        gen,
        gen_int,
        gen_string,
        greedy_token_selection,
        image,
        role,
        select,
        separate_reasoning,
        system,
        system_begin,
        system_end,
        token_length_normalized,
        tool,
        tool_begin,
        tool_end,
        unconditional_likelihood_normalized,
        user,
        user_begin,
        user_end,
        video,
    )
    from ramet.lang.backends.local import Engine
    from ramet.lang.backends.openai_compatible import OpenAI
    from ramet.lang.backends.remote import RuntimeEndpoint
    from ramet.lang.backends.scripted import Scripted
    from ramet.lang.calls import ToolCall
    from ramet.lang.defaults import flush_cache, get_default_backend, set_default_backend
    from ramet.lang.forks import AsyncForks, Forks
    from ramet.lang.program import Program, function
    from ramet.lang.state import AsyncState, State
    from ramet.lang.tools import Tool, ToolResult, describe_tools
    from ramet.lang.trace import show_tree

    Runtime = Engine

_WORDS = {
    "ramet.lang.api": """assistant assistant_begin assistant_end gen gen_int gen_string greedy_token_selection image
        role select separate_reasoning system system_begin system_end token_length_normalized tool tool_begin tool_end
        unconditional_likelihood_normalized user user_begin user_end video""",
    "ramet.lang.backends.local": "Engine",
    "ramet.lang.backends.openai_compatible": "OpenAI",
    "ramet.lang.backends.remote": "RuntimeEndpoint",
    "ramet.lang.backends.scripted": "Scripted",
    "ramet.lang.defaults": "flush_cache get_default_backend set_default_backend",
    "ramet.lang.program": "Program function",
    "ramet.lang.forks": "AsyncForks Forks",
    "ramet.lang.state": "AsyncState State",
    "ramet.lang.calls": "ToolCall",
    "ramet.lang.tools": "Tool ToolResult describe_tools",
    "ramet.lang.trace": "show_tree",
}
_HOMES = {name: home for home, names in _WORDS.items() for name in names.split()}
"""Public name -> module that defines it."""
_ALIASES = {"Runtime": "Engine"}
"""Another name, for programs written in SGLang's style."""

__all__ = [  # the same as _HOMES and _ALIASES: a test holds them together
    "AsyncForks",
    "AsyncState",
    "Engine",
    "Forks",
    "OpenAI",
    "Program",
    "Runtime",
    "RuntimeEndpoint",
    "Scripted",
    "State",
    "Tool",
    "ToolCall",
    "ToolResult",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "describe_tools",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_default_backend",
    "greedy_token_selection",
    "image",
    "role",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "show_tree",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "tool",
    "tool_begin",
    "tool_end",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]


def __getattr__(name: str) -> object:
    wanted = _ALIASES.get(name, name)
    if wanted not in _HOMES:
        raise AttributeError(f"module 'ramet' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    value = getattr(import_module(_HOMES[wanted]), wanted)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
