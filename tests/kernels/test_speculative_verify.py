"""Verification of drafts: greedy by argmax, sampled without changing the distribution."""

import pytest
import torch

from ramet.kernels.speculative_verify import speculative_verify


def _inputs(V: int, counts: list[int], seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    num = sum(counts)
    probabilities = (2 * torch.randn(num, V, generator=g)).softmax(-1)
    drafts = probabilities.argmax(-1)
    wrong = torch.rand(num, generator=g) < 0.3
    drafts[wrong] = torch.randint(0, V, (int(wrong.sum()),), generator=g)
    offsets = torch.tensor([0, *counts]).cumsum(0).int()
    return dict(probabilities=probabilities, offsets=offsets, drafts=drafts, uniforms=torch.rand(num, 2, generator=g))


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("V", [2, 33, 1000])
def test_triton_equals_reference(greedy: bool, V: int, device: str) -> None:
    for seed in range(5):
        inputs = {name: tensor.to(device) for name, tensor in _inputs(V, [1, 3, 6, 2], seed).items()}
        if greedy:
            inputs.pop("uniforms")
        ours = speculative_verify.on("triton")(**inputs, block=64)  # type: ignore[arg-type]
        theirs = speculative_verify.on("reference")(**inputs)
        assert [t.tolist() for t in ours] == [t.tolist() for t in theirs]


def test_a_row_without_drafts_just_samples(device: str) -> None:
    p = torch.tensor([[0.0, 1.0, 0.0]], device=device)
    offsets = torch.tensor([0, 1], dtype=torch.int32, device=device)
    uniforms = torch.tensor([[0.5, 0.999999]], device=device)
    accepted, follower = speculative_verify.on("triton")(
        p, offsets, torch.zeros(1, dtype=torch.int64, device=device), uniforms
    )
    assert accepted.tolist() == [0] and follower.tolist() == [1]


def test_drafts_do_not_change_the_distribution() -> None:
    """The token after the prefix, drafted or not, comes with the target's own probabilities."""
    target = torch.tensor([0.5, 0.3, 0.15, 0.05])
    g, num = torch.Generator().manual_seed(0), 4000
    drafts = torch.tensor([1, 0])  # the draft is token 1, however likely
    counts = torch.zeros(4)
    for uniforms in torch.rand(num, 2, 2, generator=g):
        accepted, follower = speculative_verify.on("reference")(
            target.repeat(2, 1), torch.tensor([0, 2], dtype=torch.int32), drafts, uniforms
        )
        counts[1 if accepted.item() else int(follower.item())] += 1
    torch.testing.assert_close(counts / num, target, atol=0.03, rtol=0)
