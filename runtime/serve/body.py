"""Request bodies: size, depth, UTF-8 and shape, each refused with the field's path, and nothing else raised."""

import re
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from ramet.runtime.errors import BadRequest, Cancelled

T = TypeVar("T")

_PATH = re.compile(r"^(?P<what>.*?)(?: - at `(?P<at>[^`]*)`)?$", re.DOTALL)


async def read_body(http: Request, *, max_bytes: int) -> bytes:
    """The body, or BadRequest (413) as soon as it is known to be too large."""
    declared = http.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large(int(declared), max_bytes)
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in http.stream():
            size += len(chunk)
            if size > max_bytes:
                raise too_large(size, max_bytes)
            chunks.append(chunk)
    except ClientDisconnect:
        raise Cancelled("the client went away before its request was whole") from None
    return b"".join(chunks)


def decode(body: bytes, kind: type[T], *, max_depth: int) -> T:
    """JSON -> `kind`; every fault becomes a BadRequest that says where it lies."""
    if depth(body) > max_depth:
        raise BadRequest(expected=f"JSON nested at most {max_depth} deep", got=f"{depth(body)} levels", at="$")
    try:
        return msgspec.json.decode(body, type=kind, strict=True)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(expected="a JSON object in UTF-8", got=str(error), at="$", hint="Check the body.") from None


def depth(body: bytes) -> int:
    """How deep brackets nest outside strings: one pass, before any recursive parser sees the text."""
    outside = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", body, flags=re.DOTALL)
    level = deepest = 0
    for bracket in re.findall(rb"[\[{\]}]", outside):
        level += 1 if bracket in b"[{" else -1
        deepest = max(deepest, level)
    return deepest


def too_large(size: int, limit: int) -> BadRequest:
    error = BadRequest(
        expected=f"a body of at most {limit} bytes", got=f"{size} bytes", at="$", hint="Send less, or raise --max-body."
    )
    error.code, error.status = "request_too_large", 413
    return error


def _invalid(text: str) -> BadRequest:
    found = _PATH.match(text)
    what, at = (found["what"], found["at"]) if found else (text, None)
    wanted = re.match(r"Expected `(?P<expected>.*)`, got `(?P<got>.*)`", what)
    if wanted:
        return BadRequest(expected=wanted["expected"], got=wanted["got"], at=at or "$", code="invalid_type")
    missing = re.match(r"Object missing required field `(?P<name>.*)`", what)
    if missing:
        return BadRequest(expected=f"a field `{missing['name']}`", got="none", at=at or "$", code="missing_field")
    return BadRequest(expected="a valid request", got=what, at=at or "$")
