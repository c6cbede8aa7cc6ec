"""What the executor keeps of a sequence between steps: its sampler state and its place in a grammar. Knows no tensors.

Both can be rebuilt from the tokens (`SequenceStart.output_tokens`), and noise is a function of a token's position; so a
sequence that was preempted, and starts again, continues as if nothing had been.
"""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ramet.runtime.errors import EngineFailed, RametError
from ramet.runtime.execution.grammar import GrammarCompiler, GrammarWalk, has_tags
from ramet.runtime.sampling.sampler import Drawn, DrawRow, SamplerState
from ramet.runtime.types import Failed, PlannedRow, SampledRow, SequenceStart, TokenLogprob

if TYPE_CHECKING:
    from ramet.runtime.execution.device_masks import DeviceMasks, MaskStep, Slot


class ExecutedSequence:
    """One sequence as the executor knows it."""

    def __init__(
        self,
        sampler: SamplerState,
        walk: GrammarWalk | None,
        *,
        wants_drafts: bool,
        num_top: int,
        slot: "Slot | None" = None,
    ) -> None:
        """`num_top`: how many of the most probable tokens go with each follower's logprob. `slot`: where the grammar's
        state is on the device, if it is there."""
        self._sampler, self._walk, self.slot = sampler, walk, slot
        self._wants_drafts = wants_drafts
        self.num_top = num_top

    def places(self, row: PlannedRow, step: "MaskStep | None" = None, first: int = 0) -> list[DrawRow]:
        """Where tokens are to be drawn for the row: after the known tokens, and after each draft that may stand. The
        first of them is number `first` of the step's draw."""
        drafts = row.tokens[len(row.tokens) - row.num_sampled + 1 :]
        position = row.start + len(row.tokens) - len(drafts)
        numbers = None if step is None else self._mask_rows(drafts, step, first)
        if numbers is not None:
            return [
                DrawRow(self._sampler, position + i, drafts[:i], mask_row=number) for i, number in enumerate(numbers)
            ]
        masks = [None] * (len(drafts) + 1) if self._walk is None else self._walk.masks(drafts)
        return [DrawRow(self._sampler, position + i, drafts[:i], mask) for i, mask in enumerate(masks)]

    def _mask_rows(self, drafts: Sequence[int], step: "MaskStep", first: int) -> list[int] | None:
        """The masks' rows on the device; None where the host makes them."""
        if self._walk is None or self.slot is None:
            if self._walk is not None:
                step.count_host("the sequence has no slot", 1 + len(drafts))
            return None
        allowed = drafts[: self._walk.follow(drafts)]
        numbers = step.add(self.slot, self._walk, allowed, first)
        if numbers is not None and self._sampler.has_own_mask(len(numbers)):
            step.count_host("allowed_token_ids or min_tokens", len(numbers))
            return None
        return numbers

    def take(self, row: PlannedRow, drawn: Sequence[Drawn]) -> SampledRow:
        """Keep drafts while they are what was drawn: exactly the tokens that step-by-step decoding would have drawn."""
        drafts = row.tokens[len(row.tokens) - row.num_sampled + 1 :]
        tokens: list[int] = []
        for i, place in enumerate(drawn):
            if place.problem is not None:
                break
            tokens.append(place.token)
            if i == len(drafts) or place.token != drafts[i]:
                break
        if not tokens:
            return SampledRow(row.sequence_id, (), error=failed(drawn[0].problem or "nothing was drawn"))
        self._sampler.append(tokens)
        logprobs = [place.logprob for place in drawn[: len(tokens)] if place.logprob is not None]
        return self._advanced(row, tokens, logprobs)

    def _advanced(self, row: PlannedRow, tokens: list[int], logprobs: list[TokenLogprob]) -> SampledRow:
        if self._walk is None:
            return SampledRow(row.sequence_id, tokens, logprobs)
        self._walk.advance(tokens, len(tokens) - 1)
        return SampledRow(
            row.sequence_id,
            tokens,
            logprobs,
            forced=self._walk.forced() if self._wants_drafts else (),
            grammar_done=self._walk.is_done,
            tags=self._walk.new_tags(),
            unstopped=self._walk.unstopped(),
        )


class SequenceStarter:
    """Makes `ExecutedSequence`s: what all sequences of one model share."""

    def __init__(
        self,
        *,
        vocabulary_size: int,
        end_ids: Sequence[int],
        compile_grammar: GrammarCompiler | None,
        seed: int,
        device_masks: "DeviceMasks | None" = None,
    ) -> None:
        """`seed`: from which those of sequences without one are derived. `device_masks`: None, the host makes them."""
        self._device_masks = device_masks
        self._vocabulary_size = vocabulary_size
        self._end_ids = tuple(end_ids)
        self._compile = compile_grammar
        self._seed = seed

    def seed_of(self, sequence_id: int) -> int:
        """What a sequence draws with that brings no seed."""
        return _derived_seed(self._seed, sequence_id)

    def start(self, start: SequenceStart) -> "ExecutedSequence | Failed":
        """Failed, where its grammar can't be compiled or does not fit what was generated before."""
        spec = start.spec
        sampler = SamplerState(
            spec,
            prompt=start.prompt_tokens,
            output=start.output_tokens,
            end_ids=self._end_ids,
            vocabulary_size=self._vocabulary_size,
            default_seed=self.seed_of(start.sequence_id),
        )
        try:
            walk = self._walk(start)
        except RametError as error:
            return Failed(status=error.status, code=error.code, message=str(error), at=error.at)
        num_top = spec.prompt_logprobs or 0
        on_host = walk is None or self._device_masks is None or bool(spec.stop_token_ids)  # those are in no table
        slot = None if on_host or walk is None or self._device_masks is None else self._device_masks.enter(walk)
        return ExecutedSequence(sampler, walk, wants_drafts=spec.grammar_drafts, num_top=num_top, slot=slot)

    def _walk(self, start: SequenceStart) -> GrammarWalk | None:
        if start.spec.grammar is None:
            return None
        assert self._compile is not None, "a spec with a grammar reached an executor without a compiler"
        spec = start.spec.grammar
        stop_ids = start.spec.stop_token_ids
        walk = GrammarWalk(self._compile(spec), self._vocabulary_size, has_tags=has_tags(spec), stop_ids=stop_ids)
        walk.advance(start.output_tokens)
        walk.new_tags()  # those of the tokens generated before were told before
        if walk.is_dead:
            raise EngineFailed("the tokens generated before do not fit the sequence's grammar")
        return walk


def failed(message: str, *, code: str = "engine_failed", status: int = 500) -> Failed:
    return Failed(status=status, code=code, message=message)


def _derived_seed(seed: int, sequence_id: int) -> int:
    """A seed of its own for each sequence id; the same again after a preemption."""
    digest = hashlib.blake2b(f"{seed}/{sequence_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
