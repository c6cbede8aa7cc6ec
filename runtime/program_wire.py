"""Wire form of `/v1/programs`, for both of its ends. A leaf: values only.

One path per verb of EngineClient below `/v1/programs/{program_id}/branches/{branch_id}`; bodies and answers are these
structs and those of types.py as msgspec writes them; `generate` answers with server-sent events, one tagged Event each.
"""

import msgspec

from ramet.runtime.types import GapKind, Piece, SelectMethod


class OpenedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `POST /v1/programs`, whose body is a ProgramSpec."""

    program_id: str
    branch_id: int


class ExtendBody(msgspec.Struct, frozen=True, kw_only=True):
    pieces: list[Piece]


class SelectBody(msgspec.Struct, frozen=True, kw_only=True):
    choices: list[str]
    method: SelectMethod = "total"
    temperature: float = 0.0
    seed: int | None = None
    append: bool = True


class ForkBody(msgspec.Struct, frozen=True, kw_only=True):
    n: int


class ForkedBranches(msgspec.Struct, frozen=True, kw_only=True):
    branch_ids: list[int]


class MarkBody(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to mark, body of rollback."""

    num_tokens: int
    serial: int


class GapBody(msgspec.Struct, frozen=True, kw_only=True):
    kind: GapKind
    tool: str | None = None
    expected_s: float | None = None


class TokensBody(msgspec.Struct, frozen=True, kw_only=True):
    """A branch's tokens; body of detokenize and answer to tokenize."""

    tokens: list[int]
    skip_special: bool = False
    """Of detokenize."""


class TextBody(msgspec.Struct, frozen=True, kw_only=True):
    """A branch's text; body of tokenize and answer to detokenize."""

    text: str
    allow_special: bool = False
    """Of tokenize."""
    add_bos: bool = False
    """Of tokenize."""


class Flushed(msgspec.Struct, frozen=True, kw_only=True):
    num_pages: int


class RestoredProgram(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `POST /v1/programs/restore`, whose body is what `checkpoint` answered."""

    program_id: str
    branch_ids: list[int]
