"""An executor without tensors: its KV memory holds token ids, so a wrong page table is a wrong token, or an error.

Each slot remembers which token and which position was written. A row reads its whole prefix back through its page table
before anything of the step is written, and refuses slots that were never computed, or lie at another position: what a
GPU would read in silence is an AssertionError here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ramet.radix.key import Tokens, as_tokens
from ramet.runtime.errors import NotBuilt, RametError
from ramet.runtime.failures import to_failed
from ramet.runtime.types import (
    Failed,
    PageCopy,
    PageMove,
    PlannedRow,
    SampledRow,
    SequenceStart,
    StepPlan,
    StepResult,
    TokenLogprob,
)
from ramet.scripted.grammar import GrammarFactory, GrammarRun, over_bytes
from ramet.scripted.model import Logits, Model, Prefix
from ramet.scripted.sampling import adjust, draw, log_softmax, token_logprob

_EMPTY = -1
_NOTHING_ALLOWED = Failed(status=500, code="engine_failed", message="no token has a finite logit")


@dataclass(slots=True)
class _Run:
    """What the executor knows of a sequence."""

    start: SequenceStart
    turn: int
    output: list[int] = field(default_factory=list)
    grammar: GrammarRun | None = None
    failed: Failed | None = None


class ScriptedExecutor:
    """Runs a `Model` over a paged memory of `num_pages` pages (the allocator's `pool_pages`)."""

    def __init__(
        self,
        model: Model,
        num_pages: int,
        page_size: int,
        *,
        seed: int = 0,
        end_token_ids: Sequence[int] = (),
        grammars: GrammarFactory = over_bytes,
    ) -> None:
        self.model, self.page_size = model, page_size
        self._tokens = np.full((num_pages, page_size), _EMPTY, np.int32)
        self._positions = np.full((num_pages, page_size), _EMPTY, np.int32)
        self._runs: dict[int, _Run] = {}
        self._turns: dict[int, int] = {}
        self._num_turns = 0
        self._seed, self._end_token_ids, self._grammars = seed, list(end_token_ids), grammars

    def execute(self, plan: StepPlan) -> StepResult:
        for ended in plan.ends:
            self._runs.pop(ended, None)
            self._turns.pop(ended, None)
        for start in plan.starts:
            self._begin(start)
        self._copy(plan.copies)
        prefixes = [self._read(row) for row in plan.rows]
        for row in plan.rows:
            self._write(row)
        return StepResult([self._work(row, prefix) for row, prefix in zip(plan.rows, prefixes, strict=True)])

    def move(self, moves: Sequence[PageMove]) -> None:
        if moves:
            raise NotBuilt("moving pages of a scripted memory", hint="It has no tiers.")

    # Memory ----------------------------------------------------------------------------------------------------------

    def _copy(self, copies: Sequence[PageCopy]) -> None:
        """All are read before any is written, as a device does it."""
        heads = [
            (
                self._tokens[copy.source, : copy.num_tokens].copy(),
                self._positions[copy.source, : copy.num_tokens].copy(),
            )
            for copy in copies
        ]
        assert len({copy.target for copy in copies}) == len(copies), "a page is the target of two copies"
        for copy, (tokens, positions) in zip(copies, heads, strict=True):
            assert (positions >= 0).all(), f"page {copy.source} is copied before it is computed"
            self._tokens[copy.target, : copy.num_tokens] = tokens
            self._positions[copy.target, : copy.num_tokens] = positions

    def _slots(self, row: PlannedRow, start: int, end: int) -> tuple[Tokens, Tokens]:
        places = np.arange(start, end)
        pages = as_tokens(row.pages[: -(-end // self.page_size)])
        return pages[places // self.page_size], (places % self.page_size).astype(np.int32)

    def _read(self, row: PlannedRow) -> Tokens:
        pages, offsets = self._slots(row, 0, row.start)
        positions = self._positions[pages, offsets]
        assert (positions == np.arange(row.start)).all(), f"row of {row.sequence_id} reads what was not computed"
        return self._tokens[pages, offsets]

    def _write(self, row: PlannedRow) -> None:
        pages, offsets = self._slots(row, row.start, row.start + len(row.tokens))
        self._tokens[pages, offsets] = as_tokens(row.tokens)
        self._positions[pages, offsets] = row.start + _depths(row)

    def _spoil(self, row: PlannedRow, first: int) -> None:
        """Slots from the row's token `first` on hold nothing that a later row may read."""
        pages, offsets = self._slots(row, row.start + first, row.start + len(row.tokens))
        self._positions[pages, offsets] = _EMPTY

    # Sequences -------------------------------------------------------------------------------------------------------

    def _begin(self, start: SequenceStart) -> None:
        if start.sequence_id not in self._turns:
            self._turns[start.sequence_id] = self._num_turns
            self._num_turns += 1
        run = self._runs[start.sequence_id] = _Run(start, self._turns[start.sequence_id], list(start.output_tokens))
        if start.spec.grammar is not None:
            try:
                run.grammar = GrammarRun(self._grammars(start.spec.grammar), start.spec.stop_token_ids)
            except RametError as error:
                run.failed = to_failed(error)
                return
            for token in run.output:
                run.grammar.advance(token)

    def _work(self, row: PlannedRow, prefix: Tokens) -> SampledRow:
        run = self._runs[row.sequence_id]
        if run.failed is not None:
            return SampledRow(row.sequence_id, (), error=run.failed)
        followers = self._follow(row, prefix, run)
        if row.parents is not None:
            self._spoil(row, 0)
        if row.num_sampled == 0:
            return SampledRow(row.sequence_id, (), (), followers)
        sampled, logprobs, unstopped = self._sample(row, prefix, run)
        if not sampled:
            return SampledRow(row.sequence_id, (), error=_NOTHING_ALLOWED)
        self._spoil(row, len(row.tokens) - row.num_sampled + len(sampled))
        forced = run.grammar.forced() if run.grammar and run.start.spec.grammar_drafts else ()
        is_done = run.grammar is not None and run.grammar.is_done
        tags = run.grammar.new_tags() if run.grammar is not None else ()
        return SampledRow(row.sequence_id, sampled, logprobs, followers, forced, is_done, tags, unstopped)

    def _sample(self, row: PlannedRow, prefix: Tokens, run: _Run) -> tuple[list[int], list[TokenLogprob], list[int]]:
        """Accept drafts while the model would have drawn them, and draw the token after the last of those; and which of
        them are stop tokens that end nothing."""
        spec, logprobs = run.start.spec, list[TokenLogprob]()
        sampled, unstopped = list[int](), list[int]()
        known = np.concatenate([prefix, as_tokens(row.tokens)])
        for place in range(len(row.tokens) - row.num_sampled, len(row.tokens)):
            adjusted = self._adjusted(known[: row.start + place + 1], run)
            if not np.isfinite(adjusted.max()):
                break
            token = draw(adjusted, spec.sampling, self._noise(run))
            if run.grammar is not None and run.grammar.is_text(token):
                unstopped.append(len(sampled))
            sampled.append(token)
            run.output.append(token)
            if run.grammar is not None:
                run.grammar.advance(token)
            if spec.logprobs is not None:
                logprobs.append(token_logprob(log_softmax(adjusted), token, spec.logprobs))
            if place + 1 < len(row.tokens) and row.tokens[place + 1] != token:
                break
        return sampled, logprobs, unstopped

    def _adjusted(self, tokens: Tokens, run: _Run) -> Logits:
        logits = self.model.logits(Prefix(tokens, len(run.start.prompt_tokens), run.turn))
        adjusted = adjust(logits, run.start.spec.sampling, run.start.prompt_tokens, run.output)
        if len(run.output) < run.start.spec.min_tokens:
            adjusted[self._end_token_ids] = -np.inf
        return run.grammar.restrict(adjusted) if run.grammar is not None else adjusted

    def _noise(self, run: _Run) -> tuple[int, int]:
        seed = run.start.spec.sampling.seed
        own = self._seed * 1_000_003 + run.turn if seed is None else seed
        return own & 0xFFFF_FFFF_FFFF_FFFF, len(run.output)

    def _follow(self, row: PlannedRow, prefix: Tokens, run: _Run) -> list[TokenLogprob]:
        """Of each follower, the logprob at the token that it follows."""
        places = row.follower_at
        if places is None:
            places = range(len(row.tokens) - row.num_logprobs, len(row.tokens))
        found, distributions = [], {}
        for place, follower in zip(places, row.followers, strict=True):
            if place not in distributions:
                seen = np.concatenate([prefix, _path(row, place)])
                logits = self.model.logits(Prefix(seen, len(run.start.prompt_tokens), run.turn))
                distributions[place] = log_softmax(logits)
            found.append(token_logprob(distributions[place], follower, run.start.spec.prompt_logprobs or 0))
        return found


def _depths(row: PlannedRow) -> Tokens:
    """int32 [n]  of each token of a row, how many of the row's tokens lie above it"""
    if row.parents is None:
        return np.arange(len(row.tokens), dtype=np.int32)
    depths: list[int] = []
    for parent in row.parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return as_tokens(depths)


def _path(row: PlannedRow, place: int) -> Tokens:
    """The row's tokens from the prefix down to `place`."""
    if row.parents is None:
        return as_tokens(row.tokens[: place + 1])
    path = []
    while place >= 0:
        path.append(row.tokens[place])
        place = row.parents[place]
    return as_tokens(path[::-1])
