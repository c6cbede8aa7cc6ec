"""How many prompt tokens a step may take while others decode, so that their next tokens are not late. Counts and
seconds.

A step of 2,048 tokens is nothing on a large GPU and a second or two on a CPU. So the bound is a time, and the tokens
follow from the speed that is measured. A step without decoding rows is not bounded by it: there is nobody to be late.
"""

_FIRST_GUESS = 128
"""Tokens, until a step was measured."""
_LEAST = 32
"""Tokens; smaller chunks cost more than they give."""
_WEIGHT = 0.25
"""Of the newest measurement."""


class StepPace:
    """`max_stall_s`: seconds that prompts may add to a step in which others decode."""

    def __init__(self, max_stall_s: float) -> None:
        if not max_stall_s > 0:
            raise ValueError(f"max_stall_s: expected more than 0 seconds, got {max_stall_s}")
        self._max_stall_s = max_stall_s
        self._tokens_per_s: float | None = None

    def note(self, num_tokens: int, seconds: float) -> None:
        """A step that computed so many tokens took so long. Steps of a few tokens measure the weights, not the
        speed."""
        if num_tokens < _LEAST or seconds <= 0:
            return
        measured = num_tokens / seconds
        known = self._tokens_per_s
        self._tokens_per_s = measured if known is None else known + _WEIGHT * (measured - known)

    @property
    def num_prompt_tokens(self) -> int:
        """That a step with decoding rows may take."""
        if self._tokens_per_s is None:
            return _FIRST_GUESS
        return max(_LEAST, int(self._tokens_per_s * self._max_stall_s))
