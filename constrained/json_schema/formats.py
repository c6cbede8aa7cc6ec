"""The formats of the specification as languages of texts.

Each is a pattern built from the grammar of its RFC, turned into an automaton when first asked for. `exact` formats are
their RFC; `stricter` ones are subsets of it (the reason stands beside them), and their negations subsets of the true
negation. Names that the specification does not define are annotations and not here.
"""

from dataclasses import dataclass
from functools import lru_cache

from ramet.constrained.json_schema.languages import complement
from ramet.constrained.json_schema.records import Strings
from ramet.constrained.regex.dfa import Dfa
from ramet.constrained.regex.language import language as pattern_language

ANYTHING = r"[\s\S]*"


@dataclass(frozen=True, slots=True)
class Format:
    """One format."""

    pattern: str
    """Matches the whole text."""
    maximum: int | None = None
    """Greatest length in code points, where the pattern does not say it."""
    stricter: str = ""
    """Which legal texts the pattern leaves out; empty for an exact format."""
    wider: str = ANYTHING
    """Of a stricter format: matches every legal text and more. What it does not match certainly fails the format."""


def _date() -> str:
    day = "(0[1-9]|1[0-9]|2[0-8])"
    leap = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
    common = f"[0-9]{{4}}-((0[1-9]|1[0-2])-{day}|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
    return f"({common}|{leap}-02-29)"


def _time() -> str:
    hour, sixty = "([01][0-9]|2[0-3])", "[0-5][0-9]"
    offset = f"([Zz]|[+-]{hour}:{sixty})"
    return f"({hour}:{sixty}:{sixty}(\\.[0-9]+)?{offset}|23:59:60(\\.[0-9]+)?([Zz]|[+-]00:00))"


_ANY_TIME = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"


def _duration() -> str:
    second = "[0-9]+S"
    minute = f"[0-9]+M({second})?"
    hour = f"[0-9]+H({minute})?"
    clock = f"T({hour}|{minute}|{second})"
    day = "[0-9]+D"
    month = f"[0-9]+M({day})?"
    year = f"[0-9]+Y({month})?"
    return f"P(({day}|{month}|{year})({clock})?|{clock}|[0-9]+W)"


_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"([ !#-\[\]-~]|\\[ -~])*"'
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(\.{_OCTET}){{3}}"
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_PLAIN_LABEL = (  # no `--` in places 3 and 4, where it would announce an encoding
    "([A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9-][A-Za-z0-9]"
    "|[A-Za-z0-9][A-Za-z0-9-]([A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])([A-Za-z0-9-]{0,58}[A-Za-z0-9])"
    "|[A-Za-z0-9][A-Za-z0-9-]([A-Za-z0-9-])[A-Za-z0-9])"
)


def _ipv6() -> str:
    h16 = "[0-9A-Fa-f]{1,4}"
    ls32 = f"({h16}:{h16}|{_IPV4})"
    forms = [f"({h16}:){{6}}{ls32}", f"::({h16}:){{5}}{ls32}"]
    for before in range(1, 8):
        head = f"({h16}(:{h16}){{0,{before - 1}}})?::"
        after = 5 - before
        tail = f"({h16}:){{{after}}}{ls32}" if after >= 0 else h16 if after == -1 else ""
        forms.append(head + tail)
    return f"({'|'.join(forms)})"


def _uri(extra: str, private: str, *, reference: bool) -> str:
    """RFC 3986, and RFC 3987 where `extra` and `private` bring the characters beyond ASCII."""
    unreserved, subs, pct = rf"A-Za-z0-9._~\-{extra}", "!$&'()*+,;=", "%[0-9A-Fa-f]{2}"
    pchar = f"([{unreserved}{subs}:@]|{pct})"
    segment, segment_nz = f"{pchar}*", f"{pchar}+"
    segment_nz_nc = f"([{unreserved}{subs}@]|{pct})+"
    userinfo = f"([{unreserved}{subs}:]|{pct})*"
    future = f"[vV][0-9A-Fa-f]+\\.[A-Za-z0-9._~\\-{subs}:]+"
    host = f"(\\[({_ipv6()}|{future})\\]|([{unreserved}{subs}]|{pct})*)"
    authority = f"({userinfo}@)?{host}(:[0-9]*)?"
    abempty, absolute = f"(/{segment})*", f"/({segment_nz}(/{segment})*)?"
    hier = f"(//{authority}{abempty}|{absolute}|{segment_nz}(/{segment})*|)"
    query, fragment = f"([{unreserved}{subs}:@/?{private}]|{pct})*", f"([{unreserved}{subs}:@/?]|{pct})*"
    tail = f"(\\?{query})?(#{fragment})?"
    uri = f"[A-Za-z][A-Za-z0-9+.\\-]*:{hier}{tail}"
    if not reference:
        return uri
    relative = f"(//{authority}{abempty}|{absolute}|{segment_nz_nc}(/{segment})*|)"
    return f"({uri}|{relative}{tail})"


_UCS = r"\u{A0}-\u{D7FF}\u{F900}-\u{FDCF}\u{FDF0}-\u{FFEF}" + "".join(
    rf"\u{{{plane:X}{'1000' if plane == 0xE else '0000'}}}-\u{{{plane:X}FFFD}}" for plane in range(1, 0xF)
)
_PRIVATE = r"\u{E000}-\u{F8FF}\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}"


def _template() -> str:
    literal = rf"([!#-$&'(-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]|%[0-9A-Fa-f]{{2}})"
    name_char = "([A-Za-z0-9_]|%[0-9A-Fa-f]{2})"
    variable = rf"{name_char}(\.?{name_char})*(:[1-9][0-9]{{0,3}}|\*)?"
    return rf"({literal}|\{{[+#./;?&=,!@|]?{variable}(,{variable})*\}})*"


def _pattern_text() -> str:
    """Patterns that are valid beyond doubt: sure escapes, ordered ranges, groups nested at most two deep."""
    escape = r"\\([dDwWsStnrvf0^$\\.*+?()\[\]{}|/]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})"
    plain = r"[^\\^$.*+?()\[\]{}|]"
    ordered = "0-[0-9]|[0-8]-9|1-[1-9]|[Aa]-[a-z]|A-[A-Z]|[A-Y]-Z|[a-y]-z"
    member = rf"({ordered}|[^\\\[\]^-]|{escape})"
    chars = rf"\[\^?({member}+-?|-{member}*)\]"
    counted = r"(0|[1-9][0-9]{0,3})"
    times = rf"([*+?]|\{{({counted},?|[01],[1-9][0-9]{{0,3}})\}})\??"
    tree = ""
    for _ in range(3):
        group = rf"|\((\?[:=!])?{tree}\)" if tree else ""
        tree = rf"(([$^]|\\[bB]|({plain}|\.|{escape}|{chars}{group})({times})?)*)"
        tree = rf"({tree}(\|{tree})*)"
    return tree


_POINTER = r"(/([^/~]|~[01])*)*"

_TABLE: dict[str, Format] = {
    "date": Format(_date()),
    "time": Format(_time(), stricter="leap seconds only at offset zero", wider=_ANY_TIME),
    "date-time": Format(
        f"{_date()}[Tt]{_time()}", stricter="leap seconds only at offset zero", wider=f"{_date()}[Tt]{_ANY_TIME}"
    ),
    "duration": Format(_duration()),
    "email": Format(rf"({_ATOM}(\.{_ATOM})*|{_QUOTED})@({_DOMAIN}|\[({_IPV4}|IPv6:{_ipv6()})\])"),
    "idn-email": Format(rf"{_ATOM}(\.{_ATOM})*@{_DOMAIN}", stricter="ASCII addresses only"),
    "hostname": Format(rf"{_PLAIN_LABEL}(\.{_PLAIN_LABEL})*", 253, stricter="no encoded (xn--) labels", wider=_DOMAIN),
    "idn-hostname": Format(rf"{_PLAIN_LABEL}(\.{_PLAIN_LABEL})*", 253, stricter="ASCII host names only"),
    "ipv4": Format(_IPV4),
    "ipv6": Format(_ipv6()),
    "uri": Format(_uri("", "", reference=False)),
    "uri-reference": Format(_uri("", "", reference=True)),
    "iri": Format(_uri(_UCS, _PRIVATE, reference=False)),
    "iri-reference": Format(_uri(_UCS, _PRIVATE, reference=True)),
    "uri-template": Format(_template()),
    "uuid": Format("[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"),
    "json-pointer": Format(_POINTER),
    "relative-json-pointer": Format(rf"(0|[1-9][0-9]*)(#|{_POINTER})"),
    "regex": Format(_pattern_text(), stricter="common syntax, groups at most two deep"),
}

NAMES = frozenset(_TABLE)
"""The formats that are enforced."""
MISSING: frozenset[str] = frozenset()
"""Formats that the specification defines and Ramet lacks."""


def stricter(name: str) -> str:
    """What a format leaves out; empty for an exact one."""
    return _TABLE[name].stricter


@lru_cache(maxsize=64)
def strings(name: str) -> Strings:
    """The texts of a format, as a record."""
    return Strings(frozenset({language(name)}), maximum=_TABLE[name].maximum)


@lru_cache(maxsize=64)
def language(name: str) -> Dfa:
    """The language of a format (without its greatest length, which `strings` has)."""
    return pattern_language(_TABLE[name].pattern, whole=True)


@lru_cache(maxsize=64)
def certain_failures(name: str) -> Dfa:
    """Texts that fail a format beyond doubt (all that do, for an exact format), lengths aside."""
    form = _TABLE[name]
    return complement(pattern_language(form.wider, whole=True) if form.stricter else language(name))


def accepts(name: str, text: str) -> bool:
    """Whether the text has the format."""
    maximum = _TABLE[name].maximum
    return (maximum is None or len(text) <= maximum) and language(name).matches(text)
