"""Routing to experts, and products grouped by them: experts that nobody chose, one that all chose, odd sizes."""

import pytest
import torch

from ramet.kernels.moe import grouped_linear, moe_route


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("T", "E", "k"), [(0, 4, 2), (1, 1, 1), (5, 7, 2), (3, 64, 6)])
def test_routing_equals_reference(normalize: bool, T: int, E: int, k: int, device: str) -> None:
    logits = torch.randn(T, E + 3, generator=torch.Generator().manual_seed(0))[:, :E].to(device)
    ours, theirs = (moe_route.on(backend)(logits, k, normalize=normalize) for backend in ("triton", "reference"))
    assert torch.equal(ours[1], theirs[1])
    torch.testing.assert_close(ours[0], theirs[0])


def test_ties_go_to_the_lower_expert(device: str) -> None:
    for backend in ("triton", "reference"):
        assert moe_route.on(backend)(torch.zeros(1, 5, device=device), 3)[1].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("T", "E", "k", "K", "N"), [(0, 2, 1, 16, 16), (1, 3, 2, 20, 7), (9, 5, 2, 33, 70), (40, 3, 1, 16, 16)]
)
def test_grouped_product_equals_reference(T: int, E: int, k: int, K: int, N: int, device: str) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(T, K + 5, generator=g)[:, :K].to(device)
    w = torch.randn(E, N, K, generator=g).to(device)
    chosen = torch.stack([torch.randperm(E, generator=g)[:k] for _ in range(T)]) if T else torch.empty(0, k)
    experts = chosen.to(torch.int32).to(device)
    ours, theirs = (grouped_linear.on(backend)(x, w, experts) for backend in ("triton", "reference"))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_all_tokens_on_one_expert(device: str) -> None:
    x, w = torch.randn(35, 16, device=device), torch.randn(4, 8, 16, device=device)
    experts = torch.full((35, 1), 2, dtype=torch.int32, device=device)
    torch.testing.assert_close(grouped_linear.on("triton")(x, w, experts)[:, 0], x @ w[2].T, atol=1e-4, rtol=1e-4)
