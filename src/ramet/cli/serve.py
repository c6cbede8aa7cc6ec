"""`ramet serve [MODEL]`: OpenAI, Anthropic and native HTTP over one engine process."""

import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ramet.cli.template import read_template
from ramet.runtime.errors import BadRequest
from ramet.runtime.settings import resolve, secrets_from

_NETWORK, _MODEL, _CLIENTS, _LIMITS = "Network", "Model and memory", "Clients", "Limits"


def main(
    model: Annotated[
        str | None, typer.Argument(help="A folder, a GGUF file or a hub id; none: the embedded model.")
    ] = None,
    model_option: Annotated[
        str | None, typer.Option("--model", help="The same, as the other commands have it.", rich_help_panel=_MODEL)
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to bind.", rich_help_panel=_NETWORK)] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 takes a free one.", rich_help_panel=_NETWORK)] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="Keys, one a line (or RAMET_API_KEYS).", rich_help_panel=_NETWORK)
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="CORS origin; repeat for more.", rich_help_panel=_NETWORK)
    ] = None,
    served_name: Annotated[
        str | None, typer.Option("--served-model-name", help="Name in /v1/models.", rich_help_panel=_CLIENTS)
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(help="A jinja2 file in place of the model's.", rich_help_panel=_CLIENTS)
    ] = None,
    tool_format: Annotated[
        str | None, typer.Option(help="hermes, llama3, mistral or json.", rich_help_panel=_CLIENTS)
    ] = None,
    reasoning_format: Annotated[str | None, typer.Option(help="think or none.", rich_help_panel=_CLIENTS)] = None,
    splice: Annotated[
        bool | None, typer.Option(help="Reuse generated tokens of echoed turns.", rich_help_panel=_CLIENTS)
    ] = None,
    append_history: Annotated[
        bool | None, typer.Option(help="Keep history as it was run.", rich_help_panel=_CLIENTS)
    ] = None,
    strip_nonces: Annotated[
        bool | None, typer.Option(help="Drop known per-request nonce lines.", rich_help_panel=_CLIENTS)
    ] = None,
    request_templates: Annotated[
        bool | None, typer.Option(help="Run chat templates that clients send.", rich_help_panel=_CLIENTS)
    ] = None,
    sort_tool_keys: Annotated[
        bool | None, typer.Option(help="One prompt for any key order in tools.", rich_help_panel=_CLIENTS)
    ] = None,
    any_order: Annotated[
        bool | None, typer.Option(help="Keys of JSON in any order, by default.", rich_help_panel=_CLIENTS)
    ] = None,
    isolate_cache: Annotated[
        bool | None, typer.Option(help="A KV cache for each API key.", rich_help_panel=_CLIENTS)
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.", rich_help_panel=_MODEL)] = None,
    dtype: Annotated[
        str | None, typer.Option(help="auto, float32, bfloat16 or float16.", rich_help_panel=_MODEL)
    ] = None,
    backend: Annotated[str | None, typer.Option(help="auto, native or torch.", rich_help_panel=_MODEL)] = None,
    context_length: Annotated[int | None, typer.Option(help="Tokens of one sequence.", rich_help_panel=_MODEL)] = None,
    kv_tokens: Annotated[int | None, typer.Option(help="Tokens of KV memory.", rich_help_panel=_MODEL)] = None,
    kv_cache_dtype: Annotated[
        str | None, typer.Option(help="auto, bfloat16, float32, float16 or int8 (half).", rich_help_panel=_MODEL)
    ] = None,
    page_size: Annotated[int | None, typer.Option(help="Tokens of a KV page, 1 to 64.", rich_help_panel=_MODEL)] = None,
    kv_disk: Annotated[
        Path | None,
        typer.Option(help="Folder for KV that leaves memory, kept for the next start.", rich_help_panel=_MODEL),
    ] = None,
    kv_host_gb: Annotated[
        float | None, typer.Option(help="Host memory for KV that leaves a GPU.", rich_help_panel=_MODEL)
    ] = None,
    kv_disk_gb: Annotated[float | None, typer.Option(help="How large it may grow.", rich_help_panel=_MODEL)] = None,
    cuda_graphs: Annotated[
        bool | None, typer.Option(help="Replay recorded decode steps; on where there is a GPU.", rich_help_panel=_MODEL)
    ] = None,
    tuning: Annotated[
        bool | None, typer.Option(help="Time kernel blocks once; on where there is a GPU.", rich_help_panel=_MODEL)
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Who goes first: fcfs, lpm, ...", rich_help_panel=_MODEL)] = None,
    tenant_kv_tokens: Annotated[
        int | None, typer.Option(help="KV tokens that a key's turns in flight may hold.", rich_help_panel=_LIMITS)
    ] = None,
    program_kv_tokens: Annotated[
        int | None, typer.Option(help="The same of a program.", rich_help_panel=_LIMITS)
    ] = None,
    tenant_waiting: Annotated[
        int | None, typer.Option(help="Turns of a key that may wait to start.", rich_help_panel=_LIMITS)
    ] = None,
    tenant_branches: Annotated[
        int | None, typer.Option(help="Branches of a key that may be open.", rich_help_panel=_LIMITS)
    ] = None,
    max_body: Annotated[int | None, typer.Option(help="Largest body, bytes.", rich_help_panel=_LIMITS)] = None,
    max_in_flight: Annotated[int | None, typer.Option(help="Requests at once.", rich_help_panel=_LIMITS)] = None,
    drain_s: Annotated[
        float | None, typer.Option(help="Seconds to end after SIGTERM.", rich_help_panel=_LIMITS)
    ] = None,
    vllm_metric_names: Annotated[
        bool | None, typer.Option(help="Also export vllm: names.", rich_help_panel=_CLIENTS)
    ] = None,
    tracing: Annotated[bool | None, typer.Option(help="Write OpenTelemetry spans.", rich_help_panel=_CLIENTS)] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve a model. Every setting that `ramet config` lists can also stand in the environment (RAMET_PORT=...) or in
    ramet.toml."""
    from ramet.runtime.config import ModelOptions, QuotaConfig, TierConfig
    from ramet.runtime.serve.config import ServeConfig
    from ramet.runtime.serve.server import run_server

    if model is not None and model_option is not None:
        raise BadRequest(expected="one model", got=[model, model_option], at="--model", hint="Leave one out.")
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(name)s %(message)s")
    os.environ["RAMET_LOG"] = log_level
    flags: dict[str, Any] = dict(
        host=host, port=port, served_name=served_name, tool_format=tool_format, reasoning_format=reasoning_format,
        splice=splice, append_history=append_history, strip_nonces=strip_nonces, isolate_cache=isolate_cache,
        max_body_bytes=max_body, sort_tool_keys=sort_tool_keys, request_templates=request_templates,
        any_order=any_order,
        max_in_flight=max_in_flight, drain_s=drain_s, vllm_metric_names=vllm_metric_names, tracing=tracing,
        allow_origins=tuple(allow_origin) if allow_origin else None,
        api_keys=secrets_from(os.environ, api_key_file) or None,
    )  # fmt: skip
    config, _ = resolve(ServeConfig, flags)
    tier, _ = resolve(
        TierConfig,
        dict(kv_disk=None if kv_disk is None else str(kv_disk), kv_disk_gb=kv_disk_gb, kv_host_gb=kv_host_gb),
    )
    options, _ = resolve(
        ModelOptions,
        dict(
            model=model or model_option, device=device, dtype=dtype, backend=backend, context_length=context_length,
            kv_tokens=kv_tokens, kv_cache_dtype=kv_cache_dtype, page_size=page_size, policy=policy,
            cuda_graphs=cuda_graphs, tuning=tuning,
        ),
    )  # fmt: skip
    quotas, _ = resolve(
        QuotaConfig,
        dict(
            tenant_kv_tokens=tenant_kv_tokens, program_kv_tokens=program_kv_tokens,
            tenant_waiting=tenant_waiting, tenant_branches=tenant_branches,
        ),
    )  # fmt: skip
    engine = dict(
        **asdict(options),
        **asdict(quotas),
        kv_disk=tier.kv_disk,
        kv_disk_gb=tier.kv_disk_gb if tier.kv_disk is not None else None,
        kv_host_gb=tier.kv_host_gb,
        chat_template=read_template(chat_template),
    )
    raise typer.Exit(run_server(config, {name: value for name, value in engine.items() if value is not None}))
