"""Keywords that no grammar can hold: where a tool that is not strict has one, the finished arguments are judged by it.

The ledger said at the beginning which keywords were deferred; this says at the end whether they hold.
"""

import json
from collections.abc import Mapping, Sequence

from ramet.runtime.serve.tools.base import Call, Tool


def violations(
    calls: Sequence[Call], tools: Sequence[Tool], ledger: Sequence[Mapping[str, str]] | None
) -> list[dict[str, str]] | None:
    """What each call's arguments fail of its tool's schema: the call's id, the keyword's pointer, the place in the
    arguments. None where nothing was deferred, so nothing had to be judged."""
    if not any(entry.get("status") == "deferred" for entry in ledger or ()):
        return None
    parameters = {tool.name: tool.parameters for tool in tools}
    return [
        {"id": call.id, "tool": call.name, "pointer": pointer, "at": at}
        for call in calls
        for pointer, at in _failures(parameters[call.name], call.arguments)
    ]


def _failures(schema: Mapping[str, object], arguments: str) -> list[tuple[str, str]]:
    from ramet.constrained.json_schema.lower import validate_final  # late: most servers never come here

    try:
        value = json.loads(arguments)
    except ValueError:
        return [("", "")]  # cut by the length: no JSON, so no schema holds
    return [(failure.pointer, failure.at) for failure in validate_final(json.dumps(schema), value)]
