"""Half of the paths that schemathesis makes up get the id of a program or response that is there, to pass 404."""

import itertools
import os
from typing import Any

import httpx
import schemathesis

BASE = os.environ["RAMET_FUZZED"]
_turn = itertools.count()
_known: dict[str, str] = {}


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    if not path_parameters or next(_turn) % 2:
        return path_parameters
    if "program_id" in path_parameters:
        found = {"program_id": _program()}
        return {**path_parameters, **found, **({"branch_id": 0} if "branch_id" in path_parameters else {})}
    if "response_id" in path_parameters:
        return {**path_parameters, "response_id": _response()}
    return path_parameters


def _program() -> str:
    """One that is open, with a word on its branch; the fuzzer closes them too."""
    known = _known.get("program", "none")
    if httpx.get(f"{BASE}/v1/programs/{known}/branches/0/text").status_code == 404:
        known = httpx.post(f"{BASE}/v1/programs", json={}).json()["program_id"]
        piece = {"type": "text", "text": "Hello"}
        httpx.post(f"{BASE}/v1/programs/{known}/branches/0/extend", json={"pieces": [piece]})
    _known["program"] = known
    return known


def _response() -> str:
    known = _known.get("response", "none")
    if httpx.get(f"{BASE}/v1/responses/{known}").status_code == 404:
        known = httpx.post(f"{BASE}/v1/responses", json={"input": "Hi", "max_output_tokens": 2}).json()["id"]
    _known["response"] = known
    return known
