"""Walks a program: one lane per branch, on the loop, turning what the program said into verbs of an EngineClient.

A lane is a queue of work that runs in order; lanes run side by side. It knows the branch's handle and its open chat
turn, nothing of the user's objects. Texts wait in the lane and are sent with the next verb that needs them, so literals
between two generations reach the engine together. A lane that failed runs nothing any more: its error is everybody's
answer.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from ramet.lang.dtype import decode
from ramet.lang.ir import Select
from ramet.lang.loop import PROGRAMS
from ramet.lang.options import with_seed
from ramet.lang.site import NOWHERE, Site, note
from ramet.lang.values import Slot, TextStream
from ramet.runtime.client import EngineClient
from ramet.runtime.errors import Cancelled, EngineFailed
from ramet.runtime.failures import to_error
from ramet.runtime.types import (
    BranchHandle,
    Delta,
    Failed,
    Finished,
    GapKind,
    GenerateSpec,
    Mark,
    Message,
    MessagesPiece,
    Piece,
    TextPiece,
    TokensPiece,
)

if TYPE_CHECKING:
    from ramet.lang.run import Run

T = TypeVar("T")
Work = Callable[[], Awaitable[Any]]


class _Item(NamedTuple):
    work: Work | Callable[[], None]
    future: "Future[Any] | None"
    what: str
    site: Site


class LaneTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A lane at rest, as a checkpoint keeps it: the message that is open, and what was not sent yet."""

    role: str | None
    extra: dict[str, object]
    content: list[str]
    opened: bool
    tools: list[dict[str, object]] | None
    pieces: list[Piece]


class Lane:
    """One branch on the loop."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        self.handle: BranchHandle | None = None
        self.error: BaseException | None = None
        self.closed = False
        self.stream = TextStream()
        """The branch's whole text, once somebody watches."""
        self.watched = run.streaming
        self._reported = ""
        self._unreported = False
        """Literals came since the last report, and somebody watches."""
        self._queue: deque[_Item] = deque()
        self._lock = threading.Lock()
        self._awake = False
        self._busy = False
        """An item runs: only then may the task be cancelled, or items would be lost with it."""
        self._task: asyncio.Task[None] | None = None
        self._pieces: list[Piece] = []
        self._role: str | None = None
        self._extra: dict[str, Any] = {}
        self._content: list[str] = []
        self._opened = False
        self._tools: list[dict[str, object]] | None = None

    # From the program's thread

    def post(self, work: Callable[[], None]) -> None:
        """Queue something cheap; it runs with the next `submit`, or at once where somebody watches."""
        with self._lock:
            self._queue.append(_Item(work, None, "", NOWHERE))
        if self.watched:
            self._wake()

    def submit(self, work: Callable[[], Awaitable[T]], what: str, site: Site) -> "Future[T]":
        """Queue a verb; its future is done when it has run, or when the lane has failed."""
        future: Future[T] = Future()
        with self._lock:
            self._queue.append(_Item(work, future, what, site))
        self._wake()
        return future

    def _wake(self) -> None:
        with self._lock:
            if self._awake:
                return
            self._awake = True
        PROGRAMS.loop.call_soon_threadsafe(self._start)

    # On the loop

    def _start(self) -> None:
        self._task = PROGRAMS.loop.create_task(self._drain())

    async def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._awake, self._task = False, None
                    return
                item = self._queue.popleft()
            await self._run_item(item)

    async def _run_item(self, item: _Item) -> None:
        """Run one item; the first error fails the lane, and so every later item."""
        if self.error is None:
            self._busy = True
            try:
                if self._unreported and item.future is not None:
                    await self._report()
                result = item.work()
                value = await result if result is not None else None
                self._unreported = self.watched and item.future is None
                if self._unreported and not self._queue:
                    await self._report()
            except (Exception, asyncio.CancelledError) as error:
                self._fail_from(error, item)
            else:
                if item.future is not None:
                    item.future.set_result(value)
                return
            finally:
                self._busy = False
        if item.future is not None and self.error is not None:
            item.future.set_exception(self.error)

    def _fail_from(self, error: BaseException, item: _Item) -> None:
        if isinstance(
            error, asyncio.CancelledError
        ):  # by `cancel`, which has set the reason; or the loop is going down
            error = self.error or Cancelled("the branch was cancelled")
        elif not isinstance(error, Cancelled) and item.what:
            note(error, item.what, item.site)
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
        self.stream.close(self.error)

    def cancel(self, error: BaseException) -> None:
        """Stop what runs and fail what waits. On the loop. The engine frees the branch when it is closed."""
        if self.closed or self.error is not None:
            return
        self._fail(error)
        if self._busy and self._task is not None:
            self._task.cancel()

    # Checkpoints

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing runs."""
        with self._lock:
            return not self._queue and not self._busy

    def turn(self) -> LaneTurn:
        return LaneTurn(
            role=self._role,
            extra=self._extra,
            content=self._content,
            opened=self._opened,
            tools=self._tools,
            pieces=self._pieces,
        )

    def take_up(self, turn: LaneTurn) -> None:
        """Go on from there."""
        self._role, self._extra, self._content, self._opened = turn.role, turn.extra, turn.content, turn.opened
        self._tools, self._pieces = turn.tools, turn.pieces

    # Texts and turns

    def write(self, text: str) -> None:
        if self._role is not None and not self._opened:
            self._content.append(text)
        else:
            self._pieces.append(TextPiece(text=text))

    def write_generated(self, slot: Slot) -> None:
        """Another branch's output: its tokens as they are, never tokenised again (where the backend tells them)."""
        self._open_turn()
        text = slot.text.result()
        self._pieces.append(TokensPiece(tokens=slot.tokens) if slot.tokens else TextPiece(text=text))

    def begin_role(self, role: str, extra: dict[str, Any]) -> None:
        self._role, self._extra, self._content, self._opened = role, extra, [], False

    def end_role(self, role: str) -> None:
        if self._opened:
            self._say(MessagesPiece(messages=[]))
        else:
            message = Message(role=role, content="".join(self._content), **self._extra)
            self._say(MessagesPiece(messages=[message]))
        self._role, self._content, self._opened = None, [], False

    def use_tools(self, schemas: list[dict[str, object]]) -> None:
        self._tools = [*(self._tools or []), *schemas]

    def _open_turn(self) -> None:
        """Leave the current message open, for the model (or pieces) to write into."""
        if self._role is None or self._opened:
            return
        prefix = "".join(self._content)
        if self._role == "assistant" and not self._extra:
            self._say(MessagesPiece(messages=[], add_generation_prompt=True))
            if prefix:
                self._pieces.append(TextPiece(text=prefix))
        else:
            message = Message(role=self._role, content=prefix, **self._extra)
            self._say(MessagesPiece(messages=[message], continue_final_message=True))
        self._opened = True

    def _say(self, piece: MessagesPiece) -> None:
        """Neighbouring messages travel as one piece: some templates refuse, or rewrite, half a conversation."""
        last = self._pieces[-1] if self._pieces else None
        if self._tools is not None:
            piece = MessagesPiece(
                messages=piece.messages,
                add_generation_prompt=piece.add_generation_prompt,
                continue_final_message=piece.continue_final_message,
                tools=self._tools,
            )
        if isinstance(last, MessagesPiece) and not last.add_generation_prompt and not last.continue_final_message:
            self._pieces[-1] = MessagesPiece(
                messages=[*last.messages, *piece.messages],
                add_generation_prompt=piece.add_generation_prompt,
                continue_final_message=piece.continue_final_message,
                tools=piece.tools or last.tools,
            )
        else:
            self._pieces.append(piece)

    async def _ready(self) -> tuple[EngineClient, BranchHandle]:
        """The engine has everything that was said so far."""
        client = self.run.client
        if self.handle is None or client is None:
            raise EngineFailed("the branch was never opened")
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            await client.extend(self.handle, pieces)
        return client, self.handle

    # Verbs

    async def open(self) -> None:
        self.handle = await self.run.connect()

    def launch(self, slot: Slot, work: Work) -> None:
        """Queue what fills a slot; if it is never run, the slot fails with the lane's error."""
        self.submit(work, slot.what, slot.site).add_done_callback(lambda done: _pass_failure(done, slot))

    async def generate(self, slot: Slot, spec: GenerateSpec) -> None:
        """Fill the slot, and its samples where more than one was asked for."""
        try:
            self._open_turn()
            others = await self._sample_others(slot, spec)
            try:
                await self._generate_one(slot, spec)
                await asyncio.gather(*others)
            finally:
                for other in others:
                    other.cancel()
                await asyncio.gather(*others, return_exceptions=True)
            if slot.samples:
                slot.value.set_result([slot.first_value, *(sample.value.result() for sample in slot.samples)])
        except BaseException as error:
            self._fail_slot(slot, error)
            raise

    def _fail_slot(self, slot: Slot, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            error = self.error or Cancelled("the branch was cancelled")
        elif isinstance(error, Exception) and not isinstance(error, Cancelled):
            note(error, slot.what, slot.site)
        slot.fail(error)

    async def _sample_others(self, slot: Slot, spec: GenerateSpec) -> list[asyncio.Task[None]]:
        if not slot.samples:
            return []
        client, handle = await self._ready()
        branches = await client.fork(handle, len(slot.samples))
        return [
            asyncio.create_task(self._sample(client, branch, sample, with_seed(spec, index)))
            for index, (branch, sample) in enumerate(zip(branches, slot.samples, strict=True), start=1)
        ]

    async def _sample(self, client: EngineClient, branch: BranchHandle, slot: Slot, spec: GenerateSpec) -> None:
        try:
            await self._follow(client, branch, slot, spec, None)
            text = "".join(slot.stream.pieces)
            slot.fill(text, decode(slot.decoder, text, reason=_reason(slot), what=slot.what))
        except BaseException as error:
            self._fail_slot(slot, error)
            raise
        finally:
            await client.close(branch)

    async def _generate_one(self, slot: Slot, spec: GenerateSpec) -> None:
        client, handle = await self._ready()
        if self.watched:
            await self._report()
        await self._follow(client, handle, slot, spec, self.stream if self.watched else None)
        text = "".join(slot.stream.pieces)
        if self.watched:
            self._reported += text
        slot.text.set_result(text)
        slot.stream.close()
        if slot.wants_token_texts:
            await self._name_tokens(client, slot)
        value = slot.first_value = decode(slot.decoder, text, reason=_reason(slot), what=slot.what)
        if not slot.samples:
            slot.value.set_result(value)

    async def _name_tokens(self, client: EngineClient, slot: Slot) -> None:
        prompt = (slot.finished.prompt_logprobs or []) if slot.finished is not None else []
        entries = [*prompt, *slot.logprobs]
        tokens = {entry.token for entry in entries} | {token for entry in entries for token, _ in entry.top}
        slot.token_texts = {token: await client.detokenize([token]) for token in sorted(tokens)}

    async def _follow(
        self, client: EngineClient, branch: BranchHandle, slot: Slot, spec: GenerateSpec, also: TextStream | None
    ) -> None:
        async with aclosing(client.generate(branch, spec)) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, Delta):
                    slot.tokens += event.tokens
                    slot.logprobs += event.logprobs or ()
                    slot.stream.append(event.text)
                    if also is not None:
                        also.append(event.text)
                    if slot.listener is not None:
                        slot.listener(event)
                elif isinstance(event, Finished):
                    slot.finished = event
                elif isinstance(event, Failed):
                    raise to_error(event)
        if slot.finished is None:
            raise EngineFailed("the generation ended without a last event")
        if slot.finished.reason == "abort":
            raise Cancelled(f"{slot.what} was aborted by the engine")
        if slot.finished.reason == "error":
            raise EngineFailed(f"{slot.what} ended with an error")

    async def select(self, slot: Slot, node: Select) -> None:
        try:
            self._open_turn()
            client, handle = await self._ready()
            slot.selection = await client.select(handle, node.choices, node.method, node.temperature, node.seed)
            choice = node.choices[slot.selection.index]
            slot.tokens = [item.token for item in slot.selection.logprobs[slot.selection.index]]
            slot.stream.append(choice)
            slot.fill(choice, choice)
            if self.watched:
                await self._report()
        except BaseException as error:
            self._fail_slot(slot, error)
            raise

    async def fork(self, children: Sequence["Lane"]) -> None:
        """Children go on from here: the same open turn, no text."""
        try:
            self._open_turn()
            client, handle = await self._ready()
            branches = await client.fork(handle, len(children))
        except BaseException as error:
            reason = self.error if isinstance(error, asyncio.CancelledError) and self.error else error
            for child in children:
                child._fail(reason)
            raise
        for child, branch in zip(children, branches, strict=True):
            child.handle = branch
            child._role, child._extra, child._opened, child._tools = self._role, self._extra, self._opened, self._tools

    async def mark(self) -> tuple[Mark, str | None, bool]:
        self._open_turn()
        client, handle = await self._ready()
        return await client.mark(handle), self._role, self._opened

    async def rollback(self, mark: "Future[tuple[Mark, str | None, bool]]") -> None:
        to, self._role, self._opened = mark.result()
        self._pieces, self._content = [], []
        client, handle = await self._ready()
        await client.rollback(handle, to)
        if self.watched:
            await self._report()

    async def gap(self, kind: GapKind, tool: str | None, expected_s: float | None) -> None:
        client, handle = await self._ready()
        await client.gap(handle, kind, tool, expected_s)

    async def text(self) -> str:
        client, handle = await self._ready_to_show()
        return await client.text(handle)

    async def token_ids(self) -> list[int]:
        client, handle = await self._ready_to_show()
        return await client.tokens(handle)

    async def _ready_to_show(self) -> tuple[EngineClient, BranchHandle]:
        if self._role is not None and not self._opened and self._content:
            self._open_turn()
        return await self._ready()

    async def nothing(self) -> None:
        """The end of what was said so far."""

    async def watch(self) -> None:
        """From now on `stream` follows the branch's text, beginning with what is there."""
        self.watched = True
        await self._report()

    async def _report(self) -> None:
        """What the branch's text has more than was reported; after a rollback, what follows the common beginning."""
        client, handle = await self._ready()
        text = await client.text(handle)
        common = len(self._reported) if text.startswith(self._reported) else _common(text, self._reported)
        self._reported, self._unreported = text, False
        self.stream.append(text[common:])

    async def close(self) -> None:
        """Give the branch back. Idempotent; what runs was cancelled before."""
        if self.closed:
            return
        self.closed = True
        self.stream.close(self.error)
        if self.handle is not None and self.run.client is not None:
            await self.run.client.close(self.handle)


def _reason(slot: Slot) -> str:
    return slot.finished.reason if slot.finished is not None else "error"


def _pass_failure(done: "Future[Any]", slot: Slot) -> None:
    error = done.exception()
    if error is not None:
        for one in (slot, *slot.samples):
            one.fail(error)


def _common(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
