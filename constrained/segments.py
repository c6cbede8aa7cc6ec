"""Any spec -> one intermediate grammar and its ledger: the front ends side by side, and the algebra above them.

Text until a trigger, literals, sequences, choices, repetitions and tags compose schemas, patterns and grammars into
one automaton: a tool call is a tagged name and a tagged schema between two literals. Triggers are an Aho-Corasick
automaton; after a trigger began, text and literal are followed side by side until the bytes decide.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ramet.constrained import spec as specs
from ramet.constrained.automaton import ir
from ramet.constrained.automaton.references import renamed
from ramet.constrained.json_schema.lower import lower, lower_object
from ramet.constrained.lark.gbnf import is_gbnf, translate
from ramet.constrained.ledger import LedgerEntry
from ramet.constrained.regex import dfa as regular
from ramet.constrained.regex.dfa import MAX_BYTE, Dfa, Edge, Row, joined
from ramet.constrained.regex.language import language
from ramet.constrained.regex.text import to_utf8
from ramet.runtime.errors import GrammarRefused

START = "#"
_MAX_CHOICES = 100_000


@dataclass
class Composed:
    """A grammar under construction."""

    rules: dict[str, ir.Expr] = field(default_factory=dict)
    ledger: list[LedgerEntry] = field(default_factory=list)

    def grammar(self, start: ir.Expr) -> ir.Grammar:
        """The finished grammar."""
        return ir.Grammar({**self.rules, START: start}, START, tuple(self.ledger))

    def include(self, grammar: ir.Grammar) -> ir.Expr:
        """Take in another grammar's rules under fresh names; gives the call of its start."""
        prefix = f"{len(self.rules)}:"
        for name, body in grammar.rules.items():
            self.rules[prefix + name] = renamed(body, prefix.__add__)
        self.ledger.extend(entry for entry in grammar.notes if isinstance(entry, LedgerEntry))
        return ir.Ref(prefix + grammar.start)


def compose(spec: specs.Spec) -> ir.Grammar:
    """The grammar of a spec; its notes are the ledger. Raises GrammarRefused."""
    composed = Composed()
    return composed.grammar(expression(spec, composed, "$"))


def expression(spec: specs.Spec, composed: Composed, at: str) -> ir.Expr:
    """One spec as an expression. `at` is its path within the whole, for errors."""
    match spec:
        case specs.JsonSchema():
            return composed.include(_schema(spec))
        case specs.JsonObject():
            return composed.include(lower_object(spec).grammar)
        case specs.Regex():
            return ir.Lang(
                to_utf8(language(spec.pattern, whole=True, at=f"{at}.{'regex' if at == '$' else 'pattern'}"))
            )
        case specs.Choice():
            return ir.Lang(_choices(spec.choices, f"{at}.choices"))
        case specs.Lark():
            assert is_gbnf(spec.grammar), "what needs a lexer is a part of its own"
            return composed.include(translate(spec.grammar, spec.start, at=f"{at}.grammar"))
        case specs.Text():
            return ir.Lang(text_until(spec.until))
        case specs.Literal_():
            return ir.Special(spec.text) if spec.special else ir.Literal(spec.text.encode())
        case specs.Sequence():
            return ir.Seq(_each(spec.items, composed, at))
        case specs.OneOf():
            return ir.Alt(_each(spec.items, composed, at))
        case specs.Repeat():
            return _repeat(spec, composed, at)
        case specs.Tagged():
            return ir.Tagged(spec.name, expression(spec.item, composed, f"{at}.item"))


def _schema(spec: specs.JsonSchema) -> ir.Grammar:
    """A schema's grammar; a refusal says which schema it was, for its pointer begins at that schema's root."""
    try:
        return lower(spec).grammar
    except GrammarRefused as refusal:
        if spec.title:
            hint = f"{refusal.hint} The schema is that of {spec.title}.".lstrip()
            refusal.args, refusal.hint = (f"{refusal} The schema is that of {spec.title}.",), hint
        raise


def _each(items: Iterable[specs.Spec], composed: Composed, at: str) -> tuple[ir.Expr, ...]:
    return tuple(expression(item, composed, f"{at}.items[{i}]") for i, item in enumerate(items))


def _repeat(spec: specs.Repeat, composed: Composed, at: str) -> ir.Expr:
    if spec.minimum < 0 or (spec.maximum is not None and spec.maximum < spec.minimum):
        raise GrammarRefused(expected="0 <= minimum <= maximum", got=(spec.minimum, spec.maximum), at=at)
    item = expression(spec.item, composed, f"{at}.item")
    separator = ir.Literal(spec.separator.encode()) if spec.separator else None
    return ir.Repeat(item, spec.minimum, spec.maximum, separator)


def _choices(choices: tuple[str, ...], at: str) -> Dfa:
    if not choices or len(choices) > _MAX_CHOICES:
        raise GrammarRefused(expected=f"1 to {_MAX_CHOICES} choices", got=len(choices), at=at)
    return regular.from_texts(choice.encode() for choice in choices)


def text_until(triggers: Iterable[str]) -> Dfa:
    """Byte strings in which no trigger occurs: Aho and Corasick's automaton without the states that have met one."""
    children, met = _trie(trigger.encode() for trigger in triggers if trigger)
    goes = _with_failures(children, met)
    kept = {state: number for number, state in enumerate(s for s in range(len(children)) if not met[s])}
    rows: list[Row] = []
    for state in kept:
        edges: list[Edge] = [(b, b, kept[t]) for b, t in enumerate(goes[state]) if t in kept]
        rows.append(joined(edges))
    return Dfa(tuple(rows), frozenset(range(len(rows))), MAX_BYTE)


def _trie(words: Iterable[bytes]) -> tuple[list[dict[int, int]], list[bool]]:
    children: list[dict[int, int]] = [{}]
    met = [False]
    for word in words:
        state = 0
        for byte in word:
            if byte not in children[state]:
                children[state][byte] = len(children)
                children.append({})
                met.append(False)
            state = children[state][byte]
        met[state] = True
    return children, met


def _with_failures(children: list[dict[int, int]], met: list[bool]) -> list[list[int]]:
    """The full transition table; `met` spreads to states that end in a trigger."""
    goes: list[list[int]] = [[0] * 256 for _ in children]
    fails = [0] * len(children)
    queue = [0]
    for state in queue:  # breadth first, grows while we walk it
        for byte in range(256):
            shorter = goes[fails[state]][byte] if state else 0
            child = children[state].get(byte)
            if child is None:
                goes[state][byte] = shorter
                continue
            goes[state][byte], fails[child] = child, shorter
            met[child] = met[child] or met[shorter]
            queue.append(child)
    return goes
