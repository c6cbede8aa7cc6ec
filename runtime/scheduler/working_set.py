"""Whether one more program fits: admission by the working set, so that the cache never thrashes. Counts only.

The working set is what the programs that were let in will want soon: all that running and ready ones hold (shared
tokens once), what they will add in their next turn, and of those in a gap their unshared tokens times the chance that
they are back before keeping them stops paying. A new program is let in while the set and its own need fit in theta of
the pool. Theta is the outer loop: it creeps up while little that was evicted is needed again, and is cut when much is.
A program that was let in is never refused again: it may wait. New ones are never chosen by size: when one is refused,
none behind it is let in, while those that are in go on. One that starves goes first, and waits for room like others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from ramet.runtime.clock import Clock
from ramet.runtime.scheduler.deadlines import too_late
from ramet.runtime.scheduler.programs import Program, ProgramTable
from ramet.runtime.scheduler.retention import RetentionOrder
from ramet.runtime.scheduler.sequence import Sequence
from ramet.runtime.types import Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingSetConfig:
    """Read by this file only."""

    max_step_tokens: int = 2048
    max_running: int = 256
    prefill_share: float = 0.5
    high_water: float = 0.98
    """Share of the pages that may be leased when a turn starts; programs are bounded by theta before that."""
    retry_s: float = 5.0
    """After one did not fit, the next is tried when a program ended, or after so long."""
    theta: float = 0.8
    """Start of the admitted share of the pool. Lower, and short programs wait before memory is short (chat of S8 at .6:
    a fifth more seconds a token); the outer loop cuts it where contexts grow."""
    theta_min: float = 0.4
    theta_max: float = 1.0
    raise_by: float = 0.02
    """Added after each window in which little was recomputed, ..."""
    cut_to: float = 0.9
    """... multiplied when more than `tolerated` of the window's prefill was recomputation after eviction."""
    tolerated: float = 0.4
    window_share: float = 0.1
    """A window is this share of the pool, in prefilled tokens."""


class WorkingSet:
    """How much of the pool the admitted programs want."""

    def __init__(self, table: ProgramTable, retention: RetentionOrder, *, refresh_s: float = 0.1) -> None:
        """`refresh_s`: for how long what programs want beyond their leased pages is not counted again"""
        self._table, self._retention, self._refresh_s = table, retention, refresh_s
        self._counted_at_s, self._wanted = float("-inf"), 0.0

    def tokens(self, now_s: float, num_leased_tokens: int) -> float:
        """`num_leased_tokens`: of the pages that running turns hold, shared ones once."""
        if now_s - self._counted_at_s > self._refresh_s:
            self._counted_at_s = now_s
            self._wanted = sum(self._of(program, now_s) for program in self._table if program.is_admitted)
        return num_leased_tokens + self._wanted

    def add(self, num_tokens: float) -> None:
        """A program was let in."""
        self._wanted += num_tokens

    def _of(self, program: Program, now_s: float) -> float:
        if program.state.is_running:
            return program.growth_tokens  # its context is leased
        if not program.state.is_gap:
            return program.unshared_tokens + program.growth_tokens
        chance = self._retention.chance_to_return(program, self._retention.saved_s(program), now_s)
        return chance * (program.unshared_tokens + program.growth_tokens)


class ProgramAdmission:
    """Behind the scheduler's admission protocol: page counts for turns, the working set for new programs."""

    name: ClassVar[str] = "working_set"

    def __init__(
        self,
        config: WorkingSetConfig,
        table: ProgramTable,
        retention: RetentionOrder,
        clock: Clock,
        page_size: int,
        *,
        recompute_weight: float = 1.0,
        prefill_s_per_token: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`recompute_weight`     what a lost token costs against a computed one: less where a lower tier has it
        `prefill_s_per_token`  as it is measured; None while it is not known, and then no deadline is refused"""
        self.config, self.theta = config, config.theta
        self._table, self._clock, self._page_size = table, clock, page_size
        self._set = WorkingSet(table, retention)
        self._recompute_weight, self._prefill_s_per_token = recompute_weight, prefill_s_per_token
        self._refused_at_s = -math.inf
        self._num_prefilled, self._num_recomputed = 0, 0.0

    @property
    def max_step_tokens(self) -> int:
        return self.config.max_step_tokens

    @property
    def max_running(self) -> int:
        return self.config.max_running

    @property
    def prefill_share(self) -> float:
        return self.config.prefill_share

    def may_start(self, seq: Sequence, num_new_pages: int, num_leased: int, num_available: int, num_pages: int) -> bool:
        has_pages = num_new_pages <= num_available and num_leased + num_new_pages <= self.config.high_water * num_pages
        program = self._table.find(seq.program_id)
        if program is None or program.is_admitted:
            return has_pages
        if self._refused_at_s == self._clock.now():
            return False  # one that came before it was refused: it does not overtake by being smaller
        program.is_admitted = has_pages and self._fits(seq, program, num_new_pages, num_leased, num_pages)
        if program.is_admitted:
            self._set.add(self._table.expected_growth(program.class_key))  # its prompt is leased from now on
        else:
            self._refused_at_s = self._clock.now()
            self._table.refuse(self._refused_at_s + self.config.retry_s)
        return program.is_admitted

    def growth(self, seq: Sequence) -> int:
        """What turns of its class add, four fifths of them at most so much."""
        program = self._table.find(seq.program_id)
        return self._table.expected_growth(program.class_key) if program is not None else 0

    def lets_pass(self, seq: Sequence) -> bool:
        """Programs inside go on beside one that is refused."""
        program = self._table.find(seq.program_id)
        return program is not None and not program.is_admitted

    def refusal(self, seq: Sequence, num_missing: int) -> Failed | None:
        program, pace = self._table.find(seq.program_id), self._prefill_s_per_token()
        if program is None or pace is None:
            return None
        return too_late(program, num_missing, pace, self._clock.now())

    def _fits(self, seq: Sequence, program: Program, num_new_pages: int, num_leased: int, num_pages: int) -> bool:
        """The working set and the newcomer in theta of the pool. The prefix that it finds is held whether it comes or
        not: theta is of what that leaves, so a branch of a large prefix is not refused for its parent's size."""
        held = self._set.tokens(self._clock.now(), num_leased * self._page_size)
        need = num_new_pages * self._page_size + self._table.expected_growth(program.class_key)
        found = max(0, seq.num_tokens - num_new_pages * self._page_size)
        return held - found + need <= self.theta * (num_pages * self._page_size - found)

    def note_prefill(self, num_tokens: int, num_recomputed: int, pool_tokens: int) -> None:
        """A turn computed `num_tokens` of its prompt, `num_recomputed` of which had been evicted: the outer loop."""
        self._num_prefilled += num_tokens
        self._num_recomputed += num_recomputed * self._recompute_weight
        if self._num_prefilled < self.config.window_share * pool_tokens:
            return
        if self._num_recomputed > self.config.tolerated * self._num_prefilled:
            self.theta = max(self.config.theta_min, self.theta * self.config.cut_to)
        else:
            self.theta = min(self.config.theta_max, self.theta + self.config.raise_by)
        self._num_prefilled, self._num_recomputed = 0, 0.0
