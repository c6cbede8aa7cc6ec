"""docs/known-failures.md keeps its word: every test that it names is there, and every row has one."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "known-failures.md").read_text()
SHORT = dict(re.findall(r"`(\w+)` is\s+`([\w/.]+)`", PAGE))


def test_every_named_test_exists() -> None:
    named = set(re.findall(r"`([\w/.]+)::(\w+)`", PAGE))
    assert len(named) > 100
    sources = {file: (TESTS / SHORT.get(file, file)).read_text() for file, _ in named}
    assert [name for file, name in sorted(named) if f"def {name}(" not in sources[file]] == []


def test_every_row_has_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| (O?\d+|[a-z])", line) and "behaviour" not in line]
    assert [row for row in rows if "::" not in row] == []
    numbered = {int(found) for line in rows for found in re.findall(r"^\| (\d+) \|", line)}
    assert numbered == set(range(1, 41))
    ids = " ".join(line.split("|")[1] for line in rows if line.startswith("| O"))
    spelled = {int(number) for number in re.findall(r"O(\d+)", ids)} | {14, 15}  # O13 to O16
    assert spelled == set(range(1, 37))


def test_every_rule_has_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| R")]
    assert [row for row in rows if "::" not in row] == []
    spelled = {int(number) for row in rows for number in re.findall(r"R(\d+)", row.split("|")[1])} | {11, 12}
    assert spelled == set(range(1, 21))
