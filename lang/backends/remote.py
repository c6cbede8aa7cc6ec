"""A Ramet server as a backend: EngineClient over HTTP, so that a program runs there as it runs here.

The wire form (docs/dsl.md has it with an example): one path per verb below `/v1/programs`, bodies and answers are the
structs of runtime/types.py as msgspec writes them, `generate` answers with server-sent events, one tagged Event each.
Only new pieces travel, never the text again.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec

from ramet.lang.backends.base import ConnectOnce
from ramet.lang.backends.http import JSON, OCTETS, HttpClient, Refused, Response
from ramet.lang.backends.patience import once_ready
from ramet.runtime.client import EngineClient
from ramet.runtime.errors import EngineFailed, NotBuilt, RametError
from ramet.runtime.failures import to_error
from ramet.runtime.program_wire import (
    ExtendBody,
    Flushed,
    ForkBody,
    ForkedBranches,
    GapBody,
    MarkBody,
    OpenedProgram,
    RestoredProgram,
    SelectBody,
    TextBody,
    TokensBody,
)
from ramet.runtime.types import (
    BranchHandle,
    EngineStatistics,
    Event,
    Failed,
    Finished,
    GapKind,
    GenerateSpec,
    Mark,
    ModelCard,
    Piece,
    ProgramSpec,
    Selection,
    SelectMethod,
    Usage,
)

if TYPE_CHECKING:
    from ramet.runtime.checkpoint import SavedProgram

T = TypeVar("T")


_event_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class RemoteClient:
    """An EngineClient over HTTP."""

    def __init__(self, http: HttpClient, card: ModelCard) -> None:
        self._http, self._card = http, card

    @property
    def card(self) -> ModelCard:
        return self._card

    async def open(self, program: ProgramSpec) -> BranchHandle:
        opened = await self._ask("POST", "/v1/programs", program, OpenedProgram)
        return BranchHandle(opened.program_id, opened.branch_id)

    async def extend(self, branch: BranchHandle, pieces: Sequence[Piece]) -> None:
        await self._ask("POST", _path(branch, "extend"), ExtendBody(pieces=list(pieces)), None)

    def generate(self, branch: BranchHandle, spec: GenerateSpec) -> AsyncIterator[Event]:
        return self._events(_path(branch, "generate"), msgspec.json.encode(spec))

    async def checkpoint(self, program_id: str) -> "SavedProgram":
        """The server gives what it keeps of the program; nothing is written there."""
        from ramet.runtime.checkpoint import unpack  # late: it brings numpy, which other programs need not load

        return unpack((await _exchange(self._http, "POST", f"{_program(program_id)}/checkpoint", b"{}")).body)

    async def restore(self, program: "SavedProgram") -> list[BranchHandle]:
        from ramet.runtime.checkpoint import pack  # late, as above

        response = await _exchange(self._http, "POST", "/v1/programs/restore", pack(program), OCTETS)
        restored = _decoded(response, "/v1/programs/restore", RestoredProgram)
        return [BranchHandle(restored.program_id, identity) for identity in restored.branch_ids]

    def resume(self, branch: BranchHandle) -> AsyncIterator[Event]:
        return self._events(_path(branch, "resume"), b"{}")

    async def _events(self, path: str, body: bytes) -> AsyncIterator[Event]:
        events = self._http.events(path, body)
        async with aclosing(events) as stream:  # type: ignore[type-var]
            try:
                finished = False
                async for data in stream:  # to its very end, so that the connection can be used again
                    if data == b"[DONE]":
                        continue
                    event = _event_decoder.decode(data)
                    if isinstance(event, Failed):
                        raise to_error(event)
                    finished = finished or isinstance(event, Finished)
                    yield event
            except Refused as refused:
                raise error_of(refused.response) from None
            except (ConnectionError, asyncio.IncompleteReadError, msgspec.MsgspecError) as broken:
                raise EngineFailed(f"the server's stream broke off: {broken}") from None
        if not finished:
            raise EngineFailed("the server's stream ended without a last event")

    async def select(
        self,
        branch: BranchHandle,
        choices: Sequence[str],
        method: SelectMethod = "total",
        temperature: float = 0.0,
        seed: int | None = None,
        append: bool = True,
    ) -> Selection:
        body = SelectBody(choices=list(choices), method=method, temperature=temperature, seed=seed, append=append)
        return await self._ask("POST", _path(branch, "select"), body, Selection)

    async def fork(self, branch: BranchHandle, n: int) -> list[BranchHandle]:
        forked = await self._ask("POST", _path(branch, "fork"), ForkBody(n=n), ForkedBranches)
        return [BranchHandle(branch.program_id, identity) for identity in forked.branch_ids]

    async def mark(self, branch: BranchHandle) -> Mark:
        mark = await self._ask("POST", _path(branch, "mark"), {}, MarkBody)
        return Mark(mark.num_tokens, mark.serial)

    async def rollback(self, branch: BranchHandle, mark: Mark) -> None:
        body = MarkBody(num_tokens=mark.num_tokens, serial=mark.serial)
        await self._ask("POST", _path(branch, "rollback"), body, None)

    async def gap(
        self, branch: BranchHandle, kind: GapKind, tool: str | None = None, expected_s: float | None = None
    ) -> None:
        await self._ask("POST", _path(branch, "gap"), GapBody(kind=kind, tool=tool, expected_s=expected_s), None)

    async def close(self, branch: BranchHandle, *, program: bool = False) -> Usage:
        path = _program(branch.program_id) if program else _path(branch)
        return await self._ask("DELETE", path, None, Usage)

    async def tokens(self, branch: BranchHandle) -> list[int]:
        return (await self._ask("GET", _path(branch, "tokens"), None, TokensBody)).tokens

    async def text(self, branch: BranchHandle) -> str:
        return (await self._ask("GET", _path(branch, "text"), None, TextBody)).text

    async def tokenize(self, text: str, *, allow_special: bool = False, add_bos: bool = False) -> list[int]:
        body = TextBody(text=text, allow_special=allow_special, add_bos=add_bos)
        return (await self._ask("POST", "/v1/engine/tokenize", body, TokensBody)).tokens

    async def detokenize(self, tokens: Sequence[int], *, skip_special: bool = False) -> str:
        body = TokensBody(tokens=list(tokens), skip_special=skip_special)
        return (await self._ask("POST", "/v1/engine/detokenize", body, TextBody)).text

    async def statistics(self) -> EngineStatistics:
        return await self._ask("GET", "/v1/engine/statistics", None, EngineStatistics)

    async def flush_cache(self) -> int:
        return (await self._ask("POST", "/v1/engine/flush_cache", {}, Flushed)).num_pages

    async def _ask(self, method: str, path: str, body: object, answer: type[T] | None) -> T:
        return await ask(self._http, method, path, body, answer)


async def ask(http: HttpClient, method: str, path: str, body: object, answer: type[T] | None) -> T:
    """One exchange in JSON; an answer that is an error is raised."""
    response = await _exchange(http, method, path, None if body is None else msgspec.json.encode(body))
    return None if answer is None else _decoded(response, path, answer)  # type: ignore[return-value]


async def _exchange(http: HttpClient, method: str, path: str, body: bytes | None, content_type: str = JSON) -> Response:
    try:
        response = await http.request(method, path, body, content_type)
    except (ConnectionError, asyncio.IncompleteReadError) as broken:
        raise EngineFailed(f"the server's answer broke off: {broken}") from None
    if response.status >= 300:
        raise error_of(response)
    return response


def _decoded(response: Response, path: str, answer: type[T]) -> T:
    try:
        return msgspec.json.decode(response.body, type=answer)
    except msgspec.MsgspecError as error:
        raise EngineFailed(f"{path} was answered with something else: {error}") from None


def error_of(response: Response) -> RametError:
    """The error in an answer (`{"error": {"message", "code", "param"}}`), as the class that its code names."""
    message, code, at = response.body.decode(errors="replace")[:500], "", None
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        error: dict[str, Any] = msgspec.json.decode(response.body)["error"]
        message, code, at = str(error["message"]), str(error.get("code") or ""), error.get("param")
    wait = response.headers.get("retry-after", "")
    retry_after_s = float(wait) if wait.replace(".", "", 1).isdigit() else None
    return to_error(Failed(status=response.status, code=code, message=message, at=at, retry_after_s=retry_after_s))


def _program(program_id: str) -> str:
    return f"/v1/programs/{quote(program_id, safe='')}"


def _path(branch: BranchHandle, verb: str | None = None) -> str:
    path = f"{_program(branch.program_id)}/branches/{branch.branch_id}"
    return path if verb is None else f"{path}/{verb}"


class RuntimeEndpoint(ConnectOnce):
    """A running `ramet serve`: `RuntimeEndpoint("http://localhost:8000")`.

    wait_s  how long the first use may wait for a server that is still loading, seconds; 0: not at all
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: bool | str = True,
        chat_template_name: str | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 300.0,
    ) -> None:
        super().__init__()
        self._wait_s = wait_s
        if chat_template_name is not None:
            raise NotBuilt("chat_template_name", hint="The server renders with the model's own template.")
        authorization = {"authorization": f"Bearer {api_key}"} if api_key is not None else {}
        self._http = HttpClient(base_url, headers={**authorization, **(headers or {})}, verify=verify)

    async def _connect(self) -> EngineClient:
        card = await once_ready(self._http, self._ask_card, self._wait_s)
        return RemoteClient(self._http, card)

    async def _ask_card(self) -> ModelCard:
        return await ask(self._http, "GET", "/v1/engine/card", None, ModelCard)

    def close(self) -> None:
        """Close the idle connections."""
        self._http.close()

    def __repr__(self) -> str:
        return f"RuntimeEndpoint({self._http.base_url!r})"
