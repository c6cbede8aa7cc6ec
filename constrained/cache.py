"""Compiled grammars by key, one cache per vocabulary: single flight, least recently used out, refusals kept briefly.

The engine (states and masks of all grammars of the vocabulary) is replaced by a fresh one when it has grown too large;
grammars in use keep the old one alive as long as they need it.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field

from ramet.constrained.grammar import CompiledGrammar, Engine
from ramet.constrained.vocabulary import Vocabulary
from ramet.runtime.errors import RametError

MAX_GRAMMARS = 4096
MAX_ENGINE_BYTES = 512 << 20
REFUSED_FOR_S = 60.0
"""How long a refusal is answered from the cache."""


@dataclass(slots=True, kw_only=True)
class CacheStatistics:
    """Counts since the start."""

    hits: int = 0
    misses: int = 0
    refusals: int = 0
    engines: int = 1


@dataclass(slots=True)
class _Entry:
    future: "Future[CompiledGrammar]" = field(default_factory=Future)
    refused_at_s: float | None = None


class GrammarCache:
    """Thread-safe."""

    def __init__(self, vocabulary: Vocabulary, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.vocabulary, self._clock = vocabulary, clock
        self._engine = Engine(vocabulary)
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self.statistics = CacheStatistics()

    def get(self, key: Hashable, make: Callable[[Engine], CompiledGrammar]) -> CompiledGrammar:
        """The grammar of this key. The first caller makes it, others wait for it; an error reaches all of them."""
        with self._lock:
            entry, is_first = self._entry(key)
            engine = self._current_engine()
        if is_first:
            self._make(entry, engine, make)
        return entry.future.result()

    def find(self, key: Hashable) -> "Future[CompiledGrammar] | None":
        """The grammar of this key, made or being made; None if no one asked for it yet."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or self._is_stale(entry):
                return None
            self.statistics.hits += 1
            self._entries.move_to_end(key)
            return entry.future

    def _entry(self, key: Hashable) -> tuple[_Entry, bool]:
        found = self._entries.get(key)
        if found is not None and not self._is_stale(found):
            self._entries.move_to_end(key)
            self.statistics.hits += 1
            return found, False
        self.statistics.misses += 1
        entry = self._entries[key] = _Entry()
        self._entries.move_to_end(key)
        while len(self._entries) > MAX_GRAMMARS:
            self._entries.popitem(last=False)
        return entry, True

    def _is_stale(self, entry: _Entry) -> bool:
        return entry.refused_at_s is not None and self._clock() - entry.refused_at_s > REFUSED_FOR_S

    def _current_engine(self) -> Engine:
        if self._engine.num_bytes > MAX_ENGINE_BYTES:
            self._engine = Engine(self.vocabulary)
            self._entries = OrderedDict((k, e) for k, e in self._entries.items() if not e.future.done())
            self.statistics.engines += 1
        return self._engine

    def _make(self, entry: _Entry, engine: Engine, make: Callable[[Engine], CompiledGrammar]) -> None:
        try:
            entry.future.set_result(make(engine))
        except BaseException as error:
            is_refusal = isinstance(error, RametError) and error.status < 500  # a fault of ours may not come again
            entry.refused_at_s = self._clock() if is_refusal else -REFUSED_FOR_S
            self.statistics.refusals += 1
            entry.future.set_exception(error)
