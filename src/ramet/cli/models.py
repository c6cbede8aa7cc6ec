"""`ramet models`: what can be served on this machine, and how to get the default where it is missing."""

import json
from typing import Annotated

import typer


def main(as_json: Annotated[bool, typer.Option("--json", help="One JSON list.")] = False) -> None:
    """List the models found: embedded packages, the hub's cache, the folder RAMET_MODELS names."""
    from ramet.runtime.errors import ModelNotFound
    from ramet.runtime.weights.source import describe_models, find_default_model

    found = describe_models()
    if as_json:
        print(json.dumps([{**model._asdict(), "path": str(model.path)} for model in found]))
        return
    width = max((len(model.name) for model in found), default=0)
    for model in found:
        default = "  (default)" if model.is_default else ""
        size = f"{model.num_bytes / 1e6:.1f} MB"
        print(f"{model.name:<{width}}  {size:>10}  {model.architecture}, {model.format}, {model.where}{default}")
    try:
        find_default_model()
    except ModelNotFound as missing:
        print(f"The default model is missing. {missing}")
