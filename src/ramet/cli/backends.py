"""What the commands that run programs share: which backend, and a progress line while a model loads."""

import sys
import time

from ramet.lang.backends.base import Backend


def choose(model: str | None, url: str | None) -> Backend:
    """A server where a URL is given, else an engine in this process."""
    if url is not None:
        from ramet.lang.backends.remote import RuntimeEndpoint

        return RuntimeEndpoint(url)
    from ramet.lang.backends.local import Engine

    return Engine(model, progress=Progress().show)


def close(backend: Backend) -> None:
    """Give memory and connections back, where the backend has any."""
    getattr(backend, "close", lambda: None)()


class Progress:
    """One line on stderr: bytes read, of how many, how fast."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._shown = 0.0

    def show(self, done: int, total: int) -> None:
        """A callback for `build_engine(progress=...)`."""
        now = time.monotonic()
        if not sys.stderr.isatty() or (now - self._shown < 0.1 and done < total):
            return
        self._shown = now
        rate = done / max(now - self._started, 1e-6) / 1e6
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\rreading weights  {done / 1e6:,.0f} of {total / 1e6:,.0f} MB  {rate:,.0f} MB/s {end}")
        sys.stderr.flush()
