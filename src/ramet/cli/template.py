"""A chat template from a file."""

from pathlib import Path

from ramet.runtime.errors import ModelNotFound


def read_template(file: Path | None) -> str | None:
    """Its text; None where no file was named."""
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelNotFound(f"expected a readable jinja2 file, got {reason} - at `--chat-template`.") from None
