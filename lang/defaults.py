"""The backend of programs that name none. Holds one value; makes a local Engine where nobody has set it."""

import threading

from ramet.lang.backends.base import Backend, as_backend
from ramet.runtime.client import EngineClient

_lock = threading.Lock()
_default: Backend | None = None


def set_default_backend(backend: Backend | EngineClient | None) -> None:
    """Run programs on this backend from now on. None: back to a local Engine with the default model, made on first
    use."""
    global _default
    with _lock:
        _default = as_backend(backend) if backend is not None else None


def get_default_backend() -> Backend:
    """The backend that was set, or a local Engine."""
    global _default
    with _lock:
        if _default is None:
            from ramet.lang.backends.local import Engine

            _default = Engine()
        return _default


def flush_cache(backend: Backend | None = None) -> int:
    """Drop every cached page that nobody holds; how many."""
    from ramet.lang.loop import PROGRAMS, wait

    async def flush() -> int:
        return await (await (backend or get_default_backend()).connect()).flush_cache()

    return wait(PROGRAMS.start(flush()))
