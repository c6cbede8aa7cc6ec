"""LocalClient: an EngineClient in this process. Verbs on branches happen at once, on the caller's thread; what the
model must compute goes to the engine's thread and comes back as events.

So extending, forking and marking never wait for a step, and a step never waits for a tokenizer. A branch's tokens
belong to the engine while a turn runs on it, and to its callers otherwise; the table of branches is held for the
length of a verb only.
"""

import asyncio
import atexit
import functools
import itertools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol, TypeVar, cast

import msgspec

from ramet.constrained.spec import Spec
from ramet.radix.node import Cursor
from ramet.runtime import conversation
from ramet.runtime.branches import Branch, BranchTable, Gap, add_usage
from ramet.runtime.chat_template import ChatTemplate
from ramet.runtime.checkpoint import SavedProgram, SavedTurn, check_model, restore_program, save_program
from ramet.runtime.detokenizer import StreamDecoder, TokenTable
from ramet.runtime.engine import Engine, EngineLoop
from ramet.runtime.errors import BadRequest, Cancelled, EngineFailed, NotBuilt, RametError
from ramet.runtime.event_streams import EventStream, Switchboard
from ramet.runtime.failures import to_failed
from ramet.runtime.kv.tier import DiskTier
from ramet.runtime.literals import TextCodec, encode, guard
from ramet.runtime.questions import Question, ask, decide
from ramet.runtime.scheduler.choices import Choices, Scores, Scoring
from ramet.runtime.scheduler.program_feed import ProgramFeed
from ramet.runtime.scheduler.scheduler import Ended, RequestEvent
from ramet.runtime.scheduler.sequence import Request
from ramet.runtime.scheduler.token_row import TokenRow
from ramet.runtime.selection import counts_end, needs_unconditional
from ramet.runtime.types import (
    BranchHandle,
    Delta,
    EngineStatistics,
    Event,
    Finished,
    GapKind,
    GenerateSpec,
    Mark,
    MessagesPiece,
    ModelCard,
    Piece,
    ProgramSpec,
    Selection,
    SelectMethod,
    TextPiece,
    TokensPiece,
    Usage,
)
from ramet.runtime.validation import check_choices, check_spec, check_tokens, nothing_said

T = TypeVar("T")

_LONG_TEXT = 8192
"""Characters; tokenising so many takes about as long as handing them to another thread and back."""


class CompiledGrammar(Protocol):
    """`constrained.grammar.CompiledGrammar`, as far as a client needs it."""

    @property
    def ledger(self) -> Sequence[object]: ...


GrammarCompiler = Callable[[Spec], CompiledGrammar]
"""Raises GrammarRefused."""

Ledger = list[dict[str, str]]


class LocalClient:
    """Owns the engine's thread: `start` it (or use `async with`), `stop` it."""

    def __init__(
        self,
        engine: Engine,
        codec: TextCodec,
        card: ModelCard,
        template: ChatTemplate | None = None,
        compile_grammar: GrammarCompiler | None = None,
        max_tenant_branches: int | None = None,
    ) -> None:
        """`compile_grammar`: the compiler that the executor has too; it keeps what it compiled. None: there is none.
        `max_tenant_branches`: open at once; None: no limit."""
        self._engine, self._codec, self._card = engine, codec, card
        self._compile_grammar = compile_grammar
        self._template = template or ChatTemplate(None)
        self._branches = BranchTable(max_tenant_branches)
        self._lock = threading.Lock()
        self._request_ids = itertools.count(1)
        self._on_end: dict[int, Callable[[Ended], None]] = {}
        self._turns: dict[int, SavedTurn] = {}
        """Generations that run, as a checkpoint records them; by request."""
        self._table = _token_table(codec)
        self._bos_text, self._eos_text = codec.special_text(codec.bos_id), codec.special_text(codec.eos_id)
        self._end_texts = tuple(codec.special_text(token) for token in codec.end_ids)
        self._switchboard = Switchboard(self._abort_soon)
        self._loop = EngineLoop(engine, self._on_step, self._on_death)
        self._death: EngineFailed | None = None

    # Life ------------------------------------------------------------------------------------------------------------

    def start(self) -> "LocalClient":
        self._loop.start()
        atexit.register(self.stop)  # a thread inside native code at interpreter exit is a crash
        return self

    def stop(self) -> None:
        """Abort what runs and end the thread. Its callers get EngineFailed."""
        atexit.unregister(self.stop)
        self._death = self._death or EngineFailed("the engine was stopped")
        self._loop.stop()
        self._switchboard.fail_all(to_failed(self._death))

    async def __aenter__(self) -> "LocalClient":
        return self.start()

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    def __enter__(self) -> "LocalClient":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def card(self) -> ModelCard:
        return self._card

    @property
    def disk_tier(self) -> DiskTier | None:
        """Where KV goes that leaves the pool; None: nowhere."""
        return self._engine.scheduler.cache.tier

    @property
    def codec(self) -> TextCodec:
        """The model's tokenizer."""
        return self._codec

    # Branches --------------------------------------------------------------------------------------------------------

    async def open(self, program: ProgramSpec) -> BranchHandle:
        self._require_life()
        with self._lock:
            return self._branches.open(program)

    async def extend(self, branch: BranchHandle, pieces: Sequence[Piece]) -> None:
        """All pieces, or none where one of them is bad."""
        with self._lock:
            target = self._branches.at_rest(branch)
            before = target.snapshot() if len(pieces) > 1 else None
            try:
                for piece in pieces:
                    self._append(target, piece)
            except RametError:
                if before is not None:
                    target.restore(before)
                raise

    def _append(self, branch: Branch, piece: Piece) -> None:
        match piece:
            case TextPiece(text=text, allow_special=allow_special):
                guarded = text if allow_special else guard(text, self._codec.special_names)
                if guarded:
                    branch.add_text(guarded, self._codec)
                    branch.conversation = branch.conversation.with_words(guarded)
            case TokensPiece(tokens=tokens):
                check_tokens(tokens, self._codec.vocabulary_size)
                branch.settle(self._codec)
                branch.tokens.extend(tokens)
                if branch.conversation.has_begun:
                    branch.conversation = branch.conversation.with_words(self._spelled(tokens))
            case MessagesPiece():
                self._append_messages(branch, piece)

    def _spelled(self, tokens: Sequence[int]) -> str:
        """Guarded text of tokens: their special ones count, and nothing else does."""
        text = self._codec.decode(tokens, skip_special=False)
        is_plain = self._codec.special_ids.isdisjoint(tokens)
        return guard(text, self._codec.special_names) if is_plain else text

    def _append_messages(self, branch: Branch, piece: MessagesPiece) -> None:
        names = self._codec.special_names
        appended = conversation.append(branch.conversation, piece, self._template_of, names, self._end_texts)
        if appended.removed:
            branch.remove_end(appended.removed, self._codec)
            branch.rewritten_at = len(branch.tokens)
        if appended.addition:
            branch.add_text(appended.addition, self._codec, is_template=True)
        branch.conversation = appended.conversation

    def _template_of(self, source: str | None) -> ChatTemplate:
        return self._template if source is None else _compiled(source, self._bos_text, self._eos_text)

    async def fork(self, branch: BranchHandle, n: int) -> list[BranchHandle]:
        with self._lock:
            return self._branches.fork(self._branches.at_rest(branch), n)

    async def mark(self, branch: BranchHandle) -> Mark:
        await self._tokenise_ahead(branch)
        with self._lock:
            target = self._branches.at_rest(branch)
            target.settle(self._codec)
            return self._branches.mark(target)

    async def rollback(self, branch: BranchHandle, mark: Mark) -> None:
        with self._lock:
            self._branches.rollback(self._branches.at_rest(branch), mark)

    async def gap(
        self, branch: BranchHandle, kind: GapKind, tool: str | None = None, expected_s: float | None = None
    ) -> None:
        with self._lock:
            target = self._branches.at_rest(branch)
            target.gap = Gap(kind, tool, expected_s, self._engine.scheduler.clock.now())
        self._loop.post(functools.partial(self._engine.gap, branch, kind, tool, expected_s))

    async def tokens(self, branch: BranchHandle) -> list[int]:
        await self._tokenise_ahead(branch)
        with self._lock:
            target = self._branches.get(branch)
            return [*target.tokens, *target.pending.ids(self._codec)]

    async def text(self, branch: BranchHandle) -> str:
        with self._lock:
            target = self._branches.get(branch)
            return self._codec.decode(target.tokens[:], skip_special=False) + target.pending.plain_text

    async def close(self, branch: BranchHandle, *, program: bool = False) -> Usage:
        with self._lock:
            target = self._branches.get(branch) if not program else None
            owner = target.program if target is not None else self._branches.program(branch.program_id)
            closing = list(owner.branches.values()) if target is None else [target]
            running = [each.running for each in closing if each.running is not None]
            for each in closing:
                each.was_cut_short = each.running is not None
        if running:
            await self._ask(functools.partial(self._abort_all, running))
        with self._lock:
            for each in closing:
                if not each.is_closed:
                    self._branches.close(each)
            is_over = not owner.branches
            usage = owner.closed_usage if target is None else target.usage
        if target is not None and not is_over and self._loop.is_alive:
            self._loop.post(functools.partial(self._engine.left, branch))
        self._prune([each for each in closing if each.was_cut_short])
        if is_over and self._loop.is_alive:
            self._loop.post(functools.partial(self._engine.closed, branch.program_id))
        return usage

    def _prune(self, cancelled: Sequence[Branch]) -> None:
        """What only a cancelled branch used is free at once. (What others closed in peace left stays cached, evictable:
        the next run of the same program finds it.)"""
        ends = [(each.cursor, each.num_inherited, each.tokens) for each in cancelled if each.cursor is not None]
        if ends and self._loop.is_alive:
            self._loop.post(functools.partial(self._prune_all, ends))

    def _prune_all(self, ends: Sequence[tuple[Cursor, int, TokenRow]]) -> None:
        for cursor, num_kept, tokens in ends:
            self._engine.scheduler.cache.prune(cursor, num_kept, tokens)

    def _abort_all(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            self._engine.scheduler.abort(request_id)
        self._settle(self._engine.take_ended())

    # Turns -----------------------------------------------------------------------------------------------------------

    async def generate(self, branch: BranchHandle, spec: GenerateSpec) -> AsyncIterator[Event]:
        ledger = await self._prepare_grammar(spec)
        await self._tokenise_ahead(branch)
        async with aclosing(self._events(*self._begin_turn(branch, spec), spec, ledger)) as events:
            async for event in events:
                yield event

    async def _events(
        self,
        request_id: int,
        stream: EventStream,
        spec: GenerateSpec,
        ledger: Ledger | None,
        said_before: Sequence[int] = (),
    ) -> AsyncGenerator[Event]:
        """Of a turn that was submitted; whoever stops listening aborts it."""
        output = list(said_before)
        must_judge = ledger is not None and any(entry["status"] == "deferred" for entry in ledger)
        try:
            while not stream.is_over or stream.has_events:
                event = await stream.next()
                if must_judge and isinstance(event, Delta):
                    output += event.tokens
                if ledger is not None and isinstance(event, Finished):
                    found = await self._violations(spec, output) if must_judge else None
                    event = msgspec.structs.replace(event, ledger=ledger, violations=found)
                yield event
        finally:
            if not stream.is_over:
                self._abort_soon(request_id)
                await stream.wait_until_over()

    async def _violations(self, spec: GenerateSpec, output: Sequence[int]) -> list[dict[str, object]]:
        """What no grammar could hold, judged on a thread of its own: a hostile schema costs its own request."""
        from ramet.constrained.judge import Compile, judge  # late: most engines never come here

        assert spec.grammar is not None
        assert self._compile_grammar is not None
        compile = cast(Compile, self._compile_grammar)
        found = await asyncio.to_thread(judge, spec.grammar, output, compile)
        return [msgspec.to_builtins(violation) for violation in found]

    async def _prepare_grammar(self, spec: GenerateSpec) -> Ledger | None:
        """Compile it where no step waits for that, so that a bad one is refused here and a good one is ready; its
        ledger."""
        if spec.grammar is None:
            return None
        if self._compile_grammar is None:
            raise NotBuilt("a grammar on this engine", hint="It was built without a grammar compiler.")
        compiled = await asyncio.to_thread(self._compile_grammar, spec.grammar)
        return [msgspec.to_builtins(entry) for entry in compiled.ledger]

    async def _tokenise_ahead(self, handle: BranchHandle) -> None:
        """A long text is tokenised on a thread of its own, so that neither the event loop nor a step waits for it."""
        with self._lock:
            pending = self._branches.get(handle).pending
        if len(pending.text) > _LONG_TEXT:
            await asyncio.to_thread(pending.ids, self._codec)  # which remembers them

    def _begin_turn(self, handle: BranchHandle, spec: GenerateSpec) -> tuple[int, EventStream]:
        self._require_life()
        check_spec(spec, self._codec.vocabulary_size)
        with self._lock:
            branch = self._branches.at_rest(handle)
            at_text_start = not len(branch.tokens) and not branch.pending
            branch.settle(self._codec)
            if not len(branch.tokens):
                raise nothing_said()
            request = self._request(branch, branch.tokens, spec, self._decoder(spec, at_text_start))
            turn = SavedTurn(spec=spec, num_prompt=len(branch.tokens), at_text_start=at_text_start)
        return request.request_id, self._run_turn(branch, request, turn)

    def _run_turn(self, branch: Branch, request: Request, turn: SavedTurn) -> EventStream:
        branch.running = request.request_id
        self._turns[request.request_id] = turn
        return self._submit(request, functools.partial(self._end_turn, branch))

    def _begin_token(self) -> int:
        """What stands before a choice where the whole prompt is part of its first token."""
        if self._codec.bos_id is None:
            hint = "This model has no token that begins a text: write more before the choice."
            raise BadRequest(expected="a prompt that a choice does not swallow", got="", at="$.prompt", hint=hint)
        return self._codec.bos_id

    def _decoder(self, spec: GenerateSpec, at_text_start: bool) -> StreamDecoder:
        return StreamDecoder(
            self._table,
            stops=spec.stop,
            include_stop=spec.include_stop,
            skip_special_tokens=spec.skip_special_tokens,
            at_text_start=at_text_start,
            min_tokens=spec.min_tokens,
        )

    def _request(
        self,
        branch: Branch,
        tokens: TokenRow,
        spec: GenerateSpec,
        decoder: StreamDecoder | None = None,
        choices: Choices | None = None,
    ) -> Request:
        return Request(
            request_id=next(self._request_ids),
            tokens=tokens,
            spec=spec,
            program=branch.program.spec,
            branch_id=branch.handle.branch_id,
            namespace=branch.program.namespace,
            cursor=branch.cursor,
            num_known=branch.num_known,
            rewritten_at=branch.rewritten_at,
            decoder=decoder,
            end_token_ids=frozenset(self._card.end_token_ids),
            context_length=self._card.context_length,
            choices=choices,
        )

    def _submit(self, request: Request, on_end: Callable[[Ended], None]) -> EventStream:
        """To the engine's thread. `on_end` is called there, with the lock held, before the last event is told."""
        stream = EventStream()
        self._on_end[request.request_id] = on_end
        self._switchboard.connect(request.request_id, stream)
        self._loop.post(functools.partial(self._engine.submit, request))
        return stream

    def _end_turn(self, branch: Branch, ended: Ended) -> None:
        """The branch is its callers' again."""
        branch.cursor, branch.num_known, branch.running = ended.cursor, ended.num_computed, None
        branch.rewritten_at = None
        self._turns.pop(ended.seq.id, None)
        leftover = guard(ended.seq.leftover, self._codec.special_names)
        if leftover:
            branch.add_text(leftover, self._codec)
        if branch.conversation.has_begun:
            written = self._spelled(ended.seq.tokens[ended.seq.num_prompt :])
            branch.conversation = branch.conversation.with_words(written + leftover)
        branch.usage = add_usage(branch.usage, ended.seq.usage())

    # Checkpoints -----------------------------------------------------------------------------------------------------

    async def checkpoint(self, program_id: str) -> SavedProgram:
        return await self._ask(functools.partial(self._save, program_id))

    def _save(self, program_id: str) -> SavedProgram:
        """On the engine's thread: no step writes into the branches meanwhile."""
        with self._lock:
            program = self._branches.program(program_id)
            running = {branch.handle.branch_id: branch.running for branch in program.branches.values()}
            turns = {at: self._seeded(request) for at, request in running.items() if request in self._turns}
            return save_program(program, turns, self._card, self._engine.scheduler.clock.now())

    def _seeded(self, request_id: int) -> SavedTurn:
        """With the seed that it draws with: another engine would give it another."""
        turn, seed = self._turns[request_id], self._engine.seed_of(request_id)
        sampling = turn.spec.sampling
        if sampling.seed is not None or seed is None:
            return turn
        spec = msgspec.structs.replace(turn.spec, sampling=msgspec.structs.replace(sampling, seed=seed))
        return msgspec.structs.replace(turn, spec=spec)

    async def restore(self, program: SavedProgram) -> list[BranchHandle]:
        self._require_life()
        check_model(program, self._card)
        for saved in program.branches:
            if saved.turn is not None:
                check_spec(saved.turn.spec, self._codec.vocabulary_size)
        now_s = self._engine.scheduler.clock.now()
        with self._lock:
            handles = restore_program(program, self._branches, self._codec.vocabulary_size, now_s)
        for handle, saved in zip(handles, program.branches, strict=True):
            if (gap := saved.gap) is not None:
                self._loop.post(functools.partial(self._engine.gap, handle, gap.kind, gap.tool, gap.expected_s))
        return handles

    async def resume(self, branch: BranchHandle) -> AsyncIterator[Event]:
        with self._lock:
            turn = self._branches.get(branch).unfinished
        if turn is None:
            raise BadRequest(expected="a branch restored in the middle of a generation", got=branch, at="$.branch")
        ledger = await self._prepare_grammar(turn.spec)
        request_id, stream, said_before = self._go_on(branch, turn)
        async with aclosing(self._events(request_id, stream, turn.spec, ledger, said_before)) as events:
            async for event in events:
                yield event

    def _go_on(self, handle: BranchHandle, turn: SavedTurn) -> tuple[int, EventStream, Sequence[int]]:
        """The request and its events, and the tokens that were generated before."""
        self._require_life()
        with self._lock:
            branch = self._branches.get(handle)
            branch.unfinished = None
            branch = self._branches.at_rest(handle)
            if turn.spec.logprobs is not None or turn.spec.prompt_logprobs is not None:
                branch.tokens.truncate(turn.num_prompt)  # logprobs were not saved: the turn begins anew
            output = branch.tokens[turn.num_prompt :]
            decoder = self._decoder(turn.spec, turn.at_text_start)
            request = self._request(branch, branch.tokens, turn.spec, decoder)
            request.num_generated, request.generated_text = len(output), decoder.push(output).text
        return request.request_id, self._run_turn(branch, request, turn), output

    # Choices ---------------------------------------------------------------------------------------------------------

    async def select(
        self,
        branch: BranchHandle,
        choices: Sequence[str],
        method: SelectMethod = "total",
        temperature: float = 0.0,
        seed: int | None = None,
        append: bool = True,
    ) -> Selection:
        self._require_life()
        check_choices(choices, method, temperature)
        await self._tokenise_ahead(branch)
        with self._lock:
            target = self._branches.at_rest(branch)
            question = ask(target, choices, self._codec, self._begin_token)
            scoring = self._score(target, question.text, question, method)
            target.running = scoring.request_id
        scored = [scoring]
        if needs_unconditional(method):
            scored.append(self._score(target, TokenRow([self._apart_token()]), question, method, is_apart=True))
        given, *alone = await self._all_scores(scored)
        selection = decide(question, given, alone[0] if alone else None, method, temperature, seed)
        usage = functools.reduce(add_usage, (each.usage for each in scored))
        with self._lock:
            target.usage = add_usage(target.usage, usage)
            if append:
                question.append_to(target, selection.index)
            scoring.leave_on(target)
        return msgspec.structs.replace(selection, usage=usage)

    async def _all_scores(self, scored: Sequence["_Scored"]) -> list[Mapping[int, Scores]]:
        """Wait for all; whoever leaves before aborts what still runs."""
        try:
            return [await each.scores() for each in scored]
        finally:
            for each in scored:
                if not each.stream.is_over:
                    self._abort_soon(each.request_id)
                    await each.stream.wait_until_over()

    def _apart_token(self) -> int:
        """What stands before choices that are read without the text: the token that begins one, or that ends the
        last."""
        return self._codec.bos_id if self._codec.bos_id is not None else self._card.end_token_ids[0]

    def _score(
        self, branch: Branch, text: TokenRow, question: Question, method: SelectMethod, *, is_apart: bool = False
    ) -> "_Scored":
        ends = self._card.end_token_ids if counts_end(method) else ()
        limit = max(64, self._engine.scheduler.admission.max_step_tokens // 4)
        choices = Choices(choices=question.choices, end_ids=ends, max_row_tokens=limit)
        request = self._request(branch, text, GenerateSpec(max_tokens=0), choices=choices)
        if is_apart:
            request.cursor, request.num_known = None, 0
        scored = _Scored(request.request_id)
        scored.stream = self._submit(request, functools.partial(self._end_select, branch, scored, is_apart))
        return scored

    def _end_select(self, branch: Branch, scored: "_Scored", is_apart: bool, ended: Ended) -> None:
        scored.ended = ended
        if not is_apart:
            branch.running = None

    # Text and figures ------------------------------------------------------------------------------------------------

    async def tokenize(self, text: str, *, allow_special: bool = False, add_bos: bool = False) -> list[int]:
        guarded = text if allow_special else guard(text, self._codec.special_names)
        return encode(self._codec, guarded, add_bos=add_bos)

    async def detokenize(self, tokens: Sequence[int], *, skip_special: bool = False) -> str:
        check_tokens(tokens, self._codec.vocabulary_size)
        return self._codec.decode(tokens, skip_special=skip_special)

    async def statistics(self) -> EngineStatistics:
        statistics = await self._ask(self._engine.scheduler.statistics)
        with self._lock:
            counts = {"num_programs": self._branches.num_programs, "num_branches": self._branches.num_branches}
        counts["grammar_device_masks_total"], counts["grammar_host_masks_total"] = self._engine.num_masks
        listener = self._engine.listener
        totals = await self._ask(listener.totals) if isinstance(listener, ProgramFeed) else {}
        return msgspec.structs.replace(statistics, **counts, **totals)

    async def flush_cache(self) -> int:
        return await self._ask(self._engine.scheduler.cache.flush)

    # Between the threads ---------------------------------------------------------------------------------------------

    def _require_life(self) -> None:
        if self._death is not None or not self._loop.is_alive:
            raise self._death or EngineFailed("the engine is not running: start it first")

    async def _ask(self, question: Callable[[], T]) -> T:
        self._require_life()
        return await asyncio.wrap_future(self._loop.call(question))

    def _abort_soon(self, request_id: int) -> None:
        try:
            self._loop.post(functools.partial(self._engine.scheduler.abort, request_id))
        except RametError:
            return  # the engine is gone, and the request with it

    def _on_step(self, events: Sequence[RequestEvent], ended: Sequence[Ended]) -> None:
        """On the engine's thread. A branch is at rest before its last event says so."""
        self._settle(ended)
        self._switchboard.publish(events)

    def _settle(self, ended: Sequence[Ended]) -> None:
        if ended:
            with self._lock:
                for each in ended:
                    self._on_end.pop(each.seq.id)(each)

    def _on_death(self, error: EngineFailed) -> None:
        self._death = error
        self._switchboard.fail_all(to_failed(error))


class _Scored:
    """A scoring that was submitted, and what came of it."""

    def __init__(self, request_id: int) -> None:
        self.request_id = request_id
        self.stream: EventStream
        self.ended: Ended | None = None

    async def scores(self) -> Mapping[int, Scores]:
        while not self.stream.is_over or self.stream.has_events:
            await self.stream.next()
        assert self.ended is not None and isinstance(self.ended.seq, Scoring)
        if self.ended.ending.reason == "abort":
            raise Cancelled("the branch was closed while it selected")
        return self.ended.seq.scores

    def leave_on(self, branch: Branch) -> None:
        """The branch goes on from where its text was computed to, if it has that text now."""
        if self.ended is not None and self.ended.cursor is not None:
            num_tokens = len(branch.tokens)
            if self.ended.cursor.num_tokens <= num_tokens:
                branch.cursor, branch.num_known = self.ended.cursor, min(self.ended.num_computed, num_tokens)

    @property
    def usage(self) -> Usage:
        return self.ended.seq.usage() if self.ended is not None else Usage()


def _token_table(codec: TextCodec) -> TokenTable:
    first = codec.encode("x")[0]
    return TokenTable(
        pieces=codec.all_token_bytes,
        special_ids=codec.special_ids,
        strips_leading_space=codec.all_token_bytes[first].startswith(b" "),
    )


@functools.lru_cache(maxsize=16)
def _compiled(source: str, bos_text: str, eos_text: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token=bos_text, eos_token=eos_text)
