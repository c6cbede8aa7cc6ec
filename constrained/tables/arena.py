"""A grammar as flat int32: what `kernels.grammar_mask` runs, on a GPU or as its plain twin.

Every state that any output can reach is made, every answer and every move written down, so that no step needs the
host. Masks are a class row (few, shared by all grammars of a vocabulary) and a short list of more tokens. A grammar
that is too large for that stays with the lazy tables: `build_tables` says why.

Arena, offsets from its beginning; [] a list whose length stands beside its offset
    header   HEADER words: see the names below
    classes  [256]       byte -> column
    edges    [S, C]      offset of the first move on that byte, or -1
    states   [S, 8]      accepts offset, number; answers offset, number; pairs offset, number; specials offset, number
    moves    next move or -1, low, high, add, calls, back, target, counter, number of frames, (state, counter) each
    accepts  low, high
    answers  low, high, row, more tokens offset, number, rest or -1
    pairs    rest, answers offset, number       what a state does to tokens that fell through to it
    specials token, first move
    tokens   ids
    finals   [S]         1 where only the end of the rule is left
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramet.constrained.automaton.items import UNBOUNDED
from ramet.constrained.automaton.machine import Machine, Move
from ramet.constrained.tables.explore import Explorer, NodeSet
from ramet.constrained.vocabulary import Vocabulary, Words

Ints = npt.NDArray[np.int32]

HEADER = 16
NUM_STATES, NUM_CLASSES, START, CLASSES, EDGES, STATES, ENDS, NUM_ENDS, FINALS = range(9)
"""Words of the header. FINALS: offset of [S] flags."""
STATE_WORDS, ANSWER_WORDS, MOVE_WORDS = 8, 6, 9
MAX_STATES = 8192
MAX_PAIRS = 32_768
MAX_ANSWERS = 1024
"""Answers of one state: ranges of its counter."""
MAX_MORE = 256
"""Tokens listed beside a class row before the mask becomes a row itself."""


class TooLarge(Exception):
    """The grammar stays on the lazy path; the message says why."""


class RowStore:
    """The class rows of a vocabulary: row 0 is empty, a row is never changed, new rows come at the end."""

    def __init__(self, num_words: int) -> None:
        self._rows = np.zeros((16, num_words), dtype=np.int32)
        self.num_rows = 1
        self._known: dict[bytes, tuple[int, tuple[int, ...]]] = {}

    @property
    def rows(self) -> Words:
        """int32 [D, W]."""
        return self._rows[: self.num_rows]

    def encode(self, words: Words | None) -> tuple[int, tuple[int, ...]]:
        """A row inside the mask, and the ids of the mask that are not in the row."""
        if words is None:
            return 0, ()
        key = words.tobytes()
        if key not in self._known:
            self._known[key] = self._encode(words)
        return self._known[key]

    def _encode(self, words: Words) -> tuple[int, tuple[int, ...]]:
        rows = self.rows
        inside = ~(rows & ~words).any(axis=1)
        left = np.bitwise_count((words & ~rows).view(np.uint32)).sum(axis=1, dtype=np.int64)
        left[~inside] = UNBOUNDED
        best = int(left.argmin())
        if left[best] > MAX_MORE:
            if self.num_rows == len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            self._rows[self.num_rows] = words
            self.num_rows += 1
            return self.num_rows - 1, ()
        rest = np.unpackbits((words & ~rows[best]).view(np.uint8), bitorder="little")
        return best, tuple(np.flatnonzero(rest).tolist())


@dataclass(frozen=True, eq=False, kw_only=True)
class GrammarTables:
    """One grammar's arena, over the class rows of its vocabulary."""

    arena: Ints
    store: RowStore
    numbers: Mapping[int, int]
    """State of the machine -> its number in the arena."""

    @property
    def num_bytes(self) -> int:
        """Of the arena; rows are shared."""
        return self.arena.nbytes


def build_tables(machine: Machine, explorer: Explorer, start: int, store: RowStore) -> GrammarTables:
    """The arena of the grammar that begins in `start`. Raises TooLarge."""
    with machine.lock:
        reach = Reach(machine, start)
        return _Writer(machine, explorer, reach, store).tables()


def token_table(vocabulary: Vocabulary) -> tuple[Ints, Ints]:
    """Bytes of all ids as int32: (offsets [size + 1], bytes). Special tokens, holes and padding have none."""
    pieces = [b"" if i in vocabulary.special_ids else data for i, data in enumerate(vocabulary.token_bytes)]
    pieces += [b""] * (vocabulary.size - len(pieces))
    offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int32)
    return offsets, np.frombuffer(b"".join(pieces), dtype=np.uint8).astype(np.int32)


class Reach:
    """All states, by frames: which stand in the frame of a rule's start, and where that frame may return to."""

    def __init__(self, machine: Machine, start: int) -> None:
        self.machine = machine
        self.states: dict[int, int] = {}
        self.frames: dict[int, set[int]] = {}
        """Start state of a frame -> states in it."""
        self.frames_of: dict[int, set[int]] = defaultdict(set)
        self.returns: dict[int, set[int]] = defaultdict(set)
        waiting, tails = [start], defaultdict(set)
        while waiting:
            frame = waiting.pop()
            if frame in self.frames:
                continue
            self.frames[frame] = self._frame(frame)
            for state in self.frames[frame]:
                self.frames_of[state].add(frame)
                for call in machine.exits(state).calls:
                    waiting.append(call.start)
                    if call.back >= 0:
                        self.returns[call.start].add(call.back)
                    else:
                        tails[frame].add(call.start)
        self._spread(tails)

    def _frame(self, start: int) -> set[int]:
        seen, stack = {start}, [start]
        while stack:
            state = stack.pop()
            if state not in self.states:
                self.states[state] = len(self.states)
                if len(self.states) > MAX_STATES:
                    raise TooLarge(f"more than {MAX_STATES} states")
            for target in self._inside(state):
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
        return seen

    def _inside(self, state: int) -> Iterable[int]:
        exits = self.machine.exits(state)
        row = np.unique(self.machine.targets[state])
        yield from row[row >= 0].tolist()
        yield from (edge.target for edge in exits.more)
        yield from (call.back for call in exits.calls if call.back >= 0)
        yield from (target for _, target, _ in exits.specials)

    def _spread(self, tails: dict[int, set[int]]) -> None:
        """A frame entered by a tail call returns where its caller does."""
        changed = True
        while changed:
            changed = False
            for frame, starts in list(tails.items()):
                for start in starts:
                    before = len(self.returns[start])
                    self.returns[start] |= self.returns[frame]
                    changed |= len(self.returns[start]) > before

    def below(self, state: int) -> set[int]:
        """Return states that may lie directly under a frame in this state."""
        return set().union(*(self.returns[frame] for frame in self.frames_of[state]))


class _Writer:
    """Lays the arena out."""

    def __init__(self, machine: Machine, explorer: Explorer, reach: Reach, store: RowStore) -> None:
        self.machine, self.explorer, self.reach, self.store = machine, explorer, reach, store
        self.words: list[int] = [0] * HEADER
        self._moves: dict[tuple[Move, ...], int] = {}
        self._lists: dict[tuple[int, ...], int] = {}
        self._rest_sets: dict[int, NodeSet] = {}
        self.number = reach.states
        self.ordered = sorted(reach.states, key=reach.states.__getitem__)

    def tables(self) -> GrammarTables:
        """The whole arena."""
        answers = {state: self._answers(self.explorer.root, state) for state in self.ordered}
        pairs = self._pairs(answers)
        edges = np.array([self._edges(state) for state in self.ordered], dtype=np.int64)  # [S, 256]
        columns, classes = np.unique(edges, axis=1, return_inverse=True)
        heads = [word for state in self.ordered for word in self._state(state, answers[state], pairs[state])]
        ends = list(self.explorer.vocabulary.end_ids)
        parts = {
            CLASSES: classes.reshape(-1).tolist(),
            EDGES: columns.reshape(-1).tolist(),
            STATES: heads,
            ENDS: ends,
            FINALS: [int(self.machine.is_final(state)) for state in self.ordered],
        }
        for name, values in parts.items():
            self.words[name] = len(self.words)
            self.words.extend(values)
        self.words[NUM_STATES], self.words[NUM_CLASSES] = len(self.ordered), columns.shape[1]
        self.words[START], self.words[NUM_ENDS] = 0, len(ends)
        return GrammarTables(arena=np.array(self.words, dtype=np.int32), store=self.store, numbers=self.number)

    def _put(self, values: tuple[int, ...]) -> int:
        """The offset of a list; equal lists are one."""
        if values not in self._lists:
            self._lists[values] = len(self.words)
            self.words.extend(values)
        return self._lists[values]

    # Moves -----------------------------------------------------------------------------------------------------------

    def _edges(self, state: int) -> list[int]:
        row = [-1] * 256
        for byte in self.machine.first_bytes(state):
            if byte >= 0:
                row[byte] = self._move_list(self.machine.moves(state, byte))
        return row

    def _move_list(self, moves: tuple[Move, ...]) -> int:
        """Offset of the first of several moves; each names the next."""
        if not moves:
            return -1
        if moves not in self._moves:
            following = self._move_list(moves[1:])
            self._moves[moves] = len(self.words)
            move = moves[0]
            back = self.number[move.back] if move.back >= 0 else -1
            frames = [word for state, counter in move.frames for word in (self.number[state], counter)]
            self.words += [following, *move.action, int(move.calls), back, self.number[move.target], move.counter]
            self.words += [len(move.frames), *frames]
        return self._moves[moves]

    def _state(self, state: int, answers: tuple[int, int, set[int]], pairs: list[int]) -> Iterable[int]:
        exits = self.machine.exits(state)
        accepts = [word for action in exits.accepts for word in (action.low, action.high)]
        yield from (self._put(tuple(accepts)), len(exits.accepts))
        yield from answers[:2]
        yield from (self._put(tuple(pairs)), len(pairs) // 3)
        specials: list[int] = []
        for token in sorted(self._special_tokens(state)):
            specials += [token, self._move_list(tuple(self.machine.special_moves(state, token)))]
        yield from (self._put(tuple(specials)), len(specials) // 2)

    def _special_tokens(self, state: int) -> set[int]:
        exits = self.machine.exits(state)
        found = {token for token, _, _ in exits.specials}
        return found.union(*(self._special_tokens(call.start) for call in exits.calls))

    # Answers ---------------------------------------------------------------------------------------------------------

    def _answers(self, start: NodeSet, state: int) -> tuple[int, int, set[int]]:
        """Offset, number, and the rests that occur."""
        flat: list[int] = []
        rests: set[int] = set()
        for low, high, words, rest in self._ranges(start, state):
            row, more = self.store.encode(words)
            number = -1 if rest is None else rest.number
            flat += [low, high, row, self._put(more), len(more), number]
            if rest is not None:
                rests.add(number)
                self._rest_sets[number] = rest
        return self._put(tuple(flat)), len(flat) // ANSWER_WORDS, rests

    def _ranges(self, start: NodeSet, state: int) -> Iterable[tuple[int, int, Words | None, NodeSet | None]]:
        counter = number = 0
        while counter <= UNBOUNDED:
            answer = self.explorer.answer(start, state, counter)
            low, high = self.explorer.range_of(start, state, counter)
            if answer.words is not None or answer.rest is not None:
                yield low, high, answer.words, answer.rest
            counter = high + 1
            number += 1
            if number > MAX_ANSWERS:
                raise TooLarge(f"more than {MAX_ANSWERS} ranges of a counter")

    def _pairs(self, answers: dict[int, tuple[int, int, set[int]]]) -> dict[int, list[int]]:
        """For each state: what it does to each rest that may fall through to it."""
        found: dict[int, list[int]] = {state: [] for state in self.ordered}
        seen: set[tuple[int, int]] = set()
        waiting = [(rest, below) for s, (_, _, rests) in answers.items() for rest in rests for below in self._under(s)]
        while waiting:
            pair = waiting.pop()
            if pair in seen:
                continue
            seen.add(pair)
            if len(seen) > MAX_PAIRS:
                raise TooLarge(f"more than {MAX_PAIRS} ways for a token to leave a rule")
            rest, state = pair
            offset, number, rests = self._answers(self._rest_sets[rest], state)
            if number:
                found[state] += [rest, offset, number]
            waiting += [(more, below) for more in rests for below in self._under(state)]
        return found

    def _under(self, state: int) -> set[int]:
        return self.reach.below(state)
