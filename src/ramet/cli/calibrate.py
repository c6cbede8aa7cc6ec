"""`ramet doctor --calibrate`: measures what the disk tier decides by, on this machine, with this model.

Prefill by prompts that nothing is cached of; the disk by pages of the engine's own size, written, taken out of the
system's memory, and read through the very code that serves them.
"""

import asyncio
import os
import random
import secrets
import shutil
import time
from pathlib import Path
from typing import NamedTuple

from ramet.runtime import calibration
from ramet.runtime.calibration import Calibration
from ramet.runtime.kv.page_folder import PageFolder
from ramet.runtime.local_client import LocalClient
from ramet.runtime.types import GenerateSpec, ProgramSpec, TokensPiece

_PROMPT_TOKENS, _PROMPTS = 512, 3
_DISK_BYTES = 128 * 2**20
_SMALL_PAGE = 4096


class Disk(NamedTuple):
    write_s: float
    read_s: float


def calibrate(client: LocalClient, folder: Path) -> list[tuple[str, str]]:
    """Measure, keep the constants for the next engines, and tell them."""
    tier = client.disk_tier
    assert tier is not None, "the engine was given a folder"
    page_bytes, prefill_s = tier.page_bytes, asyncio.run(_prefill(client))
    num_pages = max(8, min(256, _DISK_BYTES // page_bytes))
    whole, small = measure_disk(folder, page_bytes, num_pages), measure_disk(folder, _SMALL_PAGE, num_pages)
    page_s = min(small.read_s, whole.read_s / 2)
    measured = Calibration(
        prefill_s_per_token=prefill_s,
        read_bytes_per_s=page_bytes / (whole.read_s - page_s),
        write_bytes_per_s=page_bytes / whole.write_s,
        page_s=page_s,
        folder=str(folder.parent),
    )
    file = calibration.save(tier.costs.of, measured)
    return _told(measured, page_bytes, client.card.page_size, file)


def _told(measured: Calibration, page_bytes: int, page_size: int, file: Path) -> list[tuple[str, str]]:
    read, write = measured.read_bytes_per_s / 2**20, measured.write_bytes_per_s / 2**20
    read_s, compute_s = measured.read_s(page_bytes), page_size * measured.prefill_s_per_token
    verdict = "reload" if read_s < compute_s else "compute again"
    return [
        ("prefill", f"{1 / measured.prefill_s_per_token:,.0f} tokens/s"),
        (
            "disk read",
            f"{read:,.0f} MiB/s and {measured.page_s * 1e3:.2f} ms a page, checked",
        ),
        ("disk write", f"{write:,.0f} MiB/s"),
        ("a KV page", f"{page_bytes / 2**10:,.0f} KiB: read {read_s * 1e3:.2f} ms, computed {compute_s * 1e3:.2f} ms"),
        ("so", f"{verdict} what left the pool and is on disk"),
        ("kept in", str(file)),
    ]


async def _prefill(client: LocalClient) -> float:
    """Seconds a token, the fastest of a few prompts: the others met somebody else on the machine."""
    chooser = random.Random(0)
    best = float("inf")
    num_tokens = min(_PROMPT_TOKENS, client.card.context_length - 2)
    for _ in range(_PROMPTS):
        tokens = [chooser.randrange(1000, min(30_000, client.card.vocabulary_size)) for _ in range(num_tokens)]
        branch = await client.open(ProgramSpec())
        await client.extend(branch, [TokensPiece(tokens)])
        began = time.perf_counter()
        async for _event in client.generate(branch, GenerateSpec(max_tokens=1)):
            pass
        best = min(best, (time.perf_counter() - began) / num_tokens)
        await client.close(branch, program=True)
    return best


def measure_disk(folder: Path, page_bytes: int, num_pages: int) -> Disk:
    """Seconds a page, in a folder of our own beside the tier's, which is removed again."""
    own = folder / f"pages-{secrets.token_hex(4)}"
    pages = PageFolder(own, 2 * num_pages * (page_bytes + 1024))
    try:
        keys = [secrets.token_bytes(16) for _ in range(num_pages)]
        content = secrets.token_bytes(page_bytes)
        began = time.perf_counter()
        for key in keys:
            pages.write(key, content)
        _forget(own)
        write_s = time.perf_counter() - began
        began = time.perf_counter()
        if any(pages.read(key) is None for key in keys):
            raise OSError(f"pages that were just written to {own} could not be read")
        return Disk(write_s / num_pages, (time.perf_counter() - began) / num_pages)
    finally:
        pages.close()
        shutil.rmtree(own, ignore_errors=True)


def _forget(folder: Path) -> None:
    """On to the disk, and out of the system's memory, as far as it lets us: reads would measure that instead."""
    for file in folder.glob("??/*"):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
