"""Forced tokens are drafts that the model verifies: fewer steps, the same tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.runtime.scheduler.driver import GREEDY, Driver, undisturbed

from ramet.constrained.spec import Literal_
from ramet.runtime.types import GenerateSpec
from ramet.testing import ByteTokenizer


@dataclass(frozen=True)
class Exactly:
    """A grammar of one text, and its own state."""

    left: bytes
    ledger = ()

    def initial(self) -> "Exactly":
        return self

    @property
    def done(self) -> bool:
        return not self.left

    def advance(self, token: int) -> "Exactly":
        assert token == (self.left[0] if self.left else ByteTokenizer.end_ids[0])
        return Exactly(self.left[1:])

    def mask(self, out) -> None:
        token = self.left[0] if self.left else ByteTokenizer.end_ids[0]
        out[:] = 0
        out[token // 32] = 1 << (token % 32) if token % 32 < 31 else -(1 << 31)

    def forced(self) -> Sequence[int]:
        return list(self.left)

    def events(self) -> list:
        return []


def test_a_forced_text_takes_one_step_more_than_its_first_token() -> None:
    driver = Driver(grammars=lambda spec: Exactly(spec.text.encode()))
    grammar = Literal_(text="exactly this")
    request = driver.submit(b"say: ", GenerateSpec(max_tokens=50, sampling=GREEDY, grammar=grammar))
    driver.run()
    assert driver.text(request) == "exactly this" and driver.last(request).reason == "stop"
    assert len([plan for plan in driver.recorder.plans if plan.rows]) == 2
    usage = driver.last(request).usage
    assert (usage.drafted_tokens, usage.accepted_tokens, usage.completion_tokens) == (11, 11, 13)  # and the end token


def test_without_drafts_the_same_text_takes_a_step_a_token() -> None:
    driver = Driver(grammars=lambda spec: Exactly(spec.text.encode()))
    spec = GenerateSpec(max_tokens=50, sampling=GREEDY, grammar=Literal_(text="exactly this"), grammar_drafts=False)
    request = driver.submit(b"say: ", spec)
    driver.run()
    assert driver.text(request) == "exactly this"
    assert len([plan for plan in driver.recorder.plans if plan.rows]) == 12


def test_drafts_stop_at_the_length_that_was_asked_for() -> None:
    driver = Driver(grammars=lambda spec: Exactly(spec.text.encode()))
    request = driver.submit(
        b"say: ", GenerateSpec(max_tokens=5, sampling=GREEDY, grammar=Literal_(text="exactly this"))
    )
    driver.run()
    assert driver.text(request) == "exact" and driver.last(request).reason == "length"


def test_wrong_drafts_cost_compute_and_change_nothing() -> None:
    driver = Driver(proposes=3, page_size=4)
    spec = GenerateSpec(max_tokens=60, sampling=GREEDY, ignore_eos=True)
    requests = [driver.submit(f"prompt {number}".encode(), spec) for number in range(5)]
    driver.run()
    for number, request in enumerate(requests):
        assert driver.output(request) == undisturbed(driver.model, f"prompt {number}".encode(), spec)
    statistics = driver.scheduler.statistics()
    assert 0 < statistics.accepted_tokens_total < statistics.drafted_tokens_total
    assert statistics.steps_total < 60
