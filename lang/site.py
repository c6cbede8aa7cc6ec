"""Where in the user's program a word was said. Knows frames, not branches.

The first frame outside this package is the program's own line; errors of a branch carry it as a note.
"""

import os
import sys
from typing import NamedTuple

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_MADE = ("<string>", "<frozen")
"""Frames of code that was made (dataclasses, the import system). A notebook's cell or `<stdin>` is the user's."""


class Site(NamedTuple):
    """A line of the program."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}"


NOWHERE = Site("<unknown>", 0, "<unknown>")


def caller() -> Site:
    """The nearest line outside `ramet.lang` and the standard library (whose frames are only our machinery)."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        ours = path.startswith((_HERE, *_MADE))
        if not ours and not (path.startswith(_LIBRARY) and "site-packages" not in path):
            return Site(path, frame.f_lineno, frame.f_code.co_name)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return NOWHERE


def note(error: BaseException, what: str, site: Site) -> None:
    """Say once, on the error itself, which line of the program it comes from."""
    if site is NOWHERE:  # our own machinery: there is no line to show
        return
    text = f"  from {what} at {site}"
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)
