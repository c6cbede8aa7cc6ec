"""A Lark grammar as a reader of bytes and a writer of masks: the lexer's automaton over the parser's stack.

A configuration is the lexer's state and the parser's stack. A byte goes on with the present token, or ends it and
begins the next; the lexer's watch makes at most one of the two right, in time. Masks: a walk of the vocabulary inside
the present token (remembered by lexer state, whatever the stack), and for each token that may end inside a vocabulary
entry the parser is asked and the rest is walked from the next token's first state.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ramet.constrained.automaton.items import UNBOUNDED
from ramet.constrained.automaton.machine import Configuration, Stack
from ramet.constrained.grammar import CompiledGrammar
from ramet.constrained.lark.lexer import End, Lexer, Watch
from ramet.constrained.lark.load import Tables
from ramet.constrained.lark.parser import Parser
from ramet.constrained.state import GrammarState
from ramet.constrained.tables.descend import NODE, STATE, best_descent, places
from ramet.constrained.tables.trie import NO_NODES, Ints
from ramet.constrained.vocabulary import Vocabulary, Words
from ramet.runtime.errors import GrammarRefused

_MASKS = 2000
"""Masks remembered by (lexer state, stack)."""
_WALKS = 20_000


class LarkReader:
    """Reads bytes. See `grammar.Reader`."""

    def __init__(self, tables: Tables) -> None:
        self.tables, self.parser, self.lexer = tables, Parser(tables), Lexer()
        self.begin = Configuration(self.start_of(self.parser.start, frozenset()), 0, self.parser.start, None)

    def start_of(self, stack: Stack, watch: Watch) -> int:
        """The lexer's state before the next token."""
        assert stack is not None, "there is always a parser state"
        return self.lexer.start(self.tables.lexers[stack[0]], self.parser.wanted(stack), watch)

    def after_end(self, stack: Stack, end: End) -> tuple[int, Stack] | None:
        """Lexer state and stack once a token has ended; None: the parser has no use for it."""
        shifted = self.parser.shift(stack, end.type)
        return None if shifted is None else (self.start_of(shifted, end.watch), shifted)

    def read(self, configurations: Sequence[Configuration], byte: int, position: int) -> tuple[Configuration, ...]:
        """After one more byte."""
        found: dict[tuple[int, Stack], None] = {}
        for state, _, stack, _ in configurations:
            for here, above in self._places(state, stack):
                target = self.lexer.step(here, byte)
                if target >= 0:
                    found[target, above] = None
        return tuple(Configuration(state, 0, stack, None) for state, stack in found)

    def _places(self, state: int, stack: Stack) -> Iterable[tuple[int, Stack]]:
        """Going on with the token, and having ended it."""
        yield state, stack
        end = self.lexer.end(state)
        after = None if end is None else self.after_end(stack, end)
        if after is not None:
            yield after

    def read_special(
        self, configurations: Sequence[Configuration], token: int, position: int
    ) -> tuple[Configuration, ...]:
        """Lark grammars have no special tokens."""
        return ()

    def accepting(self, configurations: Sequence[Configuration], position: int) -> Configuration | None:
        """A configuration in which the text may end."""
        return next((c for c in configurations if self._accepts(c)), None)

    def _accepts(self, configuration: Configuration) -> bool:
        state, _, stack, _ = configuration
        if configuration[:3] == self.begin[:3]:
            return self.parser.accepts_end(stack)
        end = self.lexer.end(state)
        shifted = None if end is None else self.parser.shift(stack, end.type)
        return shifted is not None and self.parser.accepts_end(shifted)

    def next_bytes(self, configurations: Sequence[Configuration], position: int) -> set[int]:
        """Bytes that may come next."""
        places = (place for c in configurations for place in self._places(c.state, c.stack))
        return {byte for state, _ in places for byte in self.lexer.next_bytes(state)}

    def is_finished(self, configurations: Sequence[Configuration]) -> bool:
        """Whether nothing may follow."""
        return self.accepting(configurations, 0) is not None and not self.next_bytes(configurations, 0)


@dataclass(eq=False, slots=True)
class _Walk:
    """Vocabulary entries inside one token, and those that end it with more to come."""

    words: Words
    ended: list[tuple[End, Ints]] = field(default_factory=list)


class LarkGrammar(CompiledGrammar):
    """See the module."""

    def __init__(self, tables: Tables, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary, vocabulary.pack(vocabulary.end_ids), {})
        self.reader = LarkReader(tables)
        self._descent = best_descent(self.reader.lexer, vocabulary.trie)
        self._walks: dict[tuple[int, bytes], _Walk] = {}
        self._masks: OrderedDict[tuple[int, Stack], Words] = OrderedDict()
        if self._can_never_end():
            raise GrammarRefused(
                expected="a grammar that some text matches", got="none", at="$.grammar", code="grammar_unsatisfiable"
            )

    @property
    def machine(self) -> LarkReader:
        return self.reader

    def initial(self) -> GrammarState:
        return GrammarState(self, (self.reader.begin,))

    def _can_never_end(self) -> bool:
        begin = [self.reader.begin]
        return not self.reader.next_bytes(begin, 0) and self.reader.accepting(begin, 0) is None

    def allow(self, configuration: Configuration, out: Words) -> None:
        """The tokens of one reading, remembered by lexer state and stack."""
        key = (configuration.state, configuration.stack)
        with self.reader.lexer.lock:
            words = self._masks.get(key)
            if words is None:
                words = self._masks[key] = np.zeros_like(out)
                self._explore(np.zeros(1, dtype=np.int32), *key, words)
                if len(self._masks) > _MASKS:
                    self._masks.popitem(last=False)
            else:
                self._masks.move_to_end(key)
        np.bitwise_or(out, words, out=out)

    def tokens_from(self, nodes: Ints, configuration: Configuration, out: Words) -> Ints:
        """Add the tokens that go on from these nodes of the trie; gives the nodes at which the output may end."""
        ended: list[Ints] = []
        parser = self.reader.parser
        if configuration[:3] == self.reader.begin[:3] and parser.accepts_end(configuration.stack):
            ended.append(nodes)
        with self.reader.lexer.lock:
            self._explore(nodes, configuration.state, configuration.stack, out, ended)
        return np.unique(np.concatenate(ended)) if ended else NO_NODES

    def _explore(self, nodes: Ints, state: int, stack: Stack, words: Words, ended: list[Ints] | None = None) -> None:
        """Mark the tokens that go on from these trie nodes; note where the output may end."""
        walk = self._walk(nodes, state)
        np.bitwise_or(words, walk.words, out=words)
        for end, rest in walk.ended:
            after = self.reader.after_end(stack, end)
            if after is None:
                continue
            if ended is not None and self.reader.parser.accepts_end(after[1]):
                ended.append(rest)
            self._explore(rest, *after, words, ended)

    def _walk(self, nodes: Ints, state: int) -> _Walk:
        key = (state, nodes.tobytes())
        found = self._walks.get(key)
        if found is None:
            if len(self._walks) >= _WALKS:
                self._walks.clear()
            found = self._walks[key] = _Walk(np.zeros(self.vocabulary.num_words, dtype=np.int32))
            met = self._descent(places(nodes, state, 0, UNBOUNDED, 0), 0, UNBOUNDED, found.words)
            found.ended.extend(self._ended(met.exits))
        return found

    def _ended(self, exits: Ints) -> Iterable[tuple[End, Ints]]:
        """Nodes at which a token may end, by its type and watch; only those after which a new token can begin."""
        lexer, trie = self.reader.lexer, self.vocabulary.trie
        by_end: dict[End, list[Ints]] = defaultdict(list)
        for state in np.unique(exits[:, STATE]).tolist():
            end = lexer.end(state)
            if end is not None:
                by_end[end].append(exits[exits[:, STATE] == state, NODE])
        for end, parts in by_end.items():
            nodes = np.unique(np.concatenate(parts))
            yield end, nodes[trie.has_children(nodes)]
