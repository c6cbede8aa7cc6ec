"""The account of a grammar as an answer tells it: what was not enforced exactly, and what the output fails of it.

The engine judges (`Finished.violations`); here its numbers become those of the answer, in every dialect alike.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ramet.runtime.serve.tools.base import Call
from ramet.runtime.types import Finished


def grammar_notes(finished: Sequence[Finished | None], calls: Sequence[Sequence[Call]] = ()) -> dict[str, Any]:
    """`ledger`, where something is not exact, and `violations`, where something was deferred (empty: all of it holds).

    finished  of each choice
    calls     of each choice: a violation in the n-th value of one with calls is one of its n-th call
    """
    notes: dict[str, Any] = {}
    known = [each for each in finished if each is not None]
    ledger = known[0].ledger if known else None
    if ledger and any(entry.get("status") != "exact" for entry in ledger):
        notes["ledger"] = ledger
    if any(each.violations is not None for each in known):
        notes["violations"] = [
            {**_where(number, violation, calls), **violation}
            for number, each in enumerate(finished)
            for violation in (each.violations if each is not None else None) or ()
        ]
    return notes


def _where(choice: int, violation: Mapping[str, object], calls: Sequence[Sequence[Call]]) -> dict[str, object]:
    part = violation["part"]
    made = calls[choice] if choice < len(calls) else ()
    if isinstance(part, int) and part < len(made):
        return {"choice": choice, "id": made[part].id, "tool": made[part].name}
    return {"choice": choice}
