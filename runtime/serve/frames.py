"""What travels between the front and the engine process: one msgpack frame a message, tagged msgspec structs.

The verbs are those of `EngineClient`: the front's client and the engine's differ only in the wire between them.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from ramet.runtime.checkpoint import SavedProgram
from ramet.runtime.types import (
    BranchHandle,
    Event,
    Failed,
    GapKind,
    GenerateSpec,
    Mark,
    ModelCard,
    Piece,
    ProgramSpec,
    SelectMethod,
)


class Open(msgspec.Struct, frozen=True, tag="open"):
    program: ProgramSpec


class Extend(msgspec.Struct, frozen=True, tag="extend"):
    branch: BranchHandle
    pieces: list[Piece]


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    branch: BranchHandle
    spec: GenerateSpec


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Stop the call with this id: its caller is gone."""

    call: int


class Select(msgspec.Struct, frozen=True, tag="select"):
    branch: BranchHandle
    choices: list[str]
    method: SelectMethod
    temperature: float
    seed: int | None
    append: bool


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    branch: BranchHandle
    n: int


class TakeMark(msgspec.Struct, frozen=True, tag="mark"):
    branch: BranchHandle


class Rollback(msgspec.Struct, frozen=True, tag="rollback"):
    branch: BranchHandle
    mark: Mark


class Gap(msgspec.Struct, frozen=True, tag="gap"):
    branch: BranchHandle
    kind: GapKind
    tool: str | None
    expected_s: float | None


class Close(msgspec.Struct, frozen=True, tag="close"):
    branch: BranchHandle
    program: bool


class TokensOf(msgspec.Struct, frozen=True, tag="tokens"):
    branch: BranchHandle


class TextOf(msgspec.Struct, frozen=True, tag="text"):
    branch: BranchHandle


class Tokenize(msgspec.Struct, frozen=True, tag="tokenize"):
    text: str
    allow_special: bool
    add_bos: bool


class Detokenize(msgspec.Struct, frozen=True, tag="detokenize"):
    tokens: list[int]
    skip_special: bool


class Statistics(msgspec.Struct, frozen=True, tag="statistics"):
    pass


class FlushCache(msgspec.Struct, frozen=True, tag="flush_cache"):
    pass


class Checkpoint(msgspec.Struct, frozen=True, tag="checkpoint"):
    program_id: str


class Restore(msgspec.Struct, frozen=True, tag="restore"):
    program: SavedProgram


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """Answered with events, as Generate is."""

    branch: BranchHandle


Verb = (
    Open
    | Extend
    | Generate
    | Abort
    | Select
    | Fork
    | TakeMark
    | Rollback
    | Gap
    | Close
    | TokensOf
    | TextOf
    | Tokenize
    | Detokenize
    | Statistics
    | FlushCache
    | Checkpoint
    | Restore
    | Resume
)


class Call(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """Front to engine."""

    id: int
    verb: Verb


class Value(msgspec.Struct, frozen=True, array_like=True, tag="v"):
    """A verb's result, or the end of a generation (empty)."""

    id: int
    value: msgspec.Raw


class Emitted(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """One event of a generation."""

    id: int
    event: Event


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """The verb failed with one of our errors."""

    id: int
    error: Failed


class Loading(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """How far the model's weights have come."""

    bytes_done: int
    bytes_total: int


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="y"):
    """The engine serves. `tokenizer` is what `Tokenizer.from_bytes` reads, so that the front needs no torch."""

    card: ModelCard
    tokenizer: bytes


class Crashed(msgspec.Struct, frozen=True, array_like=True, tag="x"):
    """The engine can't start or go on; the message is for the operator."""

    message: str


Answer = Value | Emitted | Refused | Loading | Ready | Crashed

encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
decode_call: Callable[[bytes], Call] = msgspec.msgpack.Decoder(Call).decode
decode_answers: Callable[[bytes], list[Answer]] = msgspec.msgpack.Decoder(list[Answer]).decode
