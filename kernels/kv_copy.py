"""Copy the head of KV pages to other pages (a fork inside a page), and move whole pages between pools (tiers).

Layout   pages    any dtype   [N, S, ...]   contiguous; what lies behind a token is copied as bytes, so scales of int8
                                            pages ([N, S, G]) go through the same op
         copies   int32       [C, 3]        source page, target page, number of leading tokens; no page is a target
         twice,
                                            and no target is a source
         moves    int32       [C, 2]        source page of one pool, target page of the other
Traffic  2 * tokens * bytes per token"""

import torch
from torch import Tensor

from ramet.kernels._triton import tl, triton
from ramet.kernels.checks import check_tensor
from ramet.kernels.registry import Op


def kv_copy_reference(pages: Tensor, copies: Tensor) -> None:
    """The definition."""
    for source, target, num_tokens in copies.tolist():
        pages[target, :num_tokens] = pages[source, :num_tokens]


def kv_move_reference(source_pages: Tensor, target_pages: Tensor, moves: Tensor) -> None:
    """Whole pages from one pool to another of the same page shape; the pools may lie on different devices."""
    if len(moves) > 0:
        source, target = moves.long().unbind(1)
        target_pages[target.to(target_pages.device)] = source_pages[source.to(source_pages.device)].to(
            target_pages.device
        )


@triton.jit
def _copy_kernel(
    source_ptr, target_ptr, copies_ptr, words_per_token, words_per_page, FIELDS: tl.constexpr, BLOCK: tl.constexpr
):
    copy = copies_ptr + tl.program_id(0) * FIELDS
    source = tl.load(copy).to(tl.int64)
    target = tl.load(copy + 1).to(tl.int64)
    words = words_per_page
    if FIELDS == 3:
        words = tl.load(copy + 2) * words_per_token
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(source_ptr + source * words_per_page + at, mask=at < words)
    tl.store(target_ptr + target * words_per_page + at, word, mask=at < words)


def kv_copy_triton(pages: Tensor, copies: Tensor, *, block: int = 1024) -> None:
    check_tensor("copies", copies, dtype=torch.int32, shape=(None, 3), device=pages.device)
    _launch(pages, pages, copies, block)


def kv_move_triton(source_pages: Tensor, target_pages: Tensor, moves: Tensor, *, block: int = 1024) -> None:
    """Both pools on one device: between devices the copy engine is the better kernel, and torch drives it."""
    if source_pages.device != target_pages.device:
        kv_move_reference(source_pages, target_pages, moves)
        return
    check_tensor("moves", moves, dtype=torch.int32, shape=(None, 2), device=source_pages.device)
    check_tensor("target_pages", target_pages, dtype=source_pages.dtype, shape=(None, *source_pages.shape[1:]))
    _launch(source_pages, target_pages, moves, block)


def _launch(source: Tensor, target: Tensor, copies: Tensor, block: int) -> None:
    words = [_as_words(source), _as_words(target)]
    per_token, per_page = words[0].shape[2], words[0].shape[1] * words[0].shape[2]
    if len(copies) > 0:
        _copy_kernel[(len(copies), triton.cdiv(per_page, block))](
            words[0], words[1], copies, per_token, per_page, FIELDS=copies.shape[1], BLOCK=block
        )


def _as_words(pages: Tensor) -> Tensor:
    """[N, S, words] of the widest integers that a token is whole in. A view: what is written to it is written to
    pages."""
    num_bytes = pages[0, 0].numel() * pages.element_size()
    kind = next(k for k in (torch.int64, torch.int32, torch.int16, torch.uint8) if num_bytes % k.itemsize == 0)
    return pages.view(pages.shape[0], pages.shape[1], -1).view(kind)


kv_copy = Op("kv_copy", reference=kv_copy_reference, torch=kv_copy_reference, triton=kv_copy_triton)
kv_move = Op("kv_move", reference=kv_move_reference, torch=kv_move_reference, triton=kv_move_triton)
