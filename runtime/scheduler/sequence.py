"""A turn in flight: what was asked (`Request`) and how far it is (`Sequence`). Knows no pool, no tree and no tensors.

One number says how far: `num_computed`, the leading tokens whose KV lies in `pages`. A sequence with one token left to
compute decodes; with more, it prefills; there is no other difference. After a preemption the count is smaller, and the
tokens that were generated are computed again like a prompt.
"""

import itertools
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from ramet.radix.key import as_tokens, common_prefix
from ramet.radix.lease import Lease
from ramet.radix.node import Cursor
from ramet.runtime.detokenizer import Decoded
from ramet.runtime.scheduler.reload import Reload
from ramet.runtime.scheduler.token_row import TokenRow
from ramet.runtime.types import (
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerateSpec,
    PlannedRow,
    ProgramSpec,
    SampledRow,
    SequenceStart,
    Timings,
    TokenLogprob,
    Usage,
)

_arrivals = itertools.count()


Tag = tuple[str, Literal["begin", "end"], int]
"""Name of a tagged part, edge, offset in the output's UTF-8 bytes."""


class Decoder(Protocol):
    """Tokens to certain text; `detokenizer.StreamDecoder`."""

    @property
    def num_held(self) -> int: ...
    def push(self, tokens: Tokens[int]) -> Decoded: ...
    def finish(self) -> Decoded: ...


@dataclass(slots=True, kw_only=True)
class Request:
    """A turn as it is submitted."""

    request_id: int
    """Unique among all requests of a scheduler; the executor knows it as the sequence's id."""
    tokens: TokenRow
    """The whole branch, prompt included. The sequence writes into it until its turn ends."""
    spec: GenerateSpec
    program: ProgramSpec
    branch_id: int = 0
    namespace: str = ""
    cursor: Cursor | None = None
    """Where an earlier turn of the branch left the tree: only tokens after it are looked up."""
    num_known: int = 0
    """Leading tokens that were computed before, by this branch or the one it was forked from."""
    rewritten_at: int | None = None
    """From this token on, what the branch had before was written anew by its chat template."""
    decoder: Decoder | None = None
    """None: nobody reads text (a simulation), or stops by it."""
    end_token_ids: frozenset[int] = frozenset()
    context_length: int = 1 << 30
    num_generated: int = 0
    """Tokens at the end of `tokens` that this turn has generated already: it was restored, and goes on."""
    generated_text: str = ""
    """Their certain text, as the decoder gave it."""
    choices: object = None
    """`choices.Choices`: score these, and generate nothing."""


@dataclass(slots=True, eq=False)
class Sequence:
    """The scheduler's record of a request. Pages and lease are written by the cache alone."""

    request: Request
    arrived_s: float
    id: int = field(init=False)
    tokens: TokenRow = field(init=False)
    """Prompt and output."""
    spec: GenerateSpec = field(init=False)
    max_output: int = field(init=False)
    """Tokens that may be generated."""
    ending_ids: frozenset[int] = field(init=False)
    """Tokens that may end the turn."""
    arrival: int = field(default_factory=lambda: next(_arrivals))
    """Breaks ties of `arrived_s`."""
    num_computed: int = 0
    """Leading tokens whose KV lies in `pages`."""
    num_shareable: int = 0
    """Those of them that were there when this step began: a copy may read them."""
    pages: list[int] = field(default_factory=list)
    num_tree_pages: int = 0
    """The leading pages that belong to the tree; the others are ours to give or free."""
    lease: Lease | None = None
    is_running: bool = False
    was_started: bool = False
    """The executor knows it."""
    rank: tuple[float, ...] = ()
    """Its place in the line, as the order last saw it."""
    cursor: Cursor | None = None
    """Where the last look into the tree ended."""
    leader: "Sequence | None" = None
    """A running sequence that computes what this one needs, ..."""
    joins_at: int = 0
    """... until it has so many tokens."""
    reload: Reload | None = None
    """Pages that are being read for it. Once at each waiting: what is evicted again meanwhile is computed."""
    num_matched: int = 0
    """Cached tokens when last looked up: what `lpm` ranks by."""
    num_prompt: int = 0
    num_cached: int = -1
    """Prompt tokens found cached at the first admission; -1: not admitted yet."""
    num_known: int = 0
    """Leading tokens that were computed before: those that must be computed again were lost to an eviction."""
    num_recomputed: int = 0
    num_sampled: int = 0
    """Tokens that were drawn, the end token and what a stop string cut off included."""
    num_drafted: int = 0
    num_accepted: int = 0
    drafts: Tokens[int] = ()
    held: list[int] = field(default_factory=list)
    """Tokens whose text is not certain yet, or that wait for `stream_interval`."""
    held_text: list[str] = field(default_factory=list)
    held_logprobs: list[TokenLogprob] = field(default_factory=list)
    held_tags: list[Tag] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    leftover: str = ""
    """Text between the last whole token and the cut of a stop string."""
    admitted_s: float | None = None
    paused_s: float = 0.0
    first_token_s: float | None = None
    miss: dict[str, object] | None = None

    def __post_init__(self) -> None:
        request = self.request
        self.id, self.tokens, self.spec = request.request_id, request.tokens, request.spec
        self.num_prompt = len(request.tokens) - request.num_generated
        self.num_sampled = request.num_generated
        if request.num_generated:
            self.held, self.held_text = list(self.tokens[self.num_prompt :]), [request.generated_text]
        room, wanted = request.context_length - self.num_prompt, request.spec.max_tokens
        own_ends = frozenset[int]() if self.spec.ignore_eos else request.end_token_ids
        self.ending_ids = own_ends | frozenset(self.spec.stop_token_ids)
        self.max_output = room if wanted is None else min(wanted, room)
        self.num_known, self.cursor = request.num_known, request.cursor
        if self.spec.prompt_logprobs is not None and self.spec.prompt_logprobs_start == 0:
            self.prompt_logprobs.append(TokenLogprob(self.tokens[0], None))

    # What it is ------------------------------------------------------------------------------------------------------

    @property
    def program(self) -> ProgramSpec:
        return self.request.program

    @property
    def program_id(self) -> str:
        return self.request.program.program_id or ""

    @property
    def namespace(self) -> str:
        return self.request.namespace

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_output(self) -> int:
        """Tokens generated and kept."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens that are known and not computed."""
        return len(self.tokens) - self.num_computed

    @property
    def is_prefilling(self) -> bool:
        return len(self.tokens) - self.num_computed > 1

    @property
    def num_reusable(self) -> int:
        """Leading tokens whose KV is welcome from elsewhere: not the last one, for its logits are wanted, nor any that
        a prompt logprob is still to be read from."""
        last = self.num_tokens - 1
        return last if self.next_logprob is None else min(last, max(0, self.next_logprob - 1))

    @property
    def next_logprob(self) -> int | None:
        """Index of the next prompt token whose logprob is wanted."""
        if self.spec.prompt_logprobs is None:
            return None
        index = self.spec.prompt_logprobs_start + len(self.prompt_logprobs)
        return index if index < self.num_prompt else None

    def follow(self, leader: "Sequence") -> None:
        """Wait until `leader` has computed what both begin with."""
        start = leader.num_computed
        ours, theirs = (as_tokens(each.tokens[start : self.num_reusable]) for each in (self, leader))
        self.leader, self.joins_at = leader, start + common_prefix(ours, theirs)

    @property
    def is_following(self) -> bool:
        """Is what it waits for still being computed, or read?"""
        if self.reload is not None and not self.reload.is_over:
            return True
        leader = self.leader
        if leader is not None and leader.is_running and leader.num_computed < self.joins_at:
            return True
        self.leader = None
        return False

    # What it wants of a step -----------------------------------------------------------------------------------------

    def start(self) -> SequenceStart:
        """What the executor must know before its first row, or its first after a preemption."""
        return SequenceStart(self.id, self.spec, self.tokens[: self.num_prompt], self.tokens[self.num_prompt :])

    @property
    def num_row_tokens(self) -> int:
        """Tokens that must fit in the pool at once for the turn to get anywhere."""
        return self.num_prompt

    @property
    def num_positions(self) -> int:
        """Tokens that the model's context must have places for."""
        return self.num_prompt + (self.spec.max_tokens != 0)

    @property
    def needs_extra(self) -> bool:
        """May the row not do without the tokens of `fit_extra`? Drafts are guesses."""
        return False

    def fit_extra(self, room: int) -> int:
        """How many drafts to verify after the last pending token, where the step has `room` for so many."""
        if not self.drafts or self.next_logprob is not None:
            return 0
        return max(0, min(len(self.drafts), room, self.max_output - self.num_output - 1))

    def row(self, num_tokens: int, num_drafts: int) -> PlannedRow:
        """The next `num_tokens` pending tokens; behind the last of them, drafts."""
        start, end = self.num_computed, self.num_computed + num_tokens
        is_last = end == self.num_tokens
        if not is_last or self.max_output == 0 or self.next_logprob is not None:
            return self._prompt_row(start, end, int(is_last and self.max_output > 0))
        tokens = self.tokens[start:end]
        if num_drafts:
            tokens.extend(self.drafts[:num_drafts])
        return PlannedRow(self.id, tokens, start, self.pages, 1 + num_drafts)

    def num_confirmed(self, num_drafts: int, row: SampledRow) -> int:
        """Of the drafts in a row, those that the model accepted: their KV is good."""
        return max(0, len(row.tokens) - 1) if num_drafts else 0

    def step_back(self, now_s: float) -> None:
        """Preempted: all that is known will be computed again, what the cache still has excepted."""
        self.paused_s = now_s
        self.num_known = max(self.num_known, self.num_computed)
        self.is_running = self.was_started = False
        self.drafts = ()
        self.reload = None

    def _prompt_row(self, start: int, end: int, num_sampled: int) -> PlannedRow:
        next_logprob = self.next_logprob
        if next_logprob is None or next_logprob > end:
            return PlannedRow(self.id, self.tokens[start:end], start, self.pages, num_sampled)
        followers = self.tokens[next_logprob : min(end + 1, self.num_prompt)]
        return PlannedRow(self.id, self.tokens[start:end], start, self.pages, num_sampled, len(followers), followers)

    def limit_chunk(self, num_tokens: int) -> int:
        """A chunk's length such that its last tokens all have a follower, where followers are wanted."""
        ends_prompt = self.num_computed + num_tokens == self.num_tokens
        return num_tokens - 1 if ends_prompt and num_tokens > 1 and self.next_logprob is not None else num_tokens

    # What it makes of a step's result --------------------------------------------------------------------------------

    def take(self, row: SampledRow, num_drafts: int, now_s: float) -> "list[Event] | Ending":
        """Append what was sampled; the events, or the ending."""
        self.prompt_logprobs.extend(row.follower_logprobs)
        if not row.tokens:
            return Ending("length") if self.num_pending == 0 else []
        self.drafts = row.forced
        self.held_tags.extend(row.tags)
        if num_drafts:
            self.num_drafted += num_drafts
            self.num_accepted += max(0, len(row.tokens) - 1)
        if self.first_token_s is None:
            self.first_token_s = now_s
        for index, token in enumerate(row.tokens):
            logprob = row.logprobs[index] if row.logprobs else None
            if (ending := self._append(token, logprob, may_end=index not in row.unstopped)) is not None:
                return ending
        if row.grammar_done:
            return Ending("stop")
        return self._flush()

    def _append(self, token: int, logprob: TokenLogprob | None, *, may_end: bool) -> "Ending | None":
        """One sampled token; the ending, if it is the last."""
        self.num_sampled += 1
        ending = self._ending_with(token) if may_end and token in self.ending_ids else None
        if ending is not None and not self._keeps(token):
            return ending
        self.tokens.append(token)
        self.held.append(token)
        if logprob is not None:
            self.held_logprobs.append(logprob)
        decoder = self.request.decoder
        if decoder is not None:
            decoded = decoder.push((token,))
            self.held_text.append(decoded.text)
            if decoded.cut is not None:
                self._cut(decoded.cut.num_tokens, decoded.cut.leftover)
                return Ending("stop", decoded.cut.stop)
        if ending is None and len(self.tokens) - self.num_prompt >= self.max_output:
            return Ending("length")
        return ending

    def _ending_with(self, token: int) -> "Ending | None":
        """End tokens end whenever one is drawn: before min_tokens none is, unless nothing else may be. Stop tokens are
        ordinary ones until then."""
        is_end = token in self.request.end_token_ids and not self.spec.ignore_eos
        return Ending("stop", token) if is_end or self.num_sampled > self.spec.min_tokens else None

    def _keeps(self, token: int) -> bool:
        """Does the token that ended the turn stay on the branch?"""
        return self.spec.include_stop and token in self.spec.stop_token_ids

    def _cut(self, num_kept: int, leftover: str) -> None:
        """Roll the tokens back to the last whole one before a stop string."""
        num_cut = self.num_output - num_kept
        self.tokens.truncate(self.num_prompt + num_kept)
        self.num_computed = min(self.num_computed, self.num_tokens)
        del self.held[max(0, len(self.held) - num_cut) :]
        del self.held_logprobs[len(self.held) :]
        self.leftover = leftover

    def _flush(self, *, at_end: bool = False) -> list[Event]:
        """A delta of what is certain, if it is long enough."""
        if not at_end and (len(self.held) < self.spec.stream_interval or self._may_be_cut()):
            return []
        text = "".join(self.held_text)
        if not self.held and not text and not self.held_tags:
            return []
        logprobs = self.held_logprobs if self.spec.logprobs is not None else None
        delta = Delta(text=text, tokens=self.held, logprobs=logprobs, tags=self.held_tags)
        self.held, self.held_text, self.held_logprobs, self.held_tags = [], [], [], []
        return [delta]

    def _may_be_cut(self) -> bool:
        """A stop string may still begin in what is held: its tokens wait with its text."""
        decoder = self.request.decoder
        if decoder is None or not self.spec.stop:
            return False
        return decoder.num_held > 0 or not (self.held_text and self.held_text[-1])

    def end(self, ending: "Ending", now_s: float) -> list[Event]:
        """The last events of the sequence."""
        if ending.failed is not None:
            return [ending.failed]
        if self.request.decoder is not None and not isinstance(ending.stop, str):
            ending = self._finish_text() or ending
        events = self._flush(at_end=True)
        finished = Finished(
            reason=ending.reason,
            stop=ending.stop,
            usage=self.usage(),
            timings=self.timings(now_s),
            prompt_logprobs=self.prompt_logprobs if self.spec.prompt_logprobs is not None else None,
            miss=self.miss,
        )
        return [*events, finished]

    def _finish_text(self) -> "Ending | None":
        """What was held is text now; the very last character may complete a stop string yet."""
        assert self.request.decoder is not None
        decoded = self.request.decoder.finish()
        self.held_text.append(decoded.text)
        if decoded.cut is None:
            return None
        self._cut(decoded.cut.num_tokens, decoded.cut.leftover)
        return Ending("stop", decoded.cut.stop)

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.num_prompt,
            cached_tokens=max(0, self.num_cached),
            completion_tokens=self.num_sampled,
            drafted_tokens=self.num_drafted,
            accepted_tokens=self.num_accepted,
        )

    def timings(self, now_s: float) -> Timings:
        admitted = now_s if self.admitted_s is None else self.admitted_s
        first = now_s if self.first_token_s is None else self.first_token_s
        return Timings(
            queue_s=admitted - self.arrived_s,
            prefill_s=first - admitted,
            decode_s=now_s - first,
            time_to_first_token_s=None if self.first_token_s is None else first - self.arrived_s,
        )


class Ending(NamedTuple):
    """Why a sequence ends."""

    reason: FinishReason
    stop: str | int | None = None
    failed: Failed | None = None
