"""One signature per op, several backends, one place that chooses.

It does not know models, steps or configs: a caller that has a setting hands it to `use_backends`.

The idea: an `Op` is called like the function it names. The backend is, in this order, the one asked for
(`op.on("torch")(...)`), the one configured (`use_backends(rms_norm="reference")`, `"*"` for every op), and the first
that exists in the preference list of the device of the first tensor argument. Backends:

    reference   the definition, in plain torch; slow and obvious; tests compare with it
    torch       the same, arranged for speed in torch calls; runs on every device
    cpu         native code or a CPU-shaped arrangement; only for CPU tensors
    triton      a Triton kernel; a GPU, or the interpreter (TRITON_INTERPRET=1)
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Generic, Literal, ParamSpec, TypeVar, get_args

from torch import Tensor

from ramet.runtime.errors import BadRequest, NotBuilt

Backend = Literal["reference", "torch", "cpu", "triton"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)

PREFERENCE: Mapping[str, tuple[Backend, ...]] = {
    "cpu": ("cpu", "torch", "reference"),
    "cuda": ("triton", "torch", "reference"),
}
"""Device type -> backends, best first. Devices not listed take what needs no compiler of ours."""

P = ParamSpec("P")
T = TypeVar("T")

OPS: dict[str, "Op[..., object]"] = {}
"""Every op by name; filled as the op files are imported."""

_configured: dict[str, Backend] = {}


class Op(Generic[P, T]):
    """An op: a name, its backends, and the choice between them at each call."""

    def __init__(self, name: str, *, reference: Callable[P, T], **backends: Callable[P, T] | str) -> None:
        """A backend is its function, or "module:function" of this package, imported when it is first called."""
        unknown = set(backends) - set(BACKENDS)
        assert not unknown, f"{name}: backends {sorted(backends)}"
        self.name = name
        self.backends: dict[str, Callable[P, T] | str] = {"reference": reference, **backends}
        OPS[name] = self  # type: ignore[assignment]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.on(self._choose(args, kwargs))(*args, **kwargs)

    def on(self, backend: str) -> Callable[P, T]:
        """The function of one backend. NotBuilt where the op has none."""
        found = self.backends.get(backend)
        if found is None:
            built = ", ".join(self.backends)
            raise NotBuilt(f"kernel {self.name!r} on backend {backend!r}", hint=f"Built: {built}.")
        if isinstance(found, str):
            module, _, function = found.partition(":")
            found = self.backends[backend] = getattr(import_module(f"ramet.kernels.{module}"), function)
        return found

    def _choose(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        configured = _configured.get(self.name) or _configured.get("*")
        # "*" means "wherever it exists": one op without a Triton kernel must not stop a run that asks for Triton
        if configured is not None and (self.name in _configured or configured in self.backends):
            return configured
        preference = PREFERENCE.get(_device_type(args, kwargs), ("torch", "reference"))
        return next(backend for backend in preference if backend in self.backends)

    def __repr__(self) -> str:
        return f"Op({self.name!r}, backends={list(self.backends)})"


def configure_backends(**choices: str) -> None:
    """Choose backends for the whole process: op name (or `"*"`) -> backend. An unknown backend is a BadRequest."""
    for name, backend in choices.items():
        if backend not in BACKENDS:
            raise BadRequest(expected=f"one of {', '.join(BACKENDS)}", got=backend, at=f"$.kernels.{name}")
    _configured.update(choices)  # type: ignore[arg-type]


@contextlib.contextmanager
def use_backends(**choices: str) -> Iterator[None]:
    """The same, for a while.

    >>> with use_backends(**{"*": "reference"}): ...
    """
    before = dict(_configured)
    try:
        configure_backends(**choices)
        yield
    finally:
        _configured.clear()
        _configured.update(before)


def _device_type(args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value.device.type
    return "cpu"
