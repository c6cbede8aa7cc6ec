"""What the executor keeps of a sequence between steps: its sampler state and its place in a grammar. Knows no tensors.

Both can be rebuilt from the tokens (`SequenceStart.output_tokens`), and noise is a function of a token's position; so a
sequence that was preempted, and starts again, continues as if nothing had been.
"""

import hashlib
from collections.abc import Sequence

from ramet.runtime.errors import EngineFailed, RametError
from ramet.runtime.execution.grammar import GrammarCompiler, GrammarWalk, has_tags
from ramet.runtime.sampling.sampler import Drawn, DrawRow, SamplerState
from ramet.runtime.types import Failed, PlannedRow, SampledRow, SequenceStart, TokenLogprob


class ExecutedSequence:
    """One sequence as the executor knows it."""

    def __init__(self, sampler: SamplerState, walk: GrammarWalk | None, *, wants_drafts: bool, num_top: int) -> None:
        """`num_top`: how many of the most probable tokens go with each follower's logprob."""
        self._sampler, self._walk = sampler, walk
        self._wants_drafts = wants_drafts
        self.num_top = num_top

    def places(self, row: PlannedRow) -> list[DrawRow]:
        """Where tokens are to be drawn for the row: after the known tokens, and after each draft that may stand."""
        drafts = row.tokens[len(row.tokens) - row.num_sampled + 1 :]
        position = row.start + len(row.tokens) - len(drafts)
        masks = [None] * (len(drafts) + 1) if self._walk is None else self._walk.masks(drafts)
        return [DrawRow(self._sampler, position + i, drafts[:i], mask) for i, mask in enumerate(masks)]

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
        )


class SequenceStarter:
    """Makes `ExecutedSequence`s: what all sequences of one model share."""

    def __init__(
        self, *, vocabulary_size: int, end_ids: Sequence[int], compile_grammar: GrammarCompiler | None, seed: int
    ) -> None:
        """`seed`: from which those of sequences without one are derived."""
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
        return ExecutedSequence(sampler, walk, wants_drafts=spec.grammar_drafts, num_top=num_top)

    def _walk(self, start: SequenceStart) -> GrammarWalk | None:
        if start.spec.grammar is None:
            return None
        assert self._compile is not None, "a spec with a grammar reached an executor without a compiler"
        spec = start.spec.grammar
        walk = GrammarWalk(self._compile(spec), self._vocabulary_size, has_tags=has_tags(spec))
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
