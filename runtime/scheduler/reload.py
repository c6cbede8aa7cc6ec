"""Pages on their way from the disk tier into the tree, for the sequences that wait for them. Integers only."""

from ramet.radix.key import Tokens
from ramet.radix.lease import Lease
from ramet.runtime.types import Moved


class Reload:
    """One run of pages behind a path that the tree has. Holds that path, and owns the pages until they arrive."""

    def __init__(
        self, lease: Lease, tokens: Tokens, pages: list[int], slots: list[int], owner: str, first_key: bytes
    ) -> None:
        self.lease, self.tokens, self.pages, self.owner, self.first_key = lease, tokens, pages, owner, first_key
        self.is_over = False
        self._place = {slot: place for place, slot in enumerate(slots)}
        self._failed_at = len(pages)
        self._from_host: set[int] = set()
        self._num_missing = len(pages)

    def note(self, moved: Moved) -> bool:
        """One page came, or did not; True when that was the last."""
        place = self._place[moved.slot]
        if not moved.is_done:
            self._failed_at = min(self._failed_at, place)
        elif moved.tier == "host":
            self._from_host.add(place)
        self._num_missing -= 1
        return self._num_missing == 0

    @property
    def num_usable(self) -> int:
        """Pages before the first that could not be read: what lies behind that has no use."""
        return self._failed_at

    @property
    def num_from_host(self) -> int:
        """Of the usable pages, those that lay in the host tier; the others came from disk."""
        return sum(place < self._failed_at for place in self._from_host)
