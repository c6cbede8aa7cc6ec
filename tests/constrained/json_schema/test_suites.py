"""The three suites of ../shared, a part of each: verdicts of the grammar, of the validator, and what is refused."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet.constrained.json_schema.lower import validate_final
from ramet.constrained.ledger import LedgerEntry
from ramet.runtime.errors import GrammarRefused

sys.path.insert(0, str(Path(__file__).parent))
from schema_grammars import accepts, grammar_of

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="../shared is not here")

UNENFORCED = {"dynamicRef", "vocabulary", "format"}
"""Files about dynamic scope, meta-schemas' vocabularies, and formats that assert nothing (Ramet asserts them)."""


def rows(name: str, every: int = 1) -> Iterator[dict[str, Any]]:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    yield from map(json.loads, lines[::every])


def suite_rows(every: int) -> Iterator[dict[str, Any]]:
    for row in rows("json_schema_test_suite.jsonl", every):
        schema = row["schema"]
        if row["draft"] == "draft7" and isinstance(schema, dict) and "$schema" not in schema:
            row["schema"] = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
        if not row["optional"]:
            yield row


def test_micro_cases_are_right_or_declared() -> None:
    for row in rows("json_schema_micro_cases.jsonl"):
        grammar = grammar_of(row["schema"])
        assert not [text for text in row["reject"] if accepts(grammar, text)], row["name"]
        missed = [text for text in row["accept"] if not accepts(grammar, text)]
        stricter = [e for e in grammar.ledger if isinstance(e, LedgerEntry) and e.status == "stricter"]
        assert not missed or stricter, (row["name"], missed)


def test_the_official_suite_finds_no_wrong_accept() -> None:
    num_right = num_tests = 0
    for row in suite_rows(every=3):
        num_tests += len(row["tests"])
        try:
            grammar = grammar_of(row["schema"], any_order=True)
        except GrammarRefused as refusal:
            assert str(refusal.at).startswith("#"), row["id"]
            if "unsatisfiable" in refusal.code:
                assert not any(test["valid"] for test in row["tests"]), row["id"]
            continue
        for test in row["tests"]:
            accepted = accepts(grammar, json.dumps(test["instance"], ensure_ascii=False))
            assert accepted <= test["valid"], (row["id"], test)
            num_right += accepted == test["valid"]
    assert num_right >= 0.8 * num_tests


def test_the_validator_agrees_with_the_official_suite() -> None:
    for row in suite_rows(every=1):
        if row["file"] in UNENFORCED:
            continue
        for test in row["tests"]:
            try:
                valid = not validate_final(json.dumps(row["schema"]), test["instance"])
            except GrammarRefused:
                continue
            assert valid == test["valid"], (row["id"], test)


def test_real_schemas_are_right_or_refused() -> None:
    for row in rows("jsonschemabench/open.jsonl", every=17):
        try:
            grammar = grammar_of(row["schema"], any_order=True)
        except GrammarRefused:
            continue
        for test in row["tests"]:
            text = json.dumps(test["instance"], ensure_ascii=False)
            assert accepts(grammar, text) == test["valid"], (row["id"], text[:200])
