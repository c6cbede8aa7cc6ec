"""Formats: what each takes and what it refuses."""

import pytest

from ramet.constrained.json_schema import formats

TABLE = {
    "date": (
        ["2024-02-29", "2000-02-29", "2023-12-31"],
        ["2023-02-29", "1900-02-29", "2024-13-01", "2024-04-31", "24-1-1"],
    ),
    "time": (["08:30:06Z", "23:59:60Z", "12:00:00.52-08:00"], ["24:00:00Z", "08:30:06", "12:00:60Z", "8:30:06Z"]),
    "date-time": (
        ["1963-06-19T08:30:06.283185Z", "1998-12-31t23:59:60z"],
        ["1990-02-31T15:59:59Z", "2020-01-01 00:00:00Z"],
    ),
    "duration": (["P4DT12H30M5S", "P4Y", "PT0S", "P2W", "P1M"], ["PT1D", "P", "PT", "4DT", "P1Y2W", "P1D2H"]),
    "email": (
        ["joe.bloggs@example.com", "~t@x.org", '"a b"@c.de', "j@[127.0.0.1]"],
        ["a@", "@b", ".a@b.c", "a..b@c.d", "a@-b.c"],
    ),
    "hostname": (
        ["example.com", "a", "1a.b-c"],
        ["-a", "a-", "a_b", "a..b", "a" * 64, "xn--X", ".".join(["a" * 49] * 6)],
    ),
    "ipv4": (["0.0.0.0", "255.255.255.255"], ["256.1.1.1", "01.1.1.1", "1.1.1", "1.1.1.1.1"]),
    "ipv6": (
        ["::1", "::", "12:34:56:78:9a:bc:de:f0", "::ffff:1.2.3.4", "1::d6:192.168.0.1"],
        ["12345::", "1:1:1:1:1:1:1:1:1", "::g", "1::2::3", "1:2:3:4:5:6:7", "fe80::a%eth1"],
    ),
    "uri": (
        ["http://a.b/c?d=e#f", "urn:x:y", "mailto:a@b.c", "ftp://[::1]:80/"],
        ["//a/b", "a b", "/x", "http://a b", ":x"],
    ),
    "uri-reference": (["/abc", "#f", "a/b?c", "http://x"], ["\\\\a", "#a\\b", "a b"]),
    "iri": (["http://ƒøø.ßår/?∂éœ=πîx"], ["âππ", "/abc"]),
    "uri-template": (["http://e.com/{term:1}/{term}", "{?a,b*}", "x"], ["{a", "a}", "{}"]),
    "uuid": (
        ["2EB8AA08-aa98-11ea-b4aa-73b441d16380"],
        ["2eb8aa08-aa98-11ea-b4aa-73b441d1638", "2eb8aa08aa9811eab4aa73b441d16380"],
    ),
    "json-pointer": (["", "/foo/bar~0/~1", "/ "], ["a", "/~2", "/a~"]),
    "relative-json-pointer": (["0", "1/a", "0#"], ["", "01", "-1", "#"]),
    "regex": (["^a+$", "([a-z]|\\d{2,})*?", "(?:a|b)c"], ["^(abc]", "a**", "(", "[z-a]", "\\"]),
}


@pytest.mark.parametrize(("name", "good", "bad"), [(name, *both) for name, both in TABLE.items()], ids=list(TABLE))
def test_format(name: str, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not formats.accepts(name, text)] == []
    assert [text for text in bad if formats.accepts(name, text)] == []


def test_every_format_says_whether_it_is_exact() -> None:
    exact = [name for name in formats.NAMES if not formats.stricter(name)]
    assert len(exact) >= 12
    assert all(formats.language(name).accepting for name in formats.NAMES)


@pytest.mark.parametrize("name", sorted(formats.NAMES - {"idn-email", "idn-hostname", "regex"}))
def test_what_certainly_fails_is_never_accepted(name: str) -> None:
    for good, bad in [TABLE.get(name, ([], []))]:
        failures = formats.certain_failures(name)
        assert not [text for text in good if failures.matches(text)]
        assert formats.stricter(name) or not [text for text in bad if not failures.matches(text)]
