"""Random small grammars for property tests: every construct of the intermediate representation, few letters."""

from hypothesis import strategies as st

from ramet.constrained.automaton import ir
from ramet.constrained.automaton.spacing import BOUNDED, COMPACT, EXACT
from ramet.constrained.regex.dfa import Dfa
from ramet.constrained.regex.language import language
from ramet.constrained.regex.text import to_utf8

PATTERNS = ["a*", "(ab)+", "a|bc|b", "a{2,4}b?", "[^a]{1,3}", "é?b*", "(aa|b)*", ".{0,5}"]


def code_points(pattern: str) -> Dfa:
    return language(pattern, whole=True)


LITERALS = st.binary(max_size=2).map(lambda data: ir.Literal(bytes(97 + b % 3 for b in data)))
LANGS = st.sampled_from(PATTERNS).map(lambda pattern: ir.Lang(to_utf8(code_points(pattern))))
BOUNDS = st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(0, 4)))
STRINGS = st.builds(
    lambda pattern, bounds, escapes: ir.String(None if pattern is None else code_points(pattern), *bounds, escapes),
    st.one_of(st.none(), st.sampled_from(PATTERNS)),
    BOUNDS,
    st.sampled_from(["usual", "all"]),
)
SPACINGS = st.sampled_from([COMPACT, BOUNDED, EXACT])
NAMES = ["a", "ab", "b", "é"]


def objects(values: st.SearchStrategy[ir.Expr]) -> st.SearchStrategy[ir.Expr]:
    @st.composite
    def made(draw: st.DrawFn) -> ir.Expr:
        names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
        members = tuple(ir.Member(name, draw(values), draw(st.booleans())) for name in names)
        free = (ir.FreeMember(code_points("x[ab]?"), draw(values)),) if draw(st.booleans()) else ()
        indices = st.lists(st.integers(0, len(names) - 1), max_size=2).map(tuple) if names else st.just(())
        clauses = tuple(ir.Clause(draw(indices), draw(indices)) for _ in range(draw(st.integers(0, 2))))
        minimum, maximum = draw(BOUNDS)
        order = draw(st.sampled_from(["fixed", "any"]))
        return ir.Object(members, free, minimum, maximum, clauses, order, draw(SPACINGS))

    return made()


def arrays(values: st.SearchStrategy[ir.Expr]) -> st.SearchStrategy[ir.Expr]:
    @st.composite
    def made(draw: st.DrawFn) -> ir.Expr:
        minimum, maximum = draw(BOUNDS)
        kind, spacing = draw(st.sampled_from(["plain", "unique", "contains"])), draw(SPACINGS)
        if kind == "plain":
            prefix = tuple(draw(st.lists(values, max_size=2)))
            items = draw(st.one_of(st.none(), values))
            return ir.Array(prefix, items, minimum, maximum, spacing=spacing)
        if kind == "unique":
            texts = draw(st.lists(st.sampled_from([b"1", b"12", b"true"]), unique=True, max_size=3))
            unique = tuple(map(ir.Literal, texts))
            return ir.Array(minimum=minimum, maximum=maximum, unique=unique, spacing=spacing)
        contains = ir.Contains(draw(values), draw(values), *draw(BOUNDS))
        return ir.Array(minimum=minimum, maximum=maximum, contains=contains, spacing=spacing)

    return made()


def composed(values: st.SearchStrategy[ir.Expr]) -> st.SearchStrategy[ir.Expr]:
    several = st.lists(values, max_size=3).map(tuple)
    repeats = st.builds(
        lambda item, bounds, separator: ir.Repeat(item, *bounds, separator),
        values,
        BOUNDS,
        st.one_of(st.none(), values),
    )
    return st.one_of(
        several.map(ir.Seq),
        several.map(ir.Alt),
        repeats,
        objects(values),
        arrays(values),
        st.builds(ir.Tagged, st.sampled_from(["t", "u"]), values),
    )


# A recursive rule sits behind a byte, so it is never left-recursive.
REFS = st.sampled_from(["r", "s"]).map(lambda name: ir.Seq((ir.Literal(b"("), ir.Ref(name))))
PLAIN = st.recursive(st.one_of(LITERALS, LANGS, STRINGS), composed, max_leaves=4)
"""Bodies of rules that do not recur."""
CALLS = st.sampled_from(["p", "q"]).map(ir.Ref)
EXPRESSIONS = st.recursive(st.one_of(LITERALS, LANGS, STRINGS, REFS, CALLS), composed, max_leaves=5)
GRAMMARS = st.builds(
    lambda start, r, s, p, q: ir.Grammar({"#": start, "r": r, "s": s, "p": p, "q": q}, "#"),
    EXPRESSIONS,
    EXPRESSIONS,
    EXPRESSIONS,
    PLAIN,
    PLAIN,
)
