"""The word that was probably meant. Stdlib only."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """`Did you mean 'max_tokens'?`, or nothing where no known word is near."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"Did you mean {near[0]!r}?" if near else ""
