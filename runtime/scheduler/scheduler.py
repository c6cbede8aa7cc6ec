"""Decides, once a step, which tokens of which sequences the model computes. No tensors, no clock of its own.

A step is filled in the order of Sarathi-Serve (Agrawal et al. 2024): one token for every decoding sequence, then chunks
of running prompts, then waiting ones, while tokens and pages last. So a long prompt never stops the others' decoding,
and the length of a step is bounded. What a waiting sequence finds cached costs it nothing; what a running prompt is
just computing, it waits for. When pages run out, the last in the order steps back: its KV stays in the cache while it
can, and it goes on later with the same tokens.
"""

import heapq
from dataclasses import dataclass

from ramet.radix.node import Cursor
from ramet.runtime.clock import Clock
from ramet.runtime.errors import ContextOverflow
from ramet.runtime.failures import to_failed
from ramet.runtime.scheduler.admission import Admission, tokens_to_start
from ramet.runtime.scheduler.cache import Found, PrefixCache
from ramet.runtime.scheduler.choices import sequence_of
from ramet.runtime.scheduler.gang import Gangs, StragglersFirst
from ramet.runtime.scheduler.groups import shared_groups
from ramet.runtime.scheduler.pace import StepPace
from ramet.runtime.scheduler.policies.base import Order
from ramet.runtime.scheduler.quota import Quotas
from ramet.runtime.scheduler.sequence import Ending, Request, Sequence
from ramet.runtime.scheduler.step import Share, StepDraft
from ramet.runtime.scheduler.waiting import WaitingRoom
from ramet.runtime.types import (
    EngineStatistics,
    Event,
    Failed,
    Paused,
    PlannedRow,
    Queued,
    Resumed,
    RowGroup,
    SampledRow,
    SequenceStart,
    Started,
    StepPlan,
    StepResult,
)

RequestEvent = tuple[int, Event]
"""Request id, event."""

_MAX_LOOKUPS = 64
"""Waiting sequences that a step looks up, so that a long line costs no step its millisecond."""
_MAX_SEEN = 512
"""Waiting sequences that a step goes past at all."""


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    aborted: int = 0
    steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """What a turn leaves behind for its branch."""

    seq: Sequence
    cursor: Cursor | None
    """Where its KV lies in the tree."""
    num_computed: int
    """Leading tokens of the branch that were computed."""
    ending: Ending


class Scheduler:
    """schedule() and commit() take turns; submit() and abort() come between them. One thread."""

    def __init__(
        self,
        cache: PrefixCache,
        order: Order,
        admission: Admission,
        clock: Clock,
        pace: StepPace | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        """`pace` None: prompts take all that decoding leaves of a step. `quotas` None: nobody has a limit."""
        self.quotas = cache.quotas = quotas
        self.cache, self.order, self.admission, self.clock, self.pace = cache, order, admission, clock, pace
        self.counters = Counters()
        self._max_running = min(admission.max_running, admission.max_step_tokens)  # each decodes in every step
        self._running: dict[int, Sequence] = {}
        self._gangs = Gangs()
        self._ranks = StragglersFirst(order, self._gangs)
        self._waiting = WaitingRoom(self._ranks)
        self._all: dict[int, Sequence] = {}
        self._draft = StepDraft(0)
        self._ends: list[int] = []
        self._outbox: list[RequestEvent] = []
        self._ended: list[Ended] = []
        self._newcomers: list[Sequence] = []
        self._look_from = 0
        self._deadlines: list[tuple[float, int]] = []
        self._groups: tuple[tuple[list[int], int], list[RowGroup]] = (([], 0), [])

    # What comes in ---------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take a request. One that can never run is answered with a Failed event."""
        now = self.clock.now()
        seq = sequence_of(request, now)
        refusal = self._refusal(seq)
        if refusal is None and self.quotas is not None:
            refusal = self.quotas.charge(seq)
        if refusal is not None:
            self._outbox.append((seq.id, refusal))
            self._ended.append(Ended(seq, request.cursor, 0, Ending("error", failed=refusal)))
            return
        self._all[seq.id] = seq
        if request.spec.timeout_s is not None:
            heapq.heappush(self._deadlines, (now + request.spec.timeout_s, seq.id))
        if self.order.reads_cache:
            seq.num_matched = self.cache.look(seq).num_tokens
        self._gangs.begin(seq)
        self._waiting.add(seq, now)
        self._newcomers.append(seq)

    def abort(self, request_id: int) -> None:
        """End a request wherever it is; its pages are free or evictable when this returns."""
        seq = self._all.get(request_id)
        if seq is not None:
            self.counters.aborted += 1
            self._end(seq, Ending("abort"))

    def fail_all(self, failure: Failed) -> None:
        """The step could not be executed: end everything in flight, and trust no page that was in use."""
        for seq in list(self._all.values()):
            seq.num_computed = min(seq.num_computed, seq.num_tree_pages * self.cache.page_size)
            self._end(seq, Ending("error", failed=failure))

    def _refusal(self, seq: Sequence) -> Failed | None:
        context = seq.request.context_length
        if seq.num_positions > context:
            spare = seq.num_positions - seq.num_prompt
            return to_failed(ContextOverflow(num_tokens=seq.num_prompt, limit=context - spare))
        capacity = self.cache.num_pages * self.cache.page_size
        if seq.num_row_tokens > capacity:
            hint = "The KV pool holds no more: shorten the prompt, or give the engine a larger one (`--kv-tokens`)."
            return to_failed(ContextOverflow(num_tokens=seq.num_row_tokens, limit=capacity, hint=hint))
        if seq.program.deadline_s is None:
            return None
        return self.admission.refusal(seq, seq.num_tokens - self.cache.look(seq).num_tokens)

    # A step ----------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Is there anything to schedule, or to tell?"""
        return bool(self._all or self._ends or self._outbox)

    def schedule(self) -> StepPlan:
        now = self.clock.now()
        self._expire(now)
        draft = self._draft = StepDraft(self.admission.max_step_tokens)
        self._fill(draft, now)
        while not draft.shares and self._running and not self._waits_for_disk:
            self._break_deadlock(draft)
            self._fill(draft, now)
        self._announce_newcomers()
        return self._plan(draft)

    def commit(self, result: StepResult) -> list[RequestEvent]:
        """Take in what the step computed; all events since the last commit, in order."""
        now = self.clock.now()
        shares = self._draft.shares
        for row in result.rows:
            share = shares.get(row.sequence_id)
            if share is not None and share.seq.is_running:  # not aborted meanwhile
                self._commit_row(share, row, now)
        if self.pace is not None:
            self.pace.note(sum(share.num_tokens + share.num_extra for share in shares.values()), result.compute_s)
        self._draft = StepDraft(0)
        self.counters.steps += bool(result.rows)
        events, self._outbox = self._outbox, []
        return events

    def take_ended(self) -> list[Ended]:
        """The turns that ended since the last call: their branches are at rest again."""
        ended, self._ended = self._ended, []
        return ended

    def _fill(self, draft: StepDraft, now: float) -> None:
        self._continue_decoding(draft)
        if self.pace is not None and draft.shares:
            draft.num_left = min(draft.num_left, self.pace.num_prompt_tokens)
        self._continue_prefills(draft)
        self._admit_waiting(draft, now)
        self._use_up(draft)

    # Filling a step --------------------------------------------------------------------------------------------------

    def _continue_decoding(self, draft: StepDraft) -> None:
        decoding = [seq for seq in self._running.values() if not seq.is_prefilling]
        for num_done, seq in enumerate(decoding):
            if seq.is_running and draft.num_left > 0:  # it may have been preempted for one before it
                self._decode(seq, draft, draft.num_left - (len(decoding) - num_done))

    def _decode(self, seq: Sequence, draft: StepDraft, room: int) -> None:
        """`room`: tokens that drafts may take, the other sequences having one each."""
        num_extra = seq.fit_extra(room)
        if num_extra and not seq.needs_extra and not self.cache.grow(seq, seq.num_computed + 1 + num_extra):
            num_extra = 0  # a guess is not worth anybody's pages
        end = seq.num_computed + 1 + num_extra
        if end > len(seq.pages) * self.cache.page_size and not self._make_room(seq, end, draft):
            if len(self._running) > 1:
                self._preempt(seq, draft)
            elif not self.cache.is_loading:
                self._end_for_lack_of_pages(seq)
            return
        draft.give(seq, 1, num_extra)

    def _continue_prefills(self, draft: StepDraft) -> None:
        prefills = [seq for seq in self._running.values() if seq.is_prefilling]
        for seq in sorted(prefills, key=lambda seq: seq.rank) if len(prefills) > 1 else prefills:
            if seq.is_running and draft.num_left > 0:
                self._prefill(seq, draft, self._long_prompt_share(draft, len(prefills) + len(self._waiting)))

    def _long_prompt_share(self, draft: StepDraft, num_prompts: int) -> int:
        """What one prompt may take of the tokens left: not all, while others have prompts to compute too."""
        if num_prompts < 2:
            return draft.num_left
        return min(draft.num_left, max(1, int(draft.num_left * self.admission.prefill_share)))

    def _prefill(self, seq: Sequence, draft: StepDraft, num_allowed: int) -> None:
        num_tokens = seq.limit_chunk(min(seq.num_pending, num_allowed))
        num_extra = seq.fit_extra(draft.num_left - num_tokens) if num_tokens == seq.num_pending else 0
        if self.cache.grow(seq, seq.num_computed + num_tokens + num_extra):
            draft.give(seq, num_tokens, num_extra)
            return
        room = (len(seq.pages) + self.cache.num_available) * self.cache.page_size - seq.num_computed
        num_tokens = min(num_tokens, room, seq.num_pending - 1)
        if num_tokens > 0 and self.cache.grow(seq, seq.num_computed + num_tokens):
            draft.give(seq, num_tokens, 0)

    def _admit_waiting(self, draft: StepDraft, now: float) -> None:
        if not self._waiting:
            return
        if self._waiting.is_stale(now):
            self._look_again()
            self._waiting.rank_again(now)
        num_looks, num_seen, is_full = 0, 0, False
        for seq in list(self._waiting):
            num_seen += 1
            if draft.num_left <= 0 or len(self._running) >= self._max_running:
                return
            if num_looks == _MAX_LOOKUPS or num_seen > _MAX_SEEN:
                return
            if seq.is_following or (is_full and self.admission.lets_pass(seq)):
                continue  # one like it did not fit a moment ago: it need not be looked up to be refused
            num_looks += 1
            found = self.cache.look(seq)
            if found.leader is not None:  # a running prompt is computing what this one needs: join it when that is done
                seq.follow(found.leader)
            elif self.cache.begin_reload(seq, found):
                continue  # the disk tier reads it meanwhile; others go ahead
            elif not self._admit(seq, found, draft, now):
                if self.admission.lets_pass(seq):
                    is_full = True
                elif not any(self._gangs.running_beside(seq)):
                    return  # no overtaking: who is first in line and too large now will fit later

    def _look_again(self) -> None:
        """What those first in line would find now, and a few of the others in turn."""
        if not self.order.reads_cache:
            return
        half = _MAX_LOOKUPS // 2
        line = list(self._waiting)
        self._look_from = self._look_from + half if self._look_from + half < len(line) else half
        for seq in (*line[:half], *line[self._look_from : self._look_from + half]):
            seq.num_matched = self.cache.look(seq).num_tokens

    def _admit(self, seq: Sequence, found: Found, draft: StepDraft, now: float) -> bool:
        if self._running and not self._may_start(seq, found):
            return False
        self._waiting.remove(seq)
        self._running[seq.id], seq.is_running = seq, True
        if self.quotas is not None:
            self.quotas.started(seq)
        if seq.admitted_s is None:
            seq.miss = self.cache.explain(seq, found)  # before anything is evicted for it
        if (copy := self.cache.acquire(seq, found)) is not None:
            draft.copies.append(copy)
        self._note_admission(seq, now)
        self._prefill(seq, draft, self._long_prompt_share(draft, 1 + len(self._waiting)))
        return True

    def _may_start(self, seq: Sequence, found: Found) -> bool:
        balance, newly_leased = self.cache.balance(), self.cache.num_newly_leased(found)
        missing = self.cache.num_missing(found, tokens_to_start(seq))
        leased, available = balance.leased + newly_leased, balance.free + balance.evictable - newly_leased
        if siblings := list(self._gangs.running_beside(seq)):
            missing = max(missing, self.cache.num_missing(found, seq.num_tokens + self._growth(seq)))
            available -= sum(self._pages_to_come(each) for each in siblings)
        return self.admission.may_start(seq, missing, leased, available, balance.total)

    def _growth(self, seq: Sequence) -> int:
        return self._gangs.growth(seq, self.admission.growth(seq))

    def _pages_to_come(self, seq: Sequence) -> int:
        """That a running sequence is expected to ask for yet."""
        num_tokens = seq.num_tokens + self._growth(seq)
        return max(0, -(-num_tokens // self.cache.page_size) - len(seq.pages))

    def _use_up(self, draft: StepDraft) -> None:
        """Tokens that nobody else wanted go to the prompts that were held short."""
        for share in draft.shares.values():
            seq = share.seq
            num_missing = seq.num_pending - share.num_tokens
            if draft.num_left <= 0:
                return
            if num_missing <= 0 or share.num_extra:
                continue
            num_total = seq.limit_chunk(share.num_tokens + min(num_missing, draft.num_left))
            num_more = num_total - share.num_tokens
            if num_more > 0 and self.cache.grow(seq, share.start + num_total):
                draft.give_more(share, num_more, 0)

    def _plan(self, draft: StepDraft) -> StepPlan:
        rows: list[PlannedRow] = []
        starts: list[SequenceStart] = []
        for share in draft.shares.values():
            if not share.seq.was_started:
                share.seq.was_started = True
                starts.append(share.seq.start())
            rows.append(share.seq.row(share.num_tokens, share.num_extra))
        ends, self._ends = self._ends, []
        return StepPlan(rows, starts, ends, draft.copies, self._row_groups(draft))

    def _row_groups(self, draft: StepDraft) -> list[RowGroup]:
        if len(draft.shares) < 2:
            return []
        key = (list(draft.shares), self.cache.num_changes)
        if key != self._groups[0]:
            leases = ((row, share.seq.lease) for row, share in enumerate(draft.shares.values()))
            self._groups = key, shared_groups((row, lease.node) for row, lease in leases if lease is not None)
        return self._groups[1]

    # Out of pages ----------------------------------------------------------------------------------------------------

    def _make_room(self, seq: Sequence, num_tokens: int, draft: StepDraft) -> bool:
        """Pages for `num_tokens` of `seq`; those that come after it in the order, and are not in the step yet, step
        back for it."""
        while not self.cache.grow(seq, num_tokens):
            victim = self._last_in_order(seq, draft)
            if victim is None:
                return False
            self._preempt(victim, draft)
        return True

    def _last_in_order(self, seq: Sequence, draft: StepDraft) -> Sequence | None:
        now = self.clock.now()
        others = [each for each in self._running.values() if each.id not in draft.shares and each is not seq]
        last = max(others, key=lambda each: self._ranks.rank(each, now), default=None)
        return last if last is not None and self._ranks.rank(last, now) > self._ranks.rank(seq, now) else None

    def _preempt(self, seq: Sequence, draft: StepDraft) -> None:
        """By recomputation: what it computed goes to the cache, and is there still when it comes back, or is not."""
        self.counters.preemptions += 1
        self._withdraw(seq, draft)
        del self._running[seq.id]
        seq.step_back(self.clock.now())
        self.cache.give(seq)
        self._waiting.add(seq, self.clock.now())
        self._outbox.append((seq.id, Paused(reason="no KV page was free for its next token")))

    def _withdraw(self, seq: Sequence, draft: StepDraft) -> None:
        targets = self.cache.withdraw_head(seq)
        if targets:
            draft.copies = [copy for copy in draft.copies if copy.target not in targets]

    def _break_deadlock(self, draft: StepDraft) -> None:
        """Running prompts hold all pages and none can go on: the last steps back."""
        now = self.clock.now()
        last = max(self._running.values(), key=lambda each: self._ranks.rank(each, now))
        if len(self._running) > 1:
            self._preempt(last, draft)
        else:
            self._withdraw(last, draft)
            self._end_for_lack_of_pages(last)

    @property
    def _waits_for_disk(self) -> bool:
        """The only running sequence gets no page, but those that are being read will be given back: it is not
        over."""
        return len(self._running) == 1 and self.cache.is_loading

    def _end_for_lack_of_pages(self, seq: Sequence) -> None:
        """It has the pool for itself and it is full."""
        if seq.num_sampled or seq.spec.max_tokens == 0:
            self._end(seq, Ending("length"))
            return
        limit = self.cache.num_pages * self.cache.page_size
        self._end(seq, Ending("error", failed=to_failed(ContextOverflow(num_tokens=seq.num_row_tokens, limit=limit))))

    # Taking in a result ----------------------------------------------------------------------------------------------

    def _commit_row(self, share: Share, row: SampledRow, now: float) -> None:
        seq = share.seq
        if row.error is not None:
            self._end(seq, Ending("error", failed=row.error))
            return
        was_prefill = share.num_tokens > 1 or not seq.num_sampled
        seq.num_computed = share.start + share.num_tokens + seq.num_confirmed(share.num_extra, row)
        seq.num_shareable = seq.num_computed
        self.counters.computed_tokens += share.num_tokens + share.num_extra
        if was_prefill:
            self.cache.publish(seq)
        outcome = seq.take(row, share.num_extra, now)
        if isinstance(outcome, Ending):
            self._end(seq, outcome)
        else:
            for event in outcome:
                self._outbox.append((seq.id, event))

    def _end(self, seq: Sequence, ending: Ending) -> None:
        """The one way out: for every sequence, exactly once."""
        now = self.clock.now()
        del self._all[seq.id]
        if seq.is_running:
            del self._running[seq.id]
        else:
            self._waiting.remove(seq)
        if seq.was_started:
            self._ends.append(seq.id)
        self._outbox.extend((seq.id, event) for event in seq.end(ending, now))
        num_computed = min(seq.num_computed, seq.num_tokens)
        cursor = self.cache.give(seq) or seq.request.cursor
        if self.quotas is not None:
            self.quotas.release(seq)
        for sibling in self._gangs.end(seq):
            if self._gangs.is_raised(sibling):
                self._waiting.remove(sibling)
                self._waiting.add(sibling, now)
        seq.is_running = False
        self._ended.append(Ended(seq, cursor, num_computed, ending))
        self._count(seq)

    # Telling ---------------------------------------------------------------------------------------------------------

    def _note_admission(self, seq: Sequence, now: float) -> None:
        seq.num_recomputed += max(0, min(seq.num_known, seq.num_reusable) - seq.num_computed)
        if seq.admitted_s is not None:
            self._outbox.append((seq.id, Resumed(waited_s=now - seq.paused_s, tokens_restored=seq.num_computed)))
            return
        seq.admitted_s, seq.num_cached = now, seq.num_computed
        self._outbox.append((seq.id, Started(prompt_tokens=seq.num_prompt, cached_tokens=seq.num_cached)))

    def _announce_newcomers(self) -> None:
        for seq in self._newcomers:
            if seq.id in self._all and seq.admitted_s is None:
                self._outbox.append((seq.id, Queued(position=self._waiting.position(seq))))
        self._newcomers.clear()

    def _expire(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id = heapq.heappop(self._deadlines)
            seq = self._all.get(request_id)
            if seq is not None:
                message = f"the generation ran past its timeout of {seq.spec.timeout_s} s"
                self._end(seq, Ending("error", failed=Failed(status=408, code="timeout", message=message)))

    def _count(self, seq: Sequence) -> None:
        counters = self.counters
        counters.prompt_tokens += seq.num_prompt
        counters.cached_tokens += max(0, seq.num_cached)
        counters.generated_tokens += seq.num_sampled
        counters.recomputed_tokens += seq.num_recomputed
        counters.drafted_tokens += seq.num_drafted
        counters.accepted_tokens += seq.num_accepted

    def check(self) -> None:
        """AssertionError unless every page has one owner. For tests, and for an idle engine."""
        self.cache.check(list(self._running.values()))

    def statistics(self) -> EngineStatistics:
        """A snapshot; programs and branches are counted by whoever keeps them."""
        balance, counters = self.cache.balance(), self.counters
        num_prefilling = sum(seq.is_prefilling for seq in self._running.values())
        oldest = self._waiting.oldest_arrival_s()
        return EngineStatistics(
            num_running=len(self._running),
            num_waiting_prefill=len(self._waiting) + num_prefilling,
            num_decoding=len(self._running) - num_prefilling,
            oldest_waiting_s=0.0 if oldest is None else self.clock.now() - oldest,
            total_pages=balance.total,
            free_pages=balance.free,
            evictable_pages=balance.evictable,
            leased_pages=balance.leased,
            page_size=self.cache.page_size,
            prompt_tokens_total=counters.prompt_tokens,
            cached_tokens_total=counters.cached_tokens,
            computed_tokens_total=counters.computed_tokens,
            generated_tokens_total=counters.generated_tokens,
            evicted_tokens_total=self.cache.num_evicted_tokens,
            recomputed_tokens_total=counters.recomputed_tokens,
            preemptions_total=counters.preemptions,
            aborted_total=counters.aborted,
            steps_total=counters.steps,
            drafted_tokens_total=counters.drafted_tokens,
            accepted_tokens_total=counters.accepted_tokens,
            tree_nodes=self.cache.num_nodes,
            quota_refused_total=self.quotas.num_refused if self.quotas is not None else 0,
            **self.cache.tier_counts(),
        )
