"""What the client tests share: the server's address, a tool, and how to read what the cache saved."""

import os

BASE = os.environ.get("RAMET_BASE", "")
"""Set by scripts/test-clients."""
OPENAI_BASE = f"{BASE}/v1"
QUESTION = "What is the weather in Paris?"
