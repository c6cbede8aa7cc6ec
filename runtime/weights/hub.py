"""Models by hub id: fetched once into Hugging Face's own cache, found there from then on. Nothing else downloads.

An id is `org/name` for a folder, or `org/name/file.gguf` for one file of it. HF_HUB_OFFLINE, HF_HOME and HF_TOKEN mean
what they mean everywhere. huggingface_hub draws its own progress bars.
"""

import os
import re
from pathlib import Path

from ramet.runtime.errors import ModelNotFound

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(/[\w./-]+\.gguf)?")
_FILE = re.compile(r"[^/]+/[^/]+\.(gguf|safetensors|bin|json)")
"""A file in a folder; no repository is called so."""

_NEEDED = ["config.json", "generation_config.json", "tokenizer*.json", "chat_template*", "additional_chat_templates/*",
           "*.safetensors", "*.safetensors.index.json"]  # fmt: skip
"""Of a repository in Hugging Face's layout; pickles and other formats stay where they are."""


def looks_like_hub_id(name: str) -> bool:
    """Whether `name` could be `org/name` or `org/name/file.gguf`; `./name` and `folder/file.gguf` are paths."""
    return _HUB_ID.fullmatch(name) is not None and not name.startswith(".") and not _FILE.fullmatch(name)


def is_offline() -> bool:
    """Whether the user has told Hugging Face's tools to stay offline."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def fetch(name: str) -> Path:
    """Download the model `name`, or what of it is missing in the cache. Raises ModelNotFound with the hub's reason."""
    import huggingface_hub  # late: it costs a tenth of a second, which only a download pays

    repository, file = _split(name)
    try:
        if file is not None:
            return Path(huggingface_hub.hf_hub_download(repository, file))
        return Path(huggingface_hub.snapshot_download(repository, allow_patterns=_NEEDED))
    except Exception as error:  # no such repository, no access, no network, no space: the hub's own words say which
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelNotFound(
            f"{name!r} is neither a path nor a model on this machine, and fetching it failed: {reason}"
        ) from error


def _split(name: str) -> tuple[str, str | None]:
    """`org/name/a/b.gguf` -> (`org/name`, `a/b.gguf`)."""
    parts = name.split("/")
    return "/".join(parts[:2]), "/".join(parts[2:]) or None
