"""Variables of a program while they come into being, and text as it streams. Knows threads and loops, no engine.

A `Slot` exists from the moment the program says `gen("x")`; the interpreter fills it, everyone else waits. Nothing here
blocks the interpreter.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future

from ramet.lang.site import NOWHERE, Site
from ramet.runtime.types import Delta, Finished, Selection, TokenLogprob, Usage


class TextStream:
    """Pieces of text that one side appends and any number of readers follow, each from the beginning."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._wakers: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._closed = False
        self._error: BaseException | None = None

    @property
    def pieces(self) -> list[str]:
        """All so far."""
        with self._lock:
            return list(self._pieces)

    def append(self, piece: str) -> None:
        if piece:
            with self._lock:
                self._pieces.append(piece)
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """No more will come. Readers end, or raise `error`. The first close counts."""
        with self._lock:
            if self._closed:
                return
            self._closed, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()

    def _take(self, position: int, waker: Callable[[], None], until: "Future[None] | None") -> list[str] | None:
        """Pieces from `position` on; else register the waker and return []; None when closed, or `until` is done."""
        ended = until is not None and until.done()  # asked first: what came before `until` was done is in the pieces
        with self._lock:
            if position < len(self._pieces):
                return self._pieces[position:]
            if ended:
                return None
            if not self._closed:
                self._wakers.append(waker)
                return []
        if self._error is not None:
            raise self._error
        return None

    def follow(self, until: "Future[None] | None" = None) -> Iterator[str]:
        """Every piece from the beginning, as it comes; to the close, or until `until` is done."""
        position = 0
        ready = threading.Event()
        if until is not None:
            until.add_done_callback(lambda _: ready.set())
        while (pieces := self._take(position, ready.set, until)) is not None:
            if not pieces:
                ready.wait()
                ready.clear()
            position += len(pieces)
            yield from pieces

    async def follow_async(self, until: "Future[None] | None" = None) -> AsyncIterator[str]:
        """The same in any loop."""
        position = 0
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        if until is not None:
            until.add_done_callback(lambda _: _wake_loop(loop, ready))
        while (pieces := self._take(position, lambda: _wake_loop(loop, ready), until)) is not None:
            if not pieces:
                await ready.wait()
                ready.clear()
            position += len(pieces)
            for piece in pieces:
                yield piece


def _wake_loop(loop: asyncio.AbstractEventLoop, ready: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(ready.set)


class Slot:
    """One variable: filled once, by the interpreter; waited for by the program."""

    def __init__(self, name: str | None, what: str, site: Site = NOWHERE) -> None:
        self.name, self.what, self.site = name, what, site
        self.value: Future[object] = Future()
        """The typed value; the text where no type was asked for."""
        self.text: Future[str] = Future()
        self.stream = TextStream()
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finished: Finished | None = None
        self.selection: Selection | None = None
        self.samples: list[Slot] = []
        """The other samples of `gen(n=...)`."""
        self.first_value: object = None
        self.decoder: Callable[[str], object] = str
        self.listener: Callable[[Delta], None] | None = None
        """Called on the loop with each piece; must not block."""
        self.token_texts: dict[int, str] | None = None
        """Token -> text, where `return_text_in_logprobs` asked for it."""
        self.wants_token_texts = False

    @property
    def usage(self) -> Usage:
        if self.selection is not None:
            return self.selection.usage
        return self.finished.usage if self.finished is not None else Usage()

    def fill(self, text: str, value: object) -> None:
        self.stream.close()
        if not self.text.done():
            self.text.set_result(text)
        if not self.value.done():
            self.value.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Idempotent: a slot that is filled stays filled."""
        self.stream.close(error)
        for future in (self.text, self.value):
            if not future.done():
                future.set_exception(error)


def filled(name: str | None, value: object) -> Slot:
    """A slot that is there already."""
    slot = Slot(name, "set")
    slot.fill(value if isinstance(value, str) else repr(value), value)
    return slot


def add_usage(one: Usage, other: Usage) -> Usage:
    """Field by field."""
    return Usage(**{field: getattr(one, field) + getattr(other, field) for field in Usage.__struct_fields__})
