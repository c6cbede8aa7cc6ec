"""The program's side of a branch: takes what is said to it, keeps the log, and hands the work to its lane.

Everything here returns at once, from any thread; what must be waited for comes back as a Future. `State` and
`AsyncState` are two faces of this. Knows ir, transcript and lane; no asyncio, no engine.
"""

import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ramet.lang import ir
from ramet.lang.calls import ToolCall, parse_calls
from ramet.lang.hints import GAPS
from ramet.lang.interpreter import Lane
from ramet.lang.loop import PROGRAMS, wait_async
from ramet.lang.options import to_spec
from ramet.lang.site import Site, caller
from ramet.lang.suggest import did_you_mean
from ramet.lang.tools import EarlyCalls, Tool, ToolResult, by_name, run_calls
from ramet.lang.transcript import Chunk, Entry, Transcript, TurnBegin, TurnEnd, messages, slots, written
from ramet.lang.values import Slot, add_usage, filled
from ramet.runtime.errors import BadRequest
from ramet.runtime.types import GapKind, Mark, Usage

if TYPE_CHECKING:
    from ramet.lang.run import Run

T = TypeVar("T")


class UnknownVariable(BadRequest, KeyError):
    """`s["x"]` where no `x` was ever said; lists what was."""

    __str__ = Exception.__str__


class ProgramMark(NamedTuple):
    """A point to roll back to. Belongs to the branch that made it."""

    branch: "Branch"
    chunk: Chunk
    engine: "Future[tuple[Mark, str | None, bool]]"


class ForkRecord(NamedTuple):
    """For the drawing: children, and after how many turns of the parent they came."""

    children: list["Branch"]
    after_turns: int
    site: Site


class Branch:
    """One path of a program."""

    def __init__(self, run: "Run", lane: Lane, outer: Chunk | None = None, parent: "Branch | None" = None) -> None:
        self.run, self.lane, self.parent = run, lane, parent
        self.transcript = Transcript(outer)
        self.tools: dict[str, Tool[..., Any]] = dict(parent.tools) if parent is not None else {}
        self.turns: list[Slot] = []
        """Everything generated here, also what was rolled back."""
        self.forks: list[ForkRecord] = []
        self.joined = False
        self.faces: weakref.WeakSet[Any] = weakref.WeakSet()
        """The states that somebody still holds: only they can ask for the text later."""
        self.last_text: str | None = None
        """Taken when the program ended."""
        self.nodes: list[ir.Node] = []
        """What was said, where the run is a trace."""
        self.num_calls: int = parent.num_calls if parent is not None else 0
        self.scopes: dict[str, Chunk] = {}
        """Where each `var_scope` that is open began."""
        self._early: EarlyCalls | None = None
        run.branches.append(self)

    # Saying

    def say(self, spoken: ir.Spoken, state: Any) -> None:
        """`s += spoken`."""
        self._check_open()
        self._say(spoken, state, record=self.run.tracing)

    def _check_open(self) -> None:
        if self.joined or self.lane.closed:
            raise BadRequest(
                expected="a branch that is open",
                got="one that was joined or ended",
                at="state",
                hint="Go on with the state that was forked, or fork again.",
            )

    def _say(self, spoken: ir.Spoken, state: Any, *, record: bool = False) -> None:
        if record and isinstance(spoken, str | ir.Node):
            self.nodes.append(ir.Literal(spoken) if isinstance(spoken, str) else spoken)
            record = False
        match spoken:
            case str():
                self._literal(spoken)
            case ir.Literal():
                self._literal(spoken.text)
            case ir.Concat():
                for part in spoken.parts:
                    self._say(part, state)
            case ir.Gen():
                self._generate(spoken)
            case ir.Select():
                self._select(spoken)
            case ir.Role():
                self._begin(spoken.role, spoken.extra)
                self._say(spoken.body, state)
                self._end(spoken.role)
            case ir.RoleBegin():
                self._begin(spoken.role, spoken.extra)
            case ir.RoleEnd():
                self._end(spoken.role)
            case ir.ScopeBegin():
                self.scopes[spoken.name] = self.transcript.freeze()
            case ir.ScopeEnd():
                self._scope_end(spoken.name)
            case ir.UseTools():
                self._use_tools(spoken.tools)
            case list() | tuple():
                for part in spoken:
                    self._say(part, state, record=record)
            case _ if callable(spoken):
                if (result := spoken(state)) is not None and result is not state:
                    self._say(result, state, record=record)  # type: ignore[arg-type]
            case _:
                raise BadRequest(
                    expected="text, an expression such as gen(...), a list of them, or a function of the state",
                    got=spoken,
                    at="s += ...",
                    hint=_how_to_say(spoken),
                )

    def _literal(self, text: str) -> None:
        _check_unicode(text)
        if text:
            self.run.check_filled(text)
            self.transcript.append(text)
            self.lane.post(partial(self.lane.write, text))

    def _generate(self, node: ir.Gen) -> None:
        options = {**self.run.defaults, **node.options}
        tools = by_name(options.get("tools") or ())
        eager = any(tool.eager for tool in tools.values()) and not self.run.tracing
        relaxed = not (self.run.streaming or self.lane.watched or eager)
        spec, decoder = to_spec(options, relaxed=relaxed)
        slot = self._slot(node)
        slot.samples = [Slot(None, slot.what, slot.site) for _ in range((options.get("n") or 1) - 1)]
        for one in (slot, *slot.samples):
            one.decoder = decoder
        slot.wants_token_texts = bool(options.get("return_text_in_logprobs"))
        self._offer(tools)
        if eager:
            self._early = EarlyCalls(tools, copy_context())
            slot.listener = self._early.read
        self._add(slot)
        self.lane.launch(slot, lambda: self.lane.generate(slot, spec))

    def _offer(self, tools: dict[str, Tool[..., Any]]) -> None:
        """The chat template shows the model the tools that are new: it must know what it may call."""
        if new := tuple(tool for name, tool in tools.items() if name not in self.tools):
            self._use_tools(new)

    def _select(self, node: ir.Select) -> None:
        slot = self._slot(node)
        self._add(slot)
        self.lane.launch(slot, lambda: self.lane.select(slot, node))

    def _slot(self, node: ir.Gen | ir.Select) -> Slot:
        what = f"gen({node.name!r})" if isinstance(node, ir.Gen) else f"select({node.name!r})"
        return Slot(node.name, what, caller())

    def _add(self, slot: Slot) -> None:
        self.transcript.append(slot)
        self.turns.append(slot)
        self.run.said()

    def _begin(self, role: str, extra: tuple[tuple[str, object], ...]) -> None:
        open_turn = self.transcript.chunk.turn
        if open_turn is not None:
            raise BadRequest(
                expected=f"the end of the {open_turn.role} message",
                got=f"{role} inside it",
                at="s += ...",
                hint="A message can't hold another: end it first.",
            )
        self.transcript.append(TurnBegin(role, extra))
        self.lane.post(partial(self.lane.begin_role, role, dict(extra)))

    def _end(self, role: str) -> None:
        open_turn = self.transcript.chunk.turn
        if open_turn is None or open_turn.role != role:
            began = "no message is open" if open_turn is None else f"a {open_turn.role} message is open"
            raise BadRequest(expected=f"{role}_begin() before", got=f"{role}_end(), but {began}", at="s += ...")
        self.transcript.append(TurnEnd(role))
        self.lane.post(partial(self.lane.end_role, role))

    def _use_tools(self, tools: tuple[Tool[..., Any], ...]) -> None:
        self.tools.update(by_name(tools))
        self.lane.post(partial(self.lane.use_tools, [tool.schema for tool in tools]))

    def _scope_end(self, name: str) -> None:
        begin = self.scopes.pop(name)
        entries = self.transcript.entries(since=begin)
        slot = Slot(name, f"var_scope({name!r})", caller())
        self.transcript.bind(slot)
        self.run.said()
        self.lane.launch(slot, lambda: _fill_scope(slot, entries))

    def set(self, name: str, value: object) -> None:
        """`s[name] = value`: binds a variable, says nothing."""
        self.transcript.bind(filled(name, value))
        self.run.said()

    # Asking

    def slot(self, name: str) -> Slot:
        found = self.transcript.find(name)
        if found is None:
            raise self.unknown(name)
        return found

    def unknown(self, name: str) -> UnknownVariable:
        known = sorted(self.transcript.names())
        return UnknownVariable(
            expected=f"one of {known}" if known else "a variable (there is none yet)",
            got=name,
            at=f"s[{name!r}]",
            hint=self._where_it_may_be(name, known),
        )

    def _where_it_may_be(self, name: str, known: list[str]) -> str:
        """In a branch below, under a name spelled nearly so, or not said yet."""
        below = [child for fork in self.forks for child in fork.children if child.transcript.find(name) is not None]
        if below:
            return "A branch below has it: ask that branch (forks[0][...]), or join first (await it in async code)."
        return did_you_mean(name, known) or f'Say it first: s += gen("{name}").'

    def slot_later(self, name: str, *, outside: bool) -> "Future[Slot]":
        """The same; for one who looks from outside at a program that still runs, it may be said yet."""
        if outside and self.transcript.find(name) is None:
            return self.run.when_said(self, name)
        return _done(self.slot(name))

    def text(self, *, outside: bool = False) -> "Future[str]":
        """The whole text, as the model sees it; from outside, that at the program's end."""
        if self.last_text is not None:
            return _done(self.last_text)
        if outside:
            return _then(self.run.body, self.text)
        if self.run.tracing:
            return _done(written(self.transcript.entries()))
        return self.lane.submit(self.lane.text, "text()", caller())

    def token_ids(self) -> "Future[list[int]]":
        if self.lane.closed:
            raise BadRequest(
                expected="a branch that is open",
                got="one that was joined or ended",
                at="s.tokens()",
                hint="Take them inside the program: s['ids'] = s.tokens().",
            )
        return self.lane.submit(self.lane.token_ids, "tokens()", caller())

    def sync(self, *, outside: bool = False) -> "Future[None]":
        """Done when everything said so far is; from outside, when the program has ended."""
        return _then(self.run.body, self.drained) if outside else self.drained()

    def drained(self) -> "Future[None]":
        """Done when the lane has done what it was given, whoever asks."""
        if self.lane.closed:
            return _done(None) if self.lane.error is None else _failed(self.lane.error)
        return self.lane.submit(self.lane.nothing, "sync()", caller())

    def messages(self) -> list[dict[str, object]]:
        """The chat so far. After `sync()`."""
        return messages(self.transcript.entries())

    def last_turn(self) -> list[Entry]:
        """What was said in the last assistant's message."""
        entries = self.transcript.entries()
        begins = [i for i, entry in enumerate(entries) if isinstance(entry, TurnBegin) and entry.role == "assistant"]
        turn = entries[begins[-1] :] if begins else entries
        ended = next((i for i, entry in enumerate(turn) if isinstance(entry, TurnEnd)), len(turn))
        return turn[:ended] if not any(isinstance(entry, TurnBegin) for entry in turn[ended:]) else []

    # Tools

    def pending_calls(self) -> list[ToolCall]:
        """The calls in the last assistant's message, if nothing followed it. After `sync()`."""
        calls = parse_calls(written(self.last_turn()), first=self.num_calls)
        self.num_calls += len(calls)
        return calls

    def run_calls(self, calls: list[ToolCall], more: Iterable[Any]) -> "Future[list[ToolResult]]":
        """Run them side by side, inside a gap of the branch."""
        tools = self.tools | by_name(more)
        known = {call.name for call in calls if call.name in tools}
        expected = [GAPS.expected_s(name) for name in known]
        key = "+".join(sorted(known)) or None
        gap = self.gap("tool", key, max((s for s in expected if s is not None), default=None))
        early, self._early = self._early, None
        return PROGRAMS.start(run_calls(calls, tools, gap, early, copy_context()))

    def say_results(self, results: list[ToolResult]) -> None:
        """Each as a message of role tool, in the order of the calls."""
        for result in results:
            if result.error is None:
                GAPS.record(result.call.name, result.elapsed_s)
            self.say(ir.Role("tool", result.text, (("name", result.call.name), ("tool_call_id", result.call.id))), None)

    def cancel_early(self) -> None:
        """On the loop: stop tools that were started early and that nobody asked for."""
        if self._early is not None:
            self._early.cancel()

    @property
    def usage(self) -> Usage:
        """Of this branch's own turns and of all branches below it."""
        total = Usage()
        for slot in self.turns:
            for one in (slot, *slot.samples):
                total = add_usage(total, one.usage)
        for fork in self.forks:
            for child in fork.children:
                total = add_usage(total, child.usage)
        return total

    # Moving

    def fork(self, size: int) -> list["Branch"]:
        """Branches that continue from here. O(1): the log is shared, the engine copies ids at most."""
        self._check_open()
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            hint = "Where there is nothing to fork, leave the fork out." if size == 0 else "n is a whole number."
            raise BadRequest(expected="1 or more branches", got=size, at="s.fork(n)", hint=hint)
        site, frozen = caller(), self.transcript.freeze()
        children = [Branch(self.run, self.run.lane(), frozen, self) for _ in range(size)]
        self.forks.append(ForkRecord(children, len(self.turns), site))
        lanes = [child.lane for child in children]
        forked = self.lane.submit(lambda: self.lane.fork(lanes), f"fork({size})", site)
        if not self.run.tracing:
            for lane in lanes:
                lane.submit(lambda: wait_async(forked), "", site)
        else:
            self.nodes.append(ir.Verb("fork", {"size": size}))
        return children

    def mark(self) -> ProgramMark:
        self._check_open()
        self._record("mark")
        return ProgramMark(self, self.transcript.freeze(), self.lane.submit(self.lane.mark, "mark()", caller()))

    def rollback(self, mark: ProgramMark) -> None:
        self._check_open()
        if not isinstance(mark, ProgramMark):
            raise BadRequest(expected="what s.mark() gave", got=mark, at="s.rollback(mark)")
        if mark.branch is not self:
            raise BadRequest(expected="a mark of this branch", got="another branch's", at="s.rollback(mark)")
        self._record("rollback")
        self.transcript.cut(mark.chunk)
        self.lane.submit(lambda: self.lane.rollback(mark.engine), "rollback()", caller())

    def gap(self, kind: GapKind, tool: str | None, expected_s: float | None) -> "Future[None]":
        self._check_open()
        self._record("gap", kind=kind, tool=tool)
        return self.lane.submit(lambda: self.lane.gap(kind, tool, expected_s), "gap()", caller())

    def absorb(self, child: "Branch") -> None:
        """Say again what a child has said since its fork; generated parts by their tokens."""
        if child.transcript.chunk.turn != (child.transcript.base.turn if child.transcript.base is not None else None):
            raise BadRequest(
                expected="branches whose messages are complete",
                got="one with an open message",
                at='join("concate_and_append")',
            )
        for entry in child.transcript.entries(own=True):
            match entry:
                case str():
                    self._literal(entry)
                case TurnBegin():
                    self._begin(entry.role, entry.extra)
                case TurnEnd():
                    self._end(entry.role)
                case Slot():
                    self.transcript.append(_unnamed(entry))
                    self.lane.post(partial(self.lane.write_generated, entry))

    def gather(self, children: list["Branch"]) -> None:
        """Bind each name that a child has bound since the fork to the list of the children's values."""
        found: dict[str, list[object]] = {}
        for child in children:
            for name, slot in reversed(child.transcript.names(own=True).items()):
                found.setdefault(name, []).append(slot.value.result())
        for name, values in found.items():
            self.set(name, values)

    def _record(self, name: str, **options: object) -> None:
        if self.run.tracing:
            self.nodes.append(ir.Verb(name, {key: value for key, value in options.items() if value is not None}))


def _check_unicode(text: str) -> None:
    """Half a character, as bytes that were no UTF-8 leave it, is no text that a model could read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            expected="text that is valid Unicode",
            got=text,
            at=f"s += ..., character {error.start}",
            hint="Was it read with the wrong encoding, or errors='surrogateescape'?",
        ) from None


def _how_to_say(spoken: object) -> str:
    """What to do with something that can't be said as it is."""
    match spoken:
        case None:
            return "Did a function forget to return its expression?"
        case Awaitable():
            if isinstance(spoken, Coroutine):
                spoken.close()  # or Python warns once more that nobody awaited it
            return "Await it: s += await ...."
        case {"role": str(role), "content": _}:
            return f"A message is said as s += {role}(text), or role({role!r}, text)."
        case _:
            return "str(...) makes text of it."


async def _fill_scope(slot: Slot, entries: list[Entry]) -> None:
    text = written(entries)
    slot.tokens = (
        [token for part in slots(entries) for token in part.tokens] if len(slots(entries)) == len(entries) else []
    )
    slot.fill(text, text)


def _unnamed(slot: Slot) -> Slot:
    """The same output in another log, under no name."""
    copy = filled(None, slot.text.result())
    copy.tokens = slot.tokens
    return copy


def _then(first: "Future[None]", make: "Callable[[], Future[T]]") -> "Future[T]":
    """What `make` gives once `first` is done."""
    outcome: Future[T] = Future()

    def pass_on(done: "Future[T]") -> None:
        error = done.exception()
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(done.result())

    first.add_done_callback(lambda _: make().add_done_callback(pass_on))
    return outcome


def _done(value: T) -> "Future[T]":
    future: Future[T] = Future()
    future.set_result(value)
    return future


def _failed(error: BaseException) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
