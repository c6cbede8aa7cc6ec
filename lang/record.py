"""What stays of a run in a file: text, variables, messages, return value.

As JSON, so typed values come back as plain ones.
"""

from typing import Any

import msgspec

from ramet.lang.run import RunSettings, TracingRun
from ramet.lang.state import State
from ramet.lang.transcript import TurnBegin, TurnEnd
from ramet.runtime.types import ProgramSpec


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    text: str
    variables: dict[str, Any]
    messages: list[dict[str, Any]]
    returned: Any = None


def record_of(state: State) -> Record:
    """Of a run that has ended."""
    names = state.branch.transcript.names()
    return Record(
        text=state.text(),
        variables={name: _plain(slot.value.result()) for name, slot in names.items() if slot.value.exception() is None},
        messages=state.branch.messages(),
        returned=_plain(state.ret_value),
    )


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value, enc_hook=repr, str_keys=True)


def recall(name: str, record: Record) -> State:
    """A state that answers as the one that was recorded."""
    run = TracingRun(RunSettings(backend=_Recorded(), name=name, program=ProgramSpec()))
    branch = run.root
    for message in record.messages:
        extra = tuple((key, value) for key, value in message.items() if key not in ("role", "content"))
        branch.transcript.append(TurnBegin(message["role"], extra))
        branch.transcript.append(message["content"])
        branch.transcript.append(TurnEnd(message["role"]))
    for variable, value in record.variables.items():
        branch.set(variable, value)
    branch.last_text = record.text
    branch.lane.closed = True
    state = State(branch)
    state.ret_value = record.returned
    return state


class _Recorded:
    async def connect(self) -> Any:
        raise AssertionError("a recorded run runs nothing")
