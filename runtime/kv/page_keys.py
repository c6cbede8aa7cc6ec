"""Names of KV pages that outlive a process: what was computed, from which tokens, by which model. Bytes only.

    key of page i = BLAKE2b(key of page i - 1, tokens of page i)        key before page 0 = BLAKE2b(identity, namespace)

So a name stands for all tokens down to its page's end, and the same tokens under another model, dtype, page size or
cache namespace have another name. The namespace (a tenant's salt) goes in as it is: who does not know it finds nothing.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

PageKey = bytes
KEY_BYTES = 16


def root_key(identity: str, namespace: str) -> PageKey:
    """`identity`: whatever makes KV unfit for another engine (model fingerprint, dtype, shape of a page, backend)."""
    return _hash(f"{len(identity)} {identity} {namespace}".encode())


def extend_keys(keys: list[PageKey], root: PageKey, tokens: Sequence[int], page_size: int, num_pages: int) -> None:
    """Make `keys` those of the first `num_pages` pages of `tokens`, keeping the ones that are there: O(new pages)."""
    del keys[num_pages:]
    first = len(keys)
    if first == num_pages:
        return
    page_bytes = 4 * page_size
    data = np.asarray(tokens[first * page_size : num_pages * page_size], dtype="<i4").tobytes()
    before = keys[-1] if keys else root
    for start in range(0, len(data), page_bytes):
        before = _hash(before + data[start : start + page_bytes])
        keys.append(before)


def _hash(data: bytes) -> PageKey:
    return hashlib.blake2b(data, digest_size=KEY_BYTES).digest()
