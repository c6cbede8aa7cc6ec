"""Keywords that no grammar can hold: where a tool is not strict, or a schema says `unsupported: declare`, the finished
value is judged by them.

The ledger said at the beginning which keywords were deferred; this says at the end whether they hold.
"""

import json
from collections.abc import Mapping, Sequence

from ramet.constrained.spec import JsonSchema, OneOf, Spec
from ramet.runtime.serve.tools.base import Call, Tool

Ledger = Sequence[Mapping[str, str]] | None


def violations(calls: Sequence[Call], tools: Sequence[Tool], ledger: Ledger) -> list[dict[str, str]] | None:
    """What each call's arguments fail of its tool's schema: the call's id, the keyword's pointer, the place in the
    arguments. None where nothing was deferred, so nothing had to be judged."""
    if not _has_deferred(ledger):
        return None
    parameters = {tool.name: tool.parameters for tool in tools}
    return [
        {"id": call.id, "tool": call.name, "pointer": pointer, "at": at}
        for call in calls
        for pointer, at in _failures(json.dumps(parameters[call.name]), call.arguments)
    ]


def answer_violations(
    answers: Sequence[str | None], grammar: Spec | None, ledger: Ledger
) -> list[dict[str, object]] | None:
    """What each answer that is no call fails of the response format: the choice, the keyword's pointer, the place in
    the answer. None where nothing had to be judged."""
    wanted = grammar.items[0] if isinstance(grammar, OneOf) else grammar
    if not isinstance(wanted, JsonSchema) or wanted.unsupported != "declare" or not _has_deferred(ledger):
        return None
    return [
        {"choice": number, "pointer": pointer, "at": at}
        for number, answer in enumerate(answers)
        if answer is not None
        for pointer, at in _failures(wanted.schema, answer)
    ]


def _has_deferred(ledger: Ledger) -> bool:
    return any(entry.get("status") == "deferred" for entry in ledger or ())


def _failures(schema: str, text: str) -> list[tuple[str, str]]:
    from ramet.constrained.json_schema.lower import judge  # late: most servers never come here

    return [(failure.pointer, failure.at) for failure in judge(schema, text)]
