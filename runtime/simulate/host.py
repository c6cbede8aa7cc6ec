"""A second tier in host memory, as a price: what it holds is loaded in place of being computed again.

Contexts are written through when a turn ends (the link idles while the model decodes) and found there by their session.
A turn that comes back waits until the part of its context that the device lost and the host has is transferred, one
after the other over one link, while others compute. The scheduler then plans that part as prefill, and the executor
charges nothing for it. Capacity is kept by least recent use, or by what a policy thinks a session is worth.
"""

from collections.abc import Callable

Worth = Callable[[str, float], float]
"""Session, time -> its worth; the smallest leaves first."""


class HostTier:
    """Context tokens by session. `worth` None: least recently used leaves first. `load_s`: seconds to transfer so many
    tokens."""

    def __init__(
        self, capacity_tokens: int, worth: Worth | None = None, load_s: Callable[[int], float] = lambda num_tokens: 0.0
    ) -> None:
        self.capacity_tokens, self._worth, self._load_s = capacity_tokens, worth, load_s
        self._link_free_s = 0.0
        self._held: dict[str, int] = {}  # in the order of last use
        self.num_tokens = 0

    def held(self, session: str) -> int:
        """Leading tokens of the session's context that are here."""
        return self._held.get(session, 0)

    def write(self, session: str, num_tokens: int, now: float) -> None:
        """The session's context is `num_tokens` long now, and all of it is copied; others leave for it."""
        self.num_tokens += num_tokens - self._held.pop(session, 0)
        self._held[session] = num_tokens
        while self.num_tokens > self.capacity_tokens and self._held:
            self.drop(self._first(now))

    def load(self, num_tokens: int, now: float) -> float:
        """When so many tokens of a session will be on the device."""
        if num_tokens <= 0:
            return now
        self._link_free_s = max(now, self._link_free_s) + self._load_s(num_tokens)
        return self._link_free_s

    def drop(self, session: str) -> None:
        """The session ended, or must leave."""
        self.num_tokens -= self._held.pop(session, 0)

    def _first(self, now: float) -> str:
        worth = self._worth
        if worth is None:
            return next(iter(self._held))
        return min(self._held, key=lambda session: worth(session, now))
