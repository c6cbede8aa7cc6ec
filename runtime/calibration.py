"""What `ramet doctor --calibrate` measured on this machine, for the next engines: reads and writes one small file.

Constants of a model as it is computed here (prefill) and of the disk (reads and writes of pages), with the place where
they were taken. An engine without them measures as it goes.
"""

import os
from pathlib import Path

import msgspec


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Measured constants of one model on one machine."""

    prefill_s_per_token: float
    read_bytes_per_s: float
    """Of pages that are not in the system's memory, checked."""
    write_bytes_per_s: float
    page_s: float
    """What a page costs besides its bytes: opening, checking, handing over."""
    folder: str = ""
    """Whose disk it was."""

    def read_s(self, num_bytes: int) -> float:
        """Seconds for one page."""
        return self.page_s + num_bytes / self.read_bytes_per_s


def file() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "ramet" / "calibration.json"


def load(identity: str) -> Calibration | None:
    """None: it was never measured, or the file is of another version."""
    return _table().get(identity)


def save(identity: str, measured: Calibration) -> Path:
    path = file()
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {**_table(), identity: measured}
    beside = path.with_suffix(f".{os.getpid()}.part")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(table)))
    beside.replace(path)
    return path


def _table() -> dict[str, Calibration]:
    try:
        return msgspec.json.decode(file().read_bytes(), type=dict[str, Calibration])
    except (OSError, msgspec.DecodeError):
        return {}
