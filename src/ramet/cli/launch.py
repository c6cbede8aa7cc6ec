"""`ramet launch AGENT`: the settings that point an agent at this server. Prints them, writes nothing."""

import sys
from typing import Annotated

import typer

_SETTINGS = {
    "codex": """# ~/.codex/config.toml
model = "{model}"
model_provider = "ramet"

[model_providers.ramet]
name = "Ramet"
base_url = "{base}/v1"
wire_api = "responses"
""",
    "opencode": """// opencode.json
{{
  "$schema": "https://opencode.ai/config.json",
  "provider": {{
    "ramet": {{
      "npm": "@ai-sdk/openai-compatible",
      "options": {{"baseURL": "{base}/v1", "apiKey": "none"}},
      "models": {{"{model}": {{}}}}
    }}
  }}
}}
""",
    "claude": """export ANTHROPIC_BASE_URL={base}
export ANTHROPIC_AUTH_TOKEN=none
export ANTHROPIC_MODEL={model}
export ANTHROPIC_SMALL_FAST_MODEL={model}
# A line that is new in every request would miss the cache; this keeps it out (the server strips it too).
export CLAUDE_CODE_ATTRIBUTION_HEADER=0
""",
    "aider": """export OPENAI_API_BASE={base}/v1
export OPENAI_API_KEY=none
aider --model openai/{model}
""",
}


def main(
    agent: Annotated[str, typer.Argument(help=f"One of {', '.join(_SETTINGS)}.")],
    base: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    model: Annotated[str, typer.Option(help="The served model's name.")] = "default",
) -> None:
    """Print an agent's configuration for a running server."""
    if agent not in _SETTINGS:
        print(f"ramet launch: expected one of {', '.join(_SETTINGS)}, got {agent!r}.", file=sys.stderr)
        raise typer.Exit(2)
    print(_SETTINGS[agent].format(base=base.rstrip("/"), model=model), end="")
