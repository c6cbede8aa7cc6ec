"""Which format a model speaks: by name, or by what its chat template says."""

from types import ModuleType
from typing import cast

from ramet.runtime.errors import BadRequest
from ramet.runtime.serve.tools import hermes, llama3, mistral, plain_json
from ramet.runtime.serve.tools.base import ToolFormat

_FORMATS: tuple[ModuleType, ...] = (hermes, mistral, llama3, plain_json)


def find_format(chat_template: str | None, name: str | None = None) -> ToolFormat:
    """The named format, or the first that recognises the template; plain JSON fits every model."""
    for module in _FORMATS:
        if name == module.NAME or (name is None and module.recognises(chat_template or "")):
            return cast(ToolFormat, module)
    known = ", ".join(module.NAME for module in _FORMATS)
    raise BadRequest(
        expected=f"one of {known}", got=name, at="--tool-format", hint="Leave it out to let the template decide."
    )
