"""What the client tests share: the server's address, a tool, and a server of a test's own."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

BASE = os.environ.get("RAMET_BASE", "")
"""Set by scripts/test-clients, as is all that comes from the environment here."""
OPENAI_BASE = f"{BASE}/v1"
QUESTION = "What is the weather in Paris?"


@contextlib.contextmanager
def own_server(*arguments: str) -> Iterator[str]:
    """The address of a server that was started with these arguments, for tests that need other limits than the rest."""
    command = [os.environ["RAMET_COMMAND"], "serve", "--port", "0", "--log-level", "warning", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert " ready in " in line, f"expected the ready line, got {line!r}"
        yield line.split(" at ")[1].strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stdout.close()
