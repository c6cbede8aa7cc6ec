"""One tool call as a JSON object, read a character at a time: its name, then its arguments as they come.

The arguments go out byte for byte, so that what was streamed, what is answered whole and what the client sends back
next turn are the same text. An object that turns out not to be a call is handed back as text.
"""

import json
from collections.abc import Callable, Collection

from ramet.runtime.serve.parts import CallArguments, CallBegin, CallEnd, Part, TextPart

ARGUMENT_KEYS = ("arguments", "parameters")


class JsonCall:
    """Reads `{"name": ..., "arguments": {...}}`, keys in any order, other keys skipped.

    `feed` returns how many characters it took; `ended` says that the closing bracket was among them.
    """

    def __init__(self, index: int, names: Collection[str] | None = None) -> None:
        self.index = index
        self.ended = False
        self.is_call = False
        """The name is known, and is one of `names` (None: any)."""
        self._names = names
        self._raw: list[str] = []
        self._state: Callable[[str], None] = self._start
        self._string = _StringEnd()
        self._depth = 0
        self._key = ""
        self._value: list[str] = []
        self._held: list[str] = []
        self._parts: list[Part] = []

    def feed(self, text: str) -> tuple[list[Part], int]:
        """Parts, and how many characters of `text` belong to this object."""
        taken = 0
        for character in text:
            self._state(character)
            taken += 1
            if self.ended:
                break
        self._raw.append(text[:taken])
        self._emit()
        if self.ended:
            self._parts.append(CallEnd(self.index) if self.is_call else TextPart("".join(self._raw)))
        parts, self._parts = self._parts, []
        return parts, taken

    def finish(self) -> list[Part]:
        """The output ended inside the object: the call stays as far as it came; a nameless one was text."""
        if self.ended:
            return []
        self.ended = True
        return [CallEnd(self.index)] if self.is_call else [TextPart("".join(self._raw))]

    # The states: each takes one character and names the next state.

    def _start(self, character: str) -> None:
        if character == "{":
            self._state = self._before_key

    def _before_key(self, character: str) -> None:
        if character == '"':
            self._value, self._state = [], self._in_key
        elif character == "}":
            self.ended = True

    def _in_key(self, character: str) -> None:
        if self._string.closes(character):
            self._key, self._state = _unescape("".join(self._value)), self._before_value
        else:
            self._value.append(character)

    def _before_value(self, character: str) -> None:
        if character.isspace() or character == ":":
            return
        self._value, self._depth = [], 0
        if character == '"':
            self._state = self._in_string_value
        else:
            self._state = self._in_nested if character in "{[" else self._in_scalar
            self._state(character)

    def _in_string_value(self, character: str) -> None:
        if not self._string.closes(character):
            self._value.append(character)
            return
        text = _unescape("".join(self._value))
        if self._key == "name":
            self._named(text)
        elif self._key in ARGUMENT_KEYS:  # some models quote their arguments once more
            self._held.append(text)
        self._state = self._before_key

    def _in_nested(self, character: str) -> None:
        self._argument(character)
        if self._string.is_open:
            self._string.closes(character)
            return
        if character == '"':
            self._string.open()
        self._depth += (character in "{[") - (character in "}]")
        if self._depth == 0:
            self._state = self._before_key

    def _in_scalar(self, character: str) -> None:
        if character in ",}" or character.isspace():
            self._state = self._before_key
            self._before_key(character)
        else:
            self._argument(character)

    def _argument(self, character: str) -> None:
        if self._key in ARGUMENT_KEYS:
            self._held.append(character)

    def _named(self, name: str) -> None:
        if not self.is_call and (self._names is None or name in self._names):
            self.is_call = True
            self._parts.append(CallBegin(self.index, name))

    def _emit(self) -> None:
        if self.is_call and self._held:
            self._parts.append(CallArguments(self.index, "".join(self._held)))
            self._held = []


class _StringEnd:
    """Finds the quote that closes a JSON string."""

    def __init__(self) -> None:
        self.is_open = False
        self._escaped = False

    def open(self) -> None:
        self.is_open = True

    def closes(self, character: str) -> bool:
        """Is this the closing quote?"""
        if self._escaped:
            self._escaped = False
            return False
        self._escaped = character == "\\"
        if character == '"':
            self.is_open = False
        return character == '"'


def _unescape(token: str) -> str:
    try:
        return str(json.loads(f'"{token}"'))
    except ValueError:
        return token
