"""One signature, several backends: who chooses, and what is said where a backend is missing."""

import pytest
import torch

from ramet.kernels.registry import Op, configure_backends, use_backends
from ramet.kernels.rmsnorm import rms_norm
from ramet.runtime.errors import BadRequest, NotBuilt


def _op() -> "Op[[torch.Tensor], str]":
    return Op("example", reference=lambda x: "reference", torch=lambda x: "torch", triton=lambda x: "triton")


def test_a_cpu_tensor_takes_torch_before_the_reference() -> None:
    assert _op()(torch.zeros(1)) == "torch"


def test_the_argument_beats_the_setting_and_the_setting_beats_the_device() -> None:
    op = _op()
    with use_backends(example="triton"):
        assert op(torch.zeros(1)) == "triton"
        assert op.on("reference")(torch.zeros(1)) == "reference"
    assert op(torch.zeros(1)) == "torch"


def test_a_setting_for_all_ops_holds_where_the_backend_exists() -> None:
    op = Op("lonely", reference=lambda x: "reference")
    with use_backends(**{"*": "triton"}):
        assert op(torch.zeros(1)) == "reference"
    with (
        use_backends(lonely="triton"),
        pytest.raises(NotBuilt, match=r"'lonely' on backend 'triton'.*Built: reference"),
    ):
        op(torch.zeros(1))


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(BadRequest, match="reference, torch, cpu, triton"):
        configure_backends(rms_norm="cuda")


def test_a_backend_named_by_path_is_imported_when_first_called() -> None:
    op: Op[[torch.Tensor], torch.Tensor] = Op("late", reference=torch.abs, torch="gated:swiglu_reference")
    assert op(torch.ones(1, 4)).shape == (1, 2)
    assert rms_norm.on("torch") is rms_norm.on("torch")
