"""Our own turns, remembered by what a client will send back of them: tool-call ids, or the very text.

A later request that echoes one gets the generated tokens in its prompt instead of a new tokenisation of a new
rendering, so the prefix cache hits to the last token. Only equal content is replaced (text equal, arguments equal as
JSON), within one tenant, so a wrong guess is impossible; the answer equals that of a cold run on those tokens. Bounded,
oldest first.
"""

import hashlib
import hmac
import json
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ramet.runtime.serve.tools.base import Call

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTurn:
    """An assistant turn that this server generated."""

    tokens: tuple[int, ...]
    """Without the end token: the template writes that one."""
    content: str
    reasoning: str
    calls: tuple[Call, ...]
    program_id: str


class OwnTurns:
    """The store, and the mint of tool-call ids."""

    def __init__(self, *, max_turns: int = 16384, secret: bytes | None = None) -> None:
        self._turns: OrderedDict[tuple[str, str], OwnTurn] = OrderedDict()
        self._max_turns = max_turns
        self._secret = secret or secrets.token_bytes(32)

    def mint(self, request_id: str, choice: int, call: int, prefix: str = "call_") -> str:
        """An id that no other call has and nobody can guess: 22 base-62 digits of an HMAC."""
        message = f"{request_id}/{choice}/{call}".encode()
        number = int.from_bytes(hmac.new(self._secret, message, hashlib.sha256).digest()[:17], "big")
        digits = []
        for _ in range(22):
            number, digit = divmod(number, 62)
            digits.append(_DIGITS[digit])
        return prefix + "".join(digits)

    def remember(self, tenant: str, turn: OwnTurn) -> None:
        """Keep a finished turn under each key by which it may come back."""
        for key in _keys(turn.content, [call.id for call in turn.calls]):
            self._turns[tenant, key] = turn
            self._turns.move_to_end((tenant, key))
        while len(self._turns) > self._max_turns:
            self._turns.popitem(last=False)

    def find(self, tenant: str, message: dict[str, Any]) -> OwnTurn | None:
        """The turn that this assistant message echoes, or None where it is not ours or was changed."""
        calls = _calls(message)
        content = message.get("content") or ""
        for key in _keys(content, [call.id for call in calls]):
            turn = self._turns.get((tenant, key))
            if turn is not None and _same(turn, content, message.get("reasoning_content") or "", calls):
                self._turns.move_to_end((tenant, key))
                return turn
        return None

    def program_of_call(self, tenant: str, call_id: str) -> str | None:
        """Which program made this tool call."""
        turn = self._turns.get((tenant, f"id:{call_id}"))
        return turn.program_id if turn else None


class OwnTexts:
    """The same for completions, which come back as the beginning of a longer text: prompt and answer -> tokens."""

    def __init__(self, *, max_texts: int = 1024) -> None:
        self._texts: OrderedDict[tuple[str, str], tuple[int, ...]] = OrderedDict()
        self._heads: dict[tuple[str, str], set[str]] = {}
        self._max_texts = max_texts

    def remember(self, tenant: str, text: str, tokens: Sequence[int]) -> None:
        """Keep what one completion's prompt and answer were, to the token. Short ones are not worth it."""
        if len(text) < _HEAD:
            return
        self._texts[tenant, text] = tuple(tokens)
        self._texts.move_to_end((tenant, text))
        self._heads.setdefault((tenant, text[:_HEAD]), set()).add(text)
        if len(self._texts) > self._max_texts:
            (owner, oldest), _ = self._texts.popitem(last=False)
            self._heads[owner, oldest[:_HEAD]].discard(oldest)

    def longest(self, tenant: str, text: str) -> tuple[str, tuple[int, ...]]:
        """The longest known beginning of `text`, and its tokens; ("", ()) where none is known."""
        known = [own for own in self._heads.get((tenant, text[:_HEAD]), ()) if text.startswith(own)]
        own = max(known, key=len, default="")
        return own, self._texts.get((tenant, own), ())


_HEAD = 48
"""Characters by which a text is looked up; shorter ones are not worth a splice."""


def _keys(content: str, call_ids: Sequence[str]) -> list[str]:
    if call_ids:
        return [f"id:{call_id}" for call_id in call_ids]
    return [f"text:{hashlib.sha256(content.encode('utf-8', 'replace')).hexdigest()}"] if content.strip() else []


def _same(turn: OwnTurn, content: str, reasoning: str, calls: Sequence[Call]) -> bool:
    """Does the echo say what we said? Reasoning that the client left out was left out on purpose."""
    if content.strip() != turn.content.strip() or reasoning.strip() != turn.reasoning.strip():
        return False
    if [(call.id, call.name) for call in calls] != [(call.id, call.name) for call in turn.calls]:
        return False
    return all(_equal_json(ours.arguments, theirs.arguments) for ours, theirs in zip(turn.calls, calls, strict=True))


def _equal_json(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    try:
        return bool(_typed(json.loads(ours)) == _typed(json.loads(theirs)))
    except ValueError:
        return False


def _typed(value: Any) -> Any:
    """JSON equality: true is not 1, key order says nothing."""
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return ("bool", value) if isinstance(value, bool) else value


def _calls(message: dict[str, Any]) -> list[Call]:
    return [
        Call(str(call.get("id", "")), call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or []
    ]
