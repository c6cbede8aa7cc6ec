"""Grammars that live where the logits are: tables, places and masks on the device, one launch a step after the draw.

    enter     a sequence gets a slot: its grammar's tables lie in the arena, its place is written from the host's state
    step      masks of this step's rows, drafts included: those after the last token are there already
    commit    the drawn tokens, still on the device, move the slots on and write their next masks

No mask crosses from host to device, and no drawn token: what crosses is which row belongs to which slot, when the batch
changes, and drafts, which the host proposes. Every buffer keeps its address, so the step can be captured. The host
follows with states of its own, a step late, for drafts, tags and the end; they are what a slot is written from when a
sequence starts, forks, comes back after a preemption, or leaves the device's bounds for a while.

What the device can't hold takes the host's masks, counted by reason in `host_rows` and told once each in the log: a
grammar without tables (Lark, or too large), one for which the arena, the rows or the slots have no room, more readings
or a deeper stack than a slot has, and what is a mask of the host: `allowed_token_ids`, `min_tokens`, `stop_token_ids`.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from ramet.constrained.tables.arena import GrammarTables, RowStore, token_table
from ramet.constrained.vocabulary import Vocabulary
from ramet.kernels.grammar_mask import (
    DEAD,
    ENDED,
    FULL,
    LIVE,
    PLACE,
    SLOT_HEAD,
    grammar_mask,
    grammar_step,
    slot_words,
)
from ramet.runtime.execution.arena_space import ArenaSpace
from ramet.runtime.execution.grammar import GrammarState, GrammarWalk
from ramet.runtime.sampling.masks import Words, num_words, row_numbers

_NO_TABLES = "the grammar has no tables for the device"
_NO_ROOM = "no room for the grammar's tables, or no slot"
_TOO_MANY = "more readings or a deeper stack than a slot holds"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMaskConfig:
    """Sizes of the buffers. Read by DeviceMasks and by nothing else."""

    num_slots: int = 256
    """Sequences under grammars at a time."""
    num_ahead: int = 1024
    """Drafts of all rows in one step."""
    num_configurations: int = 4
    """Readings of the output that a slot can follow side by side."""
    depth: int = 64
    """Rules that may be open in each."""
    arena_bytes: int = 64 << 20
    """Tables of grammars; a usual schema takes 20 to 200 KB."""
    num_rows: int = 4096
    """Class rows, shared by all grammars of a vocabulary; each has a bit a token (25 MB of 49,152; 78 real schemas need
    264)."""


class _Compiled(Protocol):
    vocabulary: Vocabulary

    @property
    def tables(self) -> GrammarTables | None: ...


class _Configured(Protocol):
    """A state of the machine's."""

    @property
    def grammar(self) -> _Compiled: ...
    @property
    def configurations(self) -> Sequence[tuple[int, int, "_Stack", object]]: ...


_Stack = tuple[int, int, "_Stack"] | None


@dataclass(slots=True)
class Slot:
    """A sequence's place on the device."""

    number: int
    tables: GrammarTables
    is_parked: bool = False
    """The device has lost it for now; the host's state is the one that counts."""


class DeviceMasks:
    """The buffers of one executor. One thread at a time."""

    def __init__(self, device: torch.device, vocabulary_size: int, config: DeviceMaskConfig | None = None) -> None:
        self.config = config = config or DeviceMaskConfig()
        self.device, self._num_words = device, num_words(vocabulary_size)
        self._space = ArenaSpace(config.arena_bytes // 4)
        self._free = list(range(config.num_slots))[::-1]
        self._vocabulary: Vocabulary | None = None
        self._store: RowStore | None = None
        self._num_rows = 0
        self.host_rows: Counter[str] = Counter()
        """Masks that came from the host, by reason."""

    # Sequences -------------------------------------------------------------------------------------------------------

    def enter(self, walk: GrammarWalk) -> Slot | None:
        """A slot that stands where the walk does; None, with the reason counted, where the host has to do it."""
        compiled = cast(_Configured, walk.state).grammar
        tables = getattr(compiled, "tables", None)
        if tables is None or not self._has_room(compiled.vocabulary, tables):
            self.count_host(_NO_TABLES if tables is None else _NO_ROOM, 0)
            return None
        placed = self._space.take(tables, len(tables.arena))
        if placed is None:
            self.count_host(_NO_ROOM, 0)
            return None
        offset, is_new = placed
        if is_new:
            self.arena[offset : offset + len(tables.arena)] = torch.from_numpy(tables.arena).to(self.device)
        slot = Slot(self._free.pop(), tables)
        self.bases[slot.number] = offset
        slot.is_parked = not self._write(slot, walk.state)
        return slot

    def leave(self, slot: Slot) -> None:
        """The sequence is over."""
        self.bases[slot.number] = -1
        self._free.append(slot.number)
        self._space.release(slot.tables)

    def new_step(self) -> "MaskStep":
        """For one draw: add rows, run, draw, commit."""
        return MaskStep(self)

    def count_host(self, reason: str, number: int) -> None:
        """Masks that the host made."""
        if reason not in self.host_rows:
            _log.info("a mask comes from the host: %s", reason)
        self.host_rows[reason] += number

    # Buffers ---------------------------------------------------------------------------------------------------------

    def _has_room(self, vocabulary: Vocabulary, tables: GrammarTables) -> bool:
        """Whether a slot is free and the grammar's class rows are there, or can be beside those in use."""
        if self._vocabulary is None:
            self._make_buffers(vocabulary)
        assert self._vocabulary is vocabulary, "an executor has one vocabulary"
        store = tables.store
        if not self._free:
            return False
        if store is not self._store:  # the engine of all grammars was replaced: the old one's tables are of no use
            if not self._space.is_idle:
                return False
            self._space.clear()
            self._store, self._num_rows = store, 0
        rows = store.rows
        if len(rows) > self.config.num_rows:
            return False
        if len(rows) > self._num_rows:  # a store only grows
            self.rows[self._num_rows : len(rows)] = torch.from_numpy(rows[self._num_rows :]).to(self.device)
            self._num_rows = len(rows)
        return True

    def _make_buffers(self, vocabulary: Vocabulary) -> None:
        """Once, when the first grammar comes: an engine without grammars has none of this."""
        assert vocabulary.num_words == self._num_words, "the grammar's vocabulary is not the executor's"
        config, self._vocabulary = self.config, vocabulary
        offsets, data = token_table(vocabulary)
        total = config.num_slots + config.num_ahead

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=self.device)

        self.offsets = torch.from_numpy(offsets).to(self.device)
        self.data = torch.from_numpy(data.copy()).to(self.device)
        self.arena, self.rows = zeros(config.arena_bytes // 4), zeros(config.num_rows, self._num_words)
        self.slots = zeros(total, slot_words(config.num_configurations, config.depth))
        self.masks = zeros(total, self._num_words)
        self.bases, self.tokens = zeros(total) - 1, zeros(total) - 1
        self._statuses = torch.zeros(config.num_slots, dtype=torch.int32, pin_memory=self.device.type == "cuda")

    def _write(self, slot: Slot, state: GrammarState) -> bool:
        """Put a slot where the host's state is, with its mask; False where it doesn't fit."""
        words = slot_of(cast(_Configured, state), state, slot.tables, self.config)
        if words is None:
            return False
        at = slice(slot.number, slot.number + 1)
        self.slots[slot.number, : len(words)] = torch.tensor(words, dtype=torch.int32).to(self.device)
        grammar_mask(self.slots[at], self.bases[at], self.arena, self.rows, self.masks[at], depth=self.config.depth)
        self._statuses[slot.number] = words[1]
        return True

    def ready(self, slot: Slot, state: GrammarState) -> bool:
        """Whether the slot's mask is the state's. One that the device lost is written again from the state."""
        if not slot.is_parked and self._statuses[slot.number] != FULL:
            return True
        slot.is_parked = not self._write(slot, state)
        return not slot.is_parked

    def launch(self) -> None:
        """Move the slots that have a token in `tokens`, and write their masks."""
        grammar_step(
            self.slots, self.bases, self.tokens, self.arena, self.offsets, self.data, self.rows, self.masks,
            depth=self.config.depth,
        )  # fmt: skip

    def send_statuses(self) -> None:
        """What became of the slots, on its way to the host: it is there when the drawn tokens are."""
        self._statuses.copy_(self.slots[: self.config.num_slots, 1], non_blocking=True)


class MaskStep:
    """One draw's rows."""

    def __init__(self, masks: DeviceMasks) -> None:
        self._masks = masks
        self._rows: list[tuple[Slot, int, tuple[int, ...], list[int]]] = []
        self._walks: list[GrammarWalk] = []
        self._num_ahead = 0

    @property
    def words(self) -> Tensor | None:
        """int32 [M, W]: what `add`'s numbers are rows of; None where nothing was added."""
        return self._masks.masks if self._rows else None

    def add(self, slot: Slot, walk: GrammarWalk, drafts: Sequence[int], first: int) -> list[int] | None:
        """The rows of masks for the place after the known tokens, and after each draft (all allowed: the walk has
        followed them). `first`: the first of these places among the rows of logits. None: the host has to make them;
        the slot will not move, and is written again."""
        config = self._masks.config
        if not self._masks.ready(slot, walk.state):
            self._masks.count_host(_TOO_MANY, 1 + len(drafts))
            return None
        if self._num_ahead + len(drafts) > config.num_ahead:
            self._masks.count_host("more drafts than the device has places for", 1 + len(drafts))
            slot.is_parked = True
            return None
        begin = config.num_slots + self._num_ahead
        self._num_ahead += len(drafts)
        numbers = [slot.number, *range(begin, begin + len(drafts))]
        self._rows.append((slot, first, tuple(drafts), numbers))
        self._walks.append(walk)
        return numbers

    def count_host(self, reason: str, number: int) -> None:
        """Masks that the host makes in this step."""
        self._masks.count_host(reason, number)

    def run(self) -> dict[int, Words]:
        """Write the masks after drafts, one draft deeper a launch. Gives, by their place among the logits, those that a
        slot had no room for, from the host."""
        masks = self._masks
        device, longest = masks.device, max((len(drafts) for _, _, drafts, _ in self._rows), default=0)
        for depth in range(longest):
            there = [(n[depth], n[depth + 1], slot, d[depth]) for slot, _, d, n in self._rows if depth < len(d)]
            source, target, owner, token = (
                torch.tensor(part, dtype=torch.int64).to(device)
                for part in zip(*((s, t, slot.number, d) for s, t, slot, d in there), strict=True)
            )
            masks.slots[target], masks.bases[target] = masks.slots[source], masks.bases[owner]
            masks.tokens.fill_(-1)
            masks.tokens[target] = token.int()
            masks.launch()
        return self._lost() if longest else {}

    def _lost(self) -> dict[int, Words]:
        statuses = self._masks.slots[self._masks.config.num_slots :, 1].tolist()
        found: dict[int, Words] = {}
        for (_, first, _, numbers), walk in zip(self._rows, self._walks, strict=True):
            for place, number in enumerate(numbers[1:], 1):
                if statuses[number - self._masks.config.num_slots] == FULL:
                    found[first + place] = walk.mask_after(place)
        if found:
            self._masks.count_host(_TOO_MANY, len(found))
        return found

    def commit(self, drawn: Tensor) -> None:
        """Follow what was drawn: the drafts while they are what was drawn, then the token after them.

        drawn  int64 [R], a token for each row of logits, on the device
        """
        if not self._rows:
            return
        masks, device = self._masks, self._masks.device
        slots = row_numbers(tuple(slot.number for slot, _, _, _ in self._rows), device)
        place = row_numbers(tuple(first for _, first, _, _ in self._rows), device)
        if self._num_ahead:
            place = self._accepted(drawn, place, slots)
        masks.tokens.fill_(-1)
        masks.tokens[slots] = drawn[place].int()
        masks.launch()
        masks.send_statuses()

    def _accepted(self, drawn: Tensor, first: Tensor, slots: Tensor) -> Tensor:
        """Which place each row comes to; its slot is put where that place's snapshot is."""
        device = self._masks.device
        following = torch.full((len(drawn),), -1, dtype=torch.int64)
        source = torch.zeros(len(drawn), dtype=torch.int64)
        for _, at, drafts, numbers in self._rows:
            following[at : at + len(drafts)] = torch.tensor(drafts, dtype=torch.int64)
            source[at : at + len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
        following, source, place = following.to(device), source.to(device), first.clone()
        for depth in range(max(len(drafts) for _, _, drafts, _ in self._rows)):
            place += (place - first == depth) & (drawn[place] == following[place])
        self._masks.slots[slots] = self._masks.slots[source[place]]
        return place


def slot_of(
    configured: _Configured, state: GrammarState, tables: GrammarTables, config: DeviceMaskConfig
) -> list[int] | None:
    """The words of a slot that stands where a state does (`kernels.grammar_mask` has the layout); None: it can't."""
    found = configured.configurations
    if not found:
        return [0, ENDED if state.ended else DEAD]
    if len(found) > config.num_configurations:
        return None
    width = PLACE + 2 * config.depth
    words = [len(found), LIVE] + [0] * (width * len(found))
    for k, (number, counter, stack, _) in enumerate(found):
        frames: list[int] = []
        while stack is not None:
            back, value, stack = stack
            frames[:0] = [tables.numbers.get(back, -1), value]
        here = tables.numbers.get(number, -1)
        if here < 0 or len(frames) > 2 * config.depth or -1 in frames[::2]:
            return None
        at = SLOT_HEAD + k * width
        words[at : at + PLACE + len(frames)] = [here, counter, len(frames) // 2, *frames]
    return words
