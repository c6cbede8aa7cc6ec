"""What the HTTP front is told. Read by runtime/serve and by nothing else."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Addresses, keys and limits of one server."""

    host: str = "127.0.0.1"
    """Address to bind. Other machines can't reach the default."""
    port: int = 8000
    """TCP port; 0 takes a free one."""
    served_name: str | None = None
    """Name in /v1/models and answers; None: the model's own. Requests for any other name are answered by it too."""
    api_keys: tuple[str, ...] = ()
    """Accepted keys; none: no key is asked for. Never read from the command line: a file or RAMET_API_KEYS."""
    isolate_cache: bool = False
    """Each API key has a KV cache of its own."""
    allow_origins: tuple[str, ...] = ()
    """CORS origins; none: no CORS headers."""
    max_body_bytes: int = 16 * 2**20
    """Larger request bodies get 413."""
    max_json_depth: int = 64
    """Deeper request bodies get 400."""
    max_choices: int = 64
    """Largest `n`."""
    max_logprobs: int = 20
    """Largest `top_logprobs`."""
    max_stops: int = 64
    """Most stop strings in one request."""
    max_in_flight: int = 2048
    """Requests being served at once; more get 429 with Retry-After."""
    max_stored_responses: int = 1024
    """Responses kept for `previous_response_id`, for all keys together; the oldest go first."""
    max_stored_bytes: int = 64 * 2**20
    """Bytes of the same."""
    max_programs: int = 4096
    """Programs open over /v1/programs at once; more get 429."""
    program_idle_s: float = 3600.0
    """An open program that nobody touches for so long is closed."""
    drain_s: float = 30.0
    """After SIGTERM: how long running requests may take to end."""
    keep_alive_s: float = 15.0
    """A silent stream gets an SSE comment this often."""
    splice: bool = True
    """An echoed assistant turn that is ours is replaced by the very tokens that were generated."""
    append_history: bool = False
    """A conversation that goes on from an answer of ours keeps the prompt of that answer as it was run, whatever the
    chat template would make of older turns now."""
    strip_nonces: bool = True
    """Drop per-request nonce lines that known clients put before their system prompt (docs/serving.md lists them)."""
    request_templates: bool = False
    """Run chat templates that come with a request. A template is a program: the sandbox keeps it from files and
    attributes, not from counting for hours, and the whole server would wait."""
    sort_tool_keys: bool = False
    """Tools are shown to the model with their JSON's keys in alphabetical order, so that clients who write the same
    tools in another order share one prompt. What the model may write keeps the client's order."""
    any_order: bool = False
    """JSON under a schema may have its keys in any order, where a request does not say (`json_options.any_order`).
    Off: in the order of the schema."""
    tracing: bool = False
    """Write OpenTelemetry spans (needs `ramet[otel]`; OTEL_EXPORTER_OTLP_ENDPOINT says where they go)."""
    vllm_metric_names: bool = False
    """Also export the `vllm:` names that dashboards know."""
    tool_format: str | None = None
    """Name of the tool-call format; None: found in the chat template."""
    reasoning_format: str | None = None
    """"think": split <think>...</think>; "none"; None: found in the chat template."""
