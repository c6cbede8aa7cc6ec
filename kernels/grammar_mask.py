"""The step of a grammar on the device: take a token, move on, and write the mask of the next one.

`grammar_advance` reads the bytes of a sampled token into every configuration of a slot; `grammar_mask` writes the
packed mask of what may follow; `grammar_step` is one after the other in one launch, for the slots that took a token.
All run one program a slot over flat int32 tables whose layout `constrained.tables.arena` defines, so changing batches
reuse one captured graph. Integers only: the plain twins below agree bit for bit.

Layout   slots     int32 [B, slot_words(K, D)]  num configurations, status, then per configuration
                                                state, counter, depth, (return state, counter) * D
         bases     int32 [B]        offset of the slot's grammar in `arena`; -1: unconstrained, nothing is done
         tokens    int32 [B]        the sampled id; -1: none, the slot stays
         arena     int32 [*]        grammars one after the other; offsets in each count from its own beginning
         offsets   int32 [V + 1]    bytes of token t are data[offsets[t] : offsets[t + 1]]; none: special or nothing
         data      int32 [*]
         rows      int32 [R, W]     class rows; W = ceil(V / 32)
         out       int32 [B, W]     bit j of word w, lowest first, is token 32 * w + j
Status   LIVE; ENDED after an end id; DEAD after a forbidden token; FULL when a slot needs more than K configurations
         or a stack deeper than D, which the host must take over: its mask is empty until then
Traffic  per configuration and frame one class row read and the row written: some 2 * V / 8 bytes a slot"""

import torch
from torch import Tensor

from ramet.kernels._triton import tl, triton
from ramet.kernels.checks import check_tensor
from ramet.kernels.registry import Op

LIVE, ENDED, DEAD, FULL = range(4)
SLOT_HEAD, PLACE = 2, 3
"""Words before the configurations, and of a configuration before its stack."""

# Words of an arena: constrained/tables/arena.py says what they are; a test holds the two together.
NUM_CLASSES, START, CLASSES, EDGES, STATES, ENDS, NUM_ENDS, FINALS = 1, 2, 3, 4, 5, 6, 7, 8
STATE_WORDS, ANSWER_WORDS, MOVE_WORDS = 8, 6, 9


def slot_words(num_configurations: int, depth: int) -> int:
    """Words of a slot."""
    return SLOT_HEAD + num_configurations * (PLACE + 2 * depth)


def new_slots(num_slots: int, num_configurations: int = 4, depth: int = 64, device: str = "cpu") -> Tensor:
    """Slots that stand at the start of whatever grammar they get: one configuration in state 0."""
    slots = torch.zeros((num_slots, slot_words(num_configurations, depth)), dtype=torch.int32, device=device)
    slots[:, 0] = 1
    return slots


# The definition -------------------------------------------------------------------------------------------------------


class _Slot:
    """One slot as Python lists, over one grammar."""

    def __init__(self, words: list[int], arena: list[int], num_configurations: int, depth: int) -> None:
        self.arena, self.K, self.D = arena, num_configurations, depth
        self.status = words[1]
        self.places: list[tuple[int, int, tuple[tuple[int, int], ...]]] = []
        for k in range(words[0]):
            at = SLOT_HEAD + k * (PLACE + 2 * depth)
            state, counter, height = words[at : at + PLACE]
            flat = words[at + PLACE : at + PLACE + 2 * height]
            self.places.append((state, counter, tuple(zip(flat[::2], flat[1::2], strict=True))))

    def words(self, old: list[int]) -> list[int]:
        """The slot as words; what lies beyond the stacks is left as it was."""
        new = [len(self.places), self.status, *old[SLOT_HEAD:]]
        for k, (state, counter, stack) in enumerate(self.places):
            at = SLOT_HEAD + k * (PLACE + 2 * self.D)
            flat = [word for frame in stack for word in frame]
            new[at : at + PLACE + len(flat)] = [state, counter, len(stack), *flat]
        return new

    def state(self, state: int) -> list[int]:
        at = self.arena[STATES] + STATE_WORDS * state
        return self.arena[at : at + STATE_WORDS]

    def may_end(self, state: int, counter: int) -> bool:
        offset, number = self.state(state)[:2]
        return any(self.arena[offset + 2 * i] <= counter <= self.arena[offset + 2 * i + 1] for i in range(number))

    def accepts(self) -> bool:
        return any(self._accepts(*place) for place in self.places)

    def _accepts(self, state: int, counter: int, stack: tuple[tuple[int, int], ...]) -> bool:
        while self.may_end(state, counter):
            if not stack:
                return True
            state, counter = stack[-1]
            stack = stack[:-1]
        return False

    def edge(self, state: int, byte: int) -> int:
        column = self.arena[self.arena[CLASSES] + byte]
        return self.arena[self.arena[EDGES] + state * self.arena[NUM_CLASSES] + column]

    def special(self, state: int, token: int) -> int:
        offset, number = self.state(state)[6:8]
        found = (self.arena[offset + 2 * i + 1] for i in range(number) if self.arena[offset + 2 * i] == token)
        return next(found, -1)

    def read(self, symbol: int, *, is_special: bool) -> None:
        """One byte or special token, in every configuration."""
        old, self.places = self.places, []
        for state, counter, stack in old:
            while True:
                move = self.special(state, symbol) if is_special else self.edge(state, symbol)
                while move >= 0:
                    self._take(move, counter, stack)
                    move = self.arena[move]
                if not stack or not self.may_end(state, counter):
                    break
                state, counter = stack[-1]
                stack = stack[:-1]

    def _take(self, move: int, counter: int, stack: tuple[tuple[int, int], ...]) -> None:
        _, low, high, add, calls, back, target, fresh, frames = self.arena[move : move + MOVE_WORDS]
        if not low <= counter <= high:
            return
        counter += add
        if calls:
            if back >= 0:
                stack = (*stack, (back, counter))
            flat = self.arena[move + MOVE_WORDS : move + MOVE_WORDS + 2 * frames]
            stack = (*stack, *zip(flat[::2], flat[1::2], strict=True))
            counter = fresh
        if len(stack) > self.D:
            self.status = FULL
            return
        while self.arena[self.arena[FINALS] + target] and stack:
            target, counter = stack[-1]
            stack = stack[:-1]
        if (target, counter, stack) not in self.places:
            if len(self.places) == self.K:
                self.status = FULL
            else:
                self.places.append((target, counter, stack))

    def write_mask(self, rows: Tensor, out: Tensor) -> None:
        for state, counter, stack in self.places:
            offset, number = self.state(state)[2:4]
            rest = self._answer(offset, number, counter, rows, out)
            while rest >= 0 and stack:
                state, counter = stack[-1]
                stack = stack[:-1]
                offset, number = self._pair(state, rest)
                rest = self._answer(offset, number, counter, rows, out)

    def _pair(self, state: int, rest: int) -> tuple[int, int]:
        offset, number = self.state(state)[4:6]
        for i in range(number):
            key, at, length = self.arena[offset + 3 * i : offset + 3 * i + 3]
            if key == rest:
                return at, length
        return 0, 0

    def _answer(self, offset: int, number: int, counter: int, rows: Tensor, out: Tensor) -> int:
        for i in range(number):
            at = offset + ANSWER_WORDS * i
            low, high, row, more, length, rest = self.arena[at : at + ANSWER_WORDS]
            if low <= counter <= high:
                out |= rows[row]
                _set_bits(out, self.arena[more : more + length])
                return rest
        return -1


def _set_bits(out: Tensor, tokens: list[int]) -> None:
    for token in tokens:
        bit = 1 << (token & 31)
        out[token >> 5] |= bit - (1 << 32) if bit >> 31 else bit


def grammar_advance_reference(
    slots: Tensor, bases: Tensor, tokens: Tensor, arena: Tensor, offsets: Tensor, data: Tensor, *, depth: int
) -> None:
    """The definition, in plain Python."""
    num_configurations = (slots.shape[1] - SLOT_HEAD) // (PLACE + 2 * depth)
    for b, (base, token) in enumerate(zip(bases.tolist(), tokens.tolist(), strict=True)):
        words = slots[b].tolist()
        if base < 0 or token < 0 or words[1] != LIVE:
            continue
        slot = _Slot(words, arena[base:].tolist(), num_configurations, depth)
        _advance(slot, token, data[offsets[token] : offsets[token + 1]].tolist())
        slots[b] = torch.tensor(slot.words(words), dtype=torch.int32)


def _advance(slot: _Slot, token: int, data: list[int]) -> None:
    ends = slot.arena[slot.arena[ENDS] : slot.arena[ENDS] + slot.arena[NUM_ENDS]]
    before, accepts = slot.places, slot.accepts()
    for byte in data:
        slot.read(byte, is_special=False)
    if not data:
        slot.read(token, is_special=True)
    if slot.status == FULL:
        slot.places = before
    elif not slot.places:
        slot.status = ENDED if token in ends and accepts else DEAD


def grammar_mask_reference(
    slots: Tensor, bases: Tensor, arena: Tensor, rows: Tensor, out: Tensor, *, depth: int
) -> None:
    """The definition, in plain Python."""
    num_configurations = (slots.shape[1] - SLOT_HEAD) // (PLACE + 2 * depth)
    for b, base in enumerate(bases.tolist()):
        if base < 0:
            continue
        slot = _Slot(slots[b].tolist(), arena[base:].tolist(), num_configurations, depth)
        out[b] = 0
        if slot.status == LIVE:
            slot.write_mask(rows, out[b])
        if slot.status == ENDED or (slot.status == LIVE and slot.accepts()):
            _set_bits(out[b], slot.arena[slot.arena[ENDS] : slot.arena[ENDS] + slot.arena[NUM_ENDS]])


def grammar_step_reference(
    slots: Tensor,
    bases: Tensor,
    tokens: Tensor,
    arena: Tensor,
    offsets: Tensor,
    data: Tensor,
    rows: Tensor,
    out: Tensor,
    *,
    depth: int,
) -> None:
    """The definition: a slot whose token is -1 keeps its place and its mask."""
    grammar_advance_reference(slots, bases, tokens, arena, offsets, data, depth=depth)
    grammar_mask_reference(slots, torch.where(tokens >= 0, bases, -1), arena, rows, out, depth=depth)


# Triton ---------------------------------------------------------------------------------------------------------------


@triton.jit
def _may_end(grammar, state, counter):
    """1 if the rule may end in this state at this value of its counter."""
    head = grammar + tl.load(grammar + 5) + 8 * state
    offset = tl.load(head)
    found = 0
    for i in range(tl.load(head + 1)):
        low, high = tl.load(grammar + offset + 2 * i), tl.load(grammar + offset + 2 * i + 1)
        found = tl.where((low <= counter) & (counter <= high), 1, found)
    return found


@triton.jit
def _first_move(grammar, state, symbol, is_special):
    """Offset of the first move on a byte or special token, or -1."""
    move = -1
    if is_special:
        head = grammar + tl.load(grammar + 5) + 8 * state
        offset = tl.load(head + 6)
        for i in range(tl.load(head + 7)):
            move = tl.where(tl.load(grammar + offset + 2 * i) == symbol, tl.load(grammar + offset + 2 * i + 1), move)
    else:
        column = tl.load(grammar + tl.load(grammar + 3) + symbol)
        move = tl.load(grammar + tl.load(grammar + 4) + state * tl.load(grammar + 1) + column)
    return move


@triton.jit
def _accepts(grammar, place, DEPTH: tl.constexpr):
    """1 if the output may end in this configuration, with every rule left."""
    state, counter, height = tl.load(place), tl.load(place + 1), tl.load(place + 2)
    open_ = _may_end(grammar, state, counter)
    while (open_ > 0) & (height > 0):
        height -= 1
        frame = place + 3 + 2 * height
        open_ = _may_end(grammar, tl.load(frame), tl.load(frame + 1))
    return open_


@triton.jit
def _same(a, b, DEPTH: tl.constexpr, BLOCK: tl.constexpr):
    """1 if two configurations are equal."""
    at = tl.arange(0, BLOCK)
    used = at < 3 + 2 * tl.load(a + 2)
    left, right = tl.load(a + at, mask=used, other=0), tl.load(b + at, mask=used, other=0)
    return tl.where(tl.sum((left != right).to(tl.int32)) == 0, 1, 0)


@triton.jit
def _take(grammar, move, counter, source, height, target_slot, num, full, K: tl.constexpr, DEPTH: tl.constexpr,
          BLOCK: tl.constexpr):  # fmt: skip
    """Write the configuration behind a move as number `num` of the slot, unless it is there already."""
    add, calls, back = tl.load(grammar + move + 3), tl.load(grammar + move + 4), tl.load(grammar + move + 5)
    state, frames = tl.load(grammar + move + 6), tl.load(grammar + move + 8)
    counter += add
    pushes = tl.where(calls > 0, frames + tl.where(back >= 0, 1, 0), 0)
    fits = (num < K) & (height + pushes <= DEPTH)
    full = tl.where(height + pushes > DEPTH, 1, full)
    # One place beyond the K is there to be compared, so that a repeated configuration does not overflow the slot.
    new = target_slot + 2 + num * (3 + 2 * DEPTH)
    if height + pushes <= DEPTH:
        at = tl.arange(0, BLOCK)
        tl.store(new + 3 + at, tl.load(source + 3 + at, mask=at < 2 * height, other=0), mask=at < 2 * height)
        if calls > 0:
            if back >= 0:
                tl.store(new + 3 + 2 * height, back)
                tl.store(new + 3 + 2 * height + 1, counter)
                height += 1
            for i in range(frames):
                tl.store(new + 3 + 2 * height, tl.load(grammar + move + 9 + 2 * i))
                tl.store(new + 3 + 2 * height + 1, tl.load(grammar + move + 9 + 2 * i + 1))
                height += 1
            counter = tl.load(grammar + move + 7)
        tl.debug_barrier()
        finals = tl.load(grammar + 8)
        is_final = tl.load(grammar + finals + state)
        while (is_final > 0) & (height > 0):
            height -= 1
            state = tl.load(new + 3 + 2 * height)
            counter = tl.load(new + 3 + 2 * height + 1)
            is_final = tl.load(grammar + finals + state)
        tl.store(new, state)
        tl.store(new + 1, counter)
        tl.store(new + 2, height)
        tl.debug_barrier()
        known = 0
        for k in range(num):
            known = tl.maximum(known, _same(new, target_slot + 2 + k * (3 + 2 * DEPTH), DEPTH, BLOCK))
        if known == 0:
            full = tl.where(fits, full, 1)
            num = tl.where(fits, num + 1, num)
    return num, full


@triton.jit
def _read(grammar, old, new, num_old, symbol, is_special, full, K: tl.constexpr, DEPTH: tl.constexpr,
          BLOCK: tl.constexpr):  # fmt: skip
    """One byte or special token: the configurations of `old` become those of `new`."""
    num = 0
    for k in range(num_old):
        place = old + 2 + k * (3 + 2 * DEPTH)
        state, counter, height = tl.load(place), tl.load(place + 1), tl.load(place + 2)
        going = 1
        while going > 0:
            move = _first_move(grammar, state, symbol, is_special)
            while move >= 0:
                low, high = tl.load(grammar + move + 1), tl.load(grammar + move + 2)
                if (low <= counter) & (counter <= high):
                    num, full = _take(grammar, move, counter, place, height, new, num, full, K, DEPTH, BLOCK)
                move = tl.load(grammar + move)
            going = tl.where(height > 0, _may_end(grammar, state, counter), 0)
            if going > 0:
                height -= 1
                state = tl.load(place + 3 + 2 * height)
                counter = tl.load(place + 3 + 2 * height + 1)
    return num, full


@triton.jit
def _advance_slot(slot, slots_ptr, scratch_ptr, bases_ptr, tokens_ptr, arena_ptr, offsets_ptr, data_ptr, slot_stride,
                  scratch_stride, K: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    base, token = tl.load(bases_ptr + slot), tl.load(tokens_ptr + slot)
    record = slots_ptr + slot * slot_stride
    status = tl.load(record + 1)
    if (base >= 0) & (token >= 0) & (status == 0):
        grammar = arena_ptr + base
        one, half = scratch_ptr + slot * scratch_stride, scratch_stride // 2
        num, full = tl.load(record), 0
        accepts = 0
        for k in range(num):
            accepts = tl.maximum(accepts, _accepts(grammar, record + 2 + k * (3 + 2 * DEPTH), DEPTH))
        at = tl.arange(0, BLOCK)
        for k in range(num):
            place = 2 + k * (3 + 2 * DEPTH)
            inside = at < 3 + 2 * DEPTH
            tl.store(one + place + at, tl.load(record + place + at, mask=inside, other=0), mask=inside)
        tl.debug_barrier()
        first, last = tl.load(offsets_ptr + token), tl.load(offsets_ptr + token + 1)
        turn = 0
        for i in range(first, last):
            byte = tl.load(data_ptr + i)
            num, full = _read(
                grammar, one + turn * half, one + (1 - turn) * half, num, byte, False, full, K, DEPTH, BLOCK
            )
            turn = 1 - turn
            tl.debug_barrier()
        if first == last:
            num, full = _read(grammar, one, one + half, num, token, True, full, K, DEPTH, BLOCK)
            turn = 1
            tl.debug_barrier()
        if full > 0:
            tl.store(record + 1, 3)
        else:
            source = one + turn * half
            for k in range(num):
                place = 2 + k * (3 + 2 * DEPTH)
                used = at < 3 + 2 * tl.load(source + place + 2)
                tl.store(record + place + at, tl.load(source + place + at, mask=used, other=0), mask=used)
            tl.store(record, num)
            if num == 0:
                is_end = 0
                ends = tl.load(grammar + 6)
                for i in range(tl.load(grammar + 7)):
                    is_end = tl.where(tl.load(grammar + ends + i) == token, 1, is_end)
                tl.store(record + 1, tl.where((is_end > 0) & (accepts > 0), 1, 2))


@triton.jit
def _set_bits_kernel(grammar, tokens, num, out, BLOCK: tl.constexpr):
    for start in range(0, num, BLOCK):
        at = start + tl.arange(0, BLOCK)
        token = tl.load(grammar + tokens + at, mask=at < num, other=0)
        tl.atomic_or(out + token // 32, 1 << (token % 32), mask=at < num)


@triton.jit
def _answer(grammar, offset, number, counter, rows_ptr, out, W, BLOCK: tl.constexpr):
    """OR the mask of one frame into the row; gives the rest that falls through, or -1."""
    rest = -1
    for i in range(number):
        at = grammar + offset + 6 * i
        low, high, row = tl.load(at), tl.load(at + 1), tl.load(at + 2)
        if (low <= counter) & (counter <= high):
            rest = tl.load(at + 5)
            if row > 0:
                source = rows_ptr + row.to(tl.int64) * W
                for start in range(0, W, BLOCK):
                    word = start + tl.arange(0, BLOCK)
                    inside = word < W
                    theirs = tl.load(source + word, mask=inside, other=0)
                    ours = tl.load(out + word, mask=inside, other=0)
                    tl.store(out + word, ours | theirs, mask=inside)
                tl.debug_barrier()
            _set_bits_kernel(grammar, tl.load(at + 3), tl.load(at + 4), out, BLOCK)
            tl.debug_barrier()
    return rest


@triton.jit
def _mask_slot(slot, slots_ptr, bases_ptr, arena_ptr, rows_ptr, out_ptr, W, slot_stride, out_stride,
               DEPTH: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    base = tl.load(bases_ptr + slot)
    if base >= 0:
        record, grammar, out = slots_ptr + slot * slot_stride, arena_ptr + base, out_ptr + slot * out_stride
        num, status = tl.load(record), tl.load(record + 1)
        for start in range(0, W, BLOCK):
            word = start + tl.arange(0, BLOCK)
            tl.store(out + word, tl.zeros([BLOCK], dtype=tl.int32), mask=word < W)
        tl.debug_barrier()
        accepts = tl.where(status == 1, 1, 0)
        if status == 0:
            states = tl.load(grammar + 5)
            for k in range(num):
                place = record + 2 + k * (3 + 2 * DEPTH)
                state, counter, height = tl.load(place), tl.load(place + 1), tl.load(place + 2)
                accepts = tl.maximum(accepts, _accepts(grammar, place, DEPTH))
                head = grammar + states + 8 * state
                rest = _answer(grammar, tl.load(head + 2), tl.load(head + 3), counter, rows_ptr, out, W, BLOCK)
                while (rest >= 0) & (height > 0):
                    height -= 1
                    state = tl.load(place + 3 + 2 * height)
                    counter = tl.load(place + 3 + 2 * height + 1)
                    head = grammar + states + 8 * state
                    pairs, offset, number = tl.load(head + 4), 0, 0
                    for i in range(tl.load(head + 5)):
                        hit = tl.load(grammar + pairs + 3 * i) == rest
                        offset = tl.where(hit, tl.load(grammar + pairs + 3 * i + 1), offset)
                        number = tl.where(hit, tl.load(grammar + pairs + 3 * i + 2), number)
                    rest = _answer(grammar, offset, number, counter, rows_ptr, out, W, BLOCK)
        if accepts > 0:
            _set_bits_kernel(grammar, tl.load(grammar + 6), tl.load(grammar + 7), out, BLOCK)


@triton.jit
def _advance_kernel(slots_ptr, scratch_ptr, bases_ptr, tokens_ptr, arena_ptr, offsets_ptr, data_ptr, slot_stride,
                    scratch_stride, K: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    _advance_slot(tl.program_id(0).to(tl.int64), slots_ptr, scratch_ptr, bases_ptr, tokens_ptr, arena_ptr, offsets_ptr,
                  data_ptr, slot_stride, scratch_stride, K, DEPTH, BLOCK)  # fmt: skip


@triton.jit
def _mask_kernel(slots_ptr, bases_ptr, arena_ptr, rows_ptr, out_ptr, W, slot_stride, out_stride,
                 DEPTH: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    _mask_slot(tl.program_id(0).to(tl.int64), slots_ptr, bases_ptr, arena_ptr, rows_ptr, out_ptr, W, slot_stride,
               out_stride, DEPTH, BLOCK)  # fmt: skip


@triton.jit
def _step_kernel(slots_ptr, scratch_ptr, bases_ptr, tokens_ptr, arena_ptr, offsets_ptr, data_ptr, rows_ptr, out_ptr, W,
                 slot_stride, scratch_stride, out_stride, K: tl.constexpr, DEPTH: tl.constexpr,
                 SLOT_BLOCK: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    if tl.load(tokens_ptr + slot) >= 0:
        _advance_slot(slot, slots_ptr, scratch_ptr, bases_ptr, tokens_ptr, arena_ptr, offsets_ptr, data_ptr,
                      slot_stride, scratch_stride, K, DEPTH, SLOT_BLOCK)  # fmt: skip
        tl.debug_barrier()  # the mask reads the slot that was just written
        _mask_slot(slot, slots_ptr, bases_ptr, arena_ptr, rows_ptr, out_ptr, W, slot_stride, out_stride, DEPTH, BLOCK)


def grammar_advance_triton(
    slots: Tensor, bases: Tensor, tokens: Tensor, arena: Tensor, offsets: Tensor, data: Tensor, *, depth: int
) -> None:
    """One program a slot; the scratch is the only memory it takes, and a captured graph keeps it."""
    B, K = slots.shape[0], (slots.shape[1] - SLOT_HEAD) // (PLACE + 2 * depth)
    for name, tensor in (("bases", bases), ("tokens", tokens)):
        check_tensor(name, tensor, dtype=torch.int32, shape=(B,), device=slots.device)
    half = slot_words(K + 1, depth)
    scratch = torch.empty((B, 2 * half), dtype=torch.int32, device=slots.device)
    _advance_kernel[(B,)](
        slots, scratch, bases, tokens, arena, offsets, data, slots.stride(0), scratch.stride(0),
        K=K, DEPTH=depth, BLOCK=triton.next_power_of_2(PLACE + 2 * depth), num_warps=1,
    )  # fmt: skip


def grammar_mask_triton(
    slots: Tensor, bases: Tensor, arena: Tensor, rows: Tensor, out: Tensor, *, depth: int, block: int = 1024
) -> None:
    B, W = out.shape
    check_tensor("out", out, dtype=torch.int32, shape=(slots.shape[0], rows.shape[1]), device=slots.device)
    check_tensor("bases", bases, dtype=torch.int32, shape=(B,), device=slots.device)
    block = min(block, triton.next_power_of_2(W))
    _mask_kernel[(B,)](
        slots, bases, arena, rows, out, W, slots.stride(0), out.stride(0), DEPTH=depth, BLOCK=block, num_warps=4
    )


def grammar_step_triton(
    slots: Tensor,
    bases: Tensor,
    tokens: Tensor,
    arena: Tensor,
    offsets: Tensor,
    data: Tensor,
    rows: Tensor,
    out: Tensor,
    *,
    depth: int,
    block: int = 1024,
) -> None:
    """One program a slot, four warps: the wide part is the mask, and warps that wait cost the narrow part nothing."""
    B, W = out.shape
    K = (slots.shape[1] - SLOT_HEAD) // (PLACE + 2 * depth)
    for name, tensor in (("bases", bases), ("tokens", tokens)):
        check_tensor(name, tensor, dtype=torch.int32, shape=(B,), device=slots.device)
    check_tensor("out", out, dtype=torch.int32, shape=(slots.shape[0], rows.shape[1]), device=slots.device)
    scratch = torch.empty((B, 2 * slot_words(K + 1, depth)), dtype=torch.int32, device=slots.device)
    _step_kernel[(B,)](
        slots, scratch, bases, tokens, arena, offsets, data, rows, out, W, slots.stride(0), scratch.stride(0),
        out.stride(0), K=K, DEPTH=depth, SLOT_BLOCK=triton.next_power_of_2(PLACE + 2 * depth),
        BLOCK=min(block, triton.next_power_of_2(W)), num_warps=4,
    )  # fmt: skip


grammar_advance = Op("grammar_advance", reference=grammar_advance_reference, triton=grammar_advance_triton)
grammar_mask = Op("grammar_mask", reference=grammar_mask_reference, triton=grammar_mask_triton)
grammar_step = Op("grammar_step", reference=grammar_step_reference, triton=grammar_step_triton)
