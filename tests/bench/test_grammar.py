"""The grammar bench counts a schema's own language, and says beside it what the declared order alone would give."""

import json
from pathlib import Path

import pytest

from ramet.bench import grammar
from ramet.bench.form import report

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
ROWS = [
    {"id": "in another order", "schema": SCHEMA, "tests": [{"instance": {"b": 1, "a": 2}, "valid": True}]},
    {"id": "in its order", "schema": SCHEMA, "tests": [{"instance": {"a": 2, "b": 1}, "valid": True}]},
    {"id": "refused", "schema": {"$ref": "#"}, "tests": [{"instance": 1, "valid": True}]},
]


def test_both_orders_are_counted_side_by_side(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, ROWS)))
    found = report("grammar", grammar.measure({"suite": "jsonschemabench", "data": str(data)}))
    figures, notes = found["figures"], found["notes"]
    assert isinstance(figures, dict) and isinstance(notes, dict)
    assert (figures["right"], figures["refused"], figures["wrong_rejects"]) == (2, 1, 0)
    assert (figures["declared_order_right"], figures["declared_order_wrong_rejects"]) == (1, 1)
    assert figures["declared_order_of_key_order"] == 1
    assert {name: notes["declared_order"][name] for name in ("right", "wrong_rejects", "of_key_order")} == {
        "right": 1,
        "wrong_rejects": 1,
        "of_key_order": 1,
    }


def test_an_unknown_suite_has_no_figures() -> None:
    with pytest.raises(grammar.NotCorrect, match="--suite"):
        grammar.measure({"suite": "nope", "data": "x"})
