"""The mask by brute force: every token of a vocabulary, read byte by byte by the plain interpreter.

Slow by design, but not by neglect: a byte read in the same configurations is read once, and a token whose first bytes
are dead is not read on.
"""

from ramet.constrained.automaton.interpreter import Configurations, Interpreter
from ramet.constrained.vocabulary import Vocabulary

_UNKNOWN, _DEAD = -2, -1


class BruteForce:
    """Masks of one grammar. A place is a number that stands for configurations of the interpreter."""

    def __init__(self, vocabulary: Vocabulary, oracle: Interpreter) -> None:
        self.vocabulary, self.oracle = vocabulary, oracle
        trie = vocabulary.trie
        self._bytes, self._depths, self._ends = trie.byte.tolist(), trie.depth.tolist(), trie.end.tolist()
        self._offsets, self._ids = trie.token_offset.tolist(), trie.token_ids.tolist()
        self._places: dict[Configurations, int] = {}
        self._configurations: list[Configurations] = []
        self._after: list[list[int]] = []
        self._masks: dict[int, list[int]] = {}
        self.start = self._place(oracle.start())

    def configurations(self, place: int) -> Configurations:
        """What the interpreter says of a place."""
        return self._configurations[place]

    def step(self, place: int, byte: int) -> int:
        """The place after one more byte; -1: dead."""
        after = self._after[place][byte]
        if after == _UNKNOWN:
            after = self._after[place][byte] = self._place(self.oracle.step(self._configurations[place], byte))
        return after

    def run(self, place: int, data: bytes) -> int:
        """The place after these bytes; -1: dead."""
        for byte in data:
            if place < 0:
                break
            place = self.step(place, byte)
        return place

    def accepts(self, place: int) -> bool:
        """Whether the output may end."""
        return self.oracle.accepts(self._configurations[place])

    def allowed(self, place: int) -> list[int]:
        """Ids after which the output can still be completed, and the end ids where it may end; ascending."""
        if place not in self._masks:
            ends = self.vocabulary.end_ids if self.accepts(place) else ()
            self._masks[place] = sorted([*self._text_tokens(place), *ends])
        return self._masks[place]

    def _text_tokens(self, place: int) -> list[int]:
        """One scan of the trie in preorder that skips what lies below a dead node."""
        found: list[int] = []
        path = [place] * (self.vocabulary.longest + 1)
        node, num_nodes = 1, len(self._bytes)
        while node < num_nodes:
            depth, byte = self._depths[node], self._bytes[node]
            after = self._after[path[depth - 1]][byte]
            if after == _UNKNOWN:
                after = self.step(path[depth - 1], byte)
            if after < 0:
                node = self._ends[node]
                continue
            path[depth] = after
            found.extend(self._ids[self._offsets[node] : self._offsets[node + 1]])
            node += 1
        return found

    def _place(self, configurations: Configurations) -> int:
        if not configurations:
            return _DEAD
        place = self._places.get(configurations)
        if place is None:
            place = self._places[configurations] = len(self._configurations)
            self._configurations.append(configurations)
            self._after.append([_UNKNOWN] * 256)
        return place
