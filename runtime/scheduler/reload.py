"""Pages on their way from the disk tier into the tree, for the sequences that wait for them. Integers only."""

from ramet.radix.key import Tokens
from ramet.radix.lease import Lease


class Reload:
    """One run of pages behind a path that the tree has. Holds that path, and owns the pages until they arrive."""

    def __init__(
        self, lease: Lease, tokens: Tokens, pages: list[int], slots: list[int], owner: str, first_key: bytes
    ) -> None:
        self.lease, self.tokens, self.pages, self.owner, self.first_key = lease, tokens, pages, owner, first_key
        self.is_over = False
        self._place = {slot: place for place, slot in enumerate(slots)}
        self._failed_at = len(pages)
        self._num_missing = len(pages)

    def note(self, slot: int, is_done: bool) -> bool:
        """One page came, or did not; True when that was the last."""
        if not is_done:
            self._failed_at = min(self._failed_at, self._place[slot])
        self._num_missing -= 1
        return self._num_missing == 0

    @property
    def num_usable(self) -> int:
        """Pages before the first that could not be read: what lies behind that has no use."""
        return self._failed_at
