"""What a scripted executor needs of a constrained engine: restrict, advance, say what is forced."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ramet.constrained.spec import Spec
from ramet.runtime.errors import NotBuilt
from ramet.scripted.model import Logits


class GrammarRun(Protocol):
    """One output on its way through a grammar."""

    @property
    def is_done(self) -> bool:
        """The grammar accepts and nothing may follow."""
        ...

    def restrict(self, logits: Logits) -> Logits: ...
    def advance(self, token: int) -> None: ...
    def forced(self) -> Sequence[int]: ...


GrammarFactory = Callable[[Spec], GrammarRun]


def no_grammars(spec: Spec) -> GrammarRun:
    raise NotBuilt("a grammar on this scripted engine", hint="Give the executor a `grammars` factory.")
