"""Ten thousand random events of programs over a pool that is too small and a disk that is torn: no page is lost, after
any of them, and every turn writes what it would have written alone.

The scripted memory remembers which token lies in which slot, so KV that came back wrong is a wrong token or an error.
"""

import random
from typing import Any

import pytest
from tests.runtime.scheduler.driver import TABLE, undisturbed

from ramet.radix.check import check as check_tree
from ramet.radix.tree import RadixTree
from ramet.runtime.config import AdmissionConfig
from ramet.runtime.detokenizer import StreamDecoder
from ramet.runtime.engine import Engine
from ramet.runtime.kv.allocator import PageAllocator
from ramet.runtime.kv.tier import DiskTier, TierCosts
from ramet.runtime.scheduler.cache import PrefixCache
from ramet.runtime.scheduler.program_scheduling import program_scheduling
from ramet.runtime.scheduler.scheduler import Scheduler
from ramet.runtime.scheduler.sequence import Request
from ramet.runtime.scheduler.token_row import TokenRow
from ramet.runtime.types import (
    BranchHandle,
    Delta,
    Failed,
    Finished,
    GenerateSpec,
    Moved,
    PageMove,
    ProgramSpec,
    Sampling,
)
from ramet.scripted.executor import ScriptedExecutor
from ramet.testing import ByteTokenizer, ManualClock, ScriptedModel

TEXTS = ["a shared head of some length, ", "another head ", "a shared tail "]
END = ByteTokenizer.end_ids[0]
POOL_TOKENS, PAGE_SIZE, CONTEXT = 160, 4, 150


class TornDisk:
    """A mover over the scripted memory: late, out of order, and now and then unable to read or write."""

    def __init__(self, executor: ScriptedExecutor, chooser: random.Random) -> None:
        self._memory = executor._tokens, executor._positions
        self._random = chooser
        self.pages: dict[bytes, Any] = {}
        self._line: list[tuple[PageMove, Any]] = []
        self.num_read = 0

    def move(self, moves: Any) -> None:
        for move in moves:
            content = [each[move.page].copy() for each in self._memory] if move.direction == "to_disk" else None
            self._line.append((move, content))

    def moved(self, wait_s: float = 0.0) -> list[Moved]:
        found = []
        while self._line and (wait_s or self._random.random() < 0.5):
            move, content = self._line.pop(self._random.randrange(len(self._line)))
            found.append(Moved(move.slot, self._carry(move, content), 1e-4))
        return found

    def _carry(self, move: PageMove, content: Any) -> bool:
        if content is not None:
            if (is_written := self._random.random() < 0.9) is True:
                self.pages[move.key] = content
            return is_written
        stored = self.pages.get(move.key)
        if stored is None or self._random.random() < 0.1:
            self.pages.pop(move.key, None)
            return False
        for memory, part in zip(self._memory, stored, strict=True):
            memory[move.page] = part
        self.num_read += 1
        return True

    def close(self) -> None: ...


class World:
    """Programs and their branches, on an engine turned by hand."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.model, self.clock = ScriptedModel.seeded(), ManualClock()
        tree = RadixTree(PAGE_SIZE, clock=self.clock.now)
        admission = AdmissionConfig(max_step_tokens=self.random.choice([16, 64]), max_running=8)
        programs = program_scheduling(
            self.random.choice(["gittins", "las"]),
            tree=tree, pool_tokens=POOL_TOKENS, admission=admission, clock=self.clock,
        )  # fmt: skip
        allocator = PageAllocator(POOL_TOKENS // PAGE_SIZE)
        executor = ScriptedExecutor(self.model, allocator.pool_pages, PAGE_SIZE, end_token_ids=(END,))
        self.disk = TornDisk(executor, self.random)
        self.tier = DiskTier(self.disk.pages, "m", PAGE_SIZE, 1, TierCosts())
        cache = PrefixCache(allocator, PAGE_SIZE, tree, programs.eviction, self.tier)
        scheduler = Scheduler(cache, programs.order, programs.admission, self.clock)
        self.engine = Engine(scheduler, executor, programs.feed, self.disk)
        self.branches: list[dict[str, Any]] = []
        self.expected: dict[int, tuple[list[int], GenerateSpec]] = {}
        self.events: dict[int, list[Any]] = {}
        self.aborted: set[int] = set()
        self.num_programs = self.num_requests = 0

    def act(self) -> None:
        kinds = ["open", "turn", "turn", "turn", "fork", "gap", "rollback", "cancel", "close", "idle", "flush"]
        action = self.random.choice([*kinds, *["step"] * 10])
        getattr(self, action)()
        self.check()

    def check(self) -> None:
        scheduler = self.engine.scheduler
        scheduler.check()
        check_tree(scheduler.cache.tree)
        balance = scheduler.cache.balance()
        assert balance.free + balance.evictable + balance.leased == balance.total

    def open(self) -> None:
        if len(self.branches) < 10:
            head = self.random.choice(TEXTS)[: self.random.randint(4, 40)]
            self.num_programs += 1
            self.branches.append(self.branch(f"p{self.num_programs}", 0, TokenRow(head.encode())))

    def branch(self, program: str, number: int, tokens: TokenRow) -> dict[str, Any]:
        return {"program": program, "id": number, "tokens": tokens, "running": None, "cursor": None, "known": 0}

    def pick(self) -> dict[str, Any] | None:
        idle = [branch for branch in self.branches if branch["running"] is None]
        return self.random.choice(idle) if idle else None

    def turn(self) -> None:
        branch = self.pick()
        if branch is None or len(branch["tokens"]) > 110:
            return
        branch["tokens"].extend(self.random.choice(TEXTS)[: self.random.randint(0, 14)].encode())
        sampling = self.random.choice(
            [Sampling(temperature=0), Sampling(temperature=0.8, seed=self.random.randint(0, 9))]
        )
        spec = GenerateSpec(max_tokens=self.random.choice([1, 5, 17]), sampling=sampling, ignore_eos=True)
        self.num_requests += 1
        branch["running"] = self.num_requests
        self.expected[self.num_requests] = (list(branch["tokens"]), spec)
        self.engine.submit(
            Request(
                request_id=self.num_requests, tokens=branch["tokens"], spec=spec,
                program=ProgramSpec(program_id=branch["program"]), branch_id=branch["id"], cursor=branch["cursor"],
                num_known=branch["known"], decoder=StreamDecoder(TABLE), end_token_ids=frozenset({END}),
                context_length=CONTEXT,
            )
        )  # fmt: skip

    def fork(self) -> None:
        branch = self.pick()
        if branch is not None and len(self.branches) < 10:
            number = 1 + max(each["id"] for each in self.branches if each["program"] == branch["program"])
            for place in range(self.random.randint(1, 3)):
                self.branches.append({**branch, "id": number + place, "tokens": branch["tokens"].fork()})

    def gap(self) -> None:
        branch = self.pick()
        if branch is not None:
            self.engine.gap(BranchHandle(branch["program"], branch["id"]), "tool", "search", None)
            self.clock.advance(self.random.random())

    def rollback(self) -> None:
        branch = self.pick()
        if branch is not None and len(branch["tokens"]) > 1:
            length = self.random.randint(1, len(branch["tokens"]))
            branch["tokens"].truncate(length)
            branch["known"] = min(branch["known"], length)
            if branch["cursor"] is not None and branch["cursor"].num_tokens > length:
                branch["cursor"] = None

    def cancel(self) -> None:
        busy = [branch for branch in self.branches if branch["running"] is not None]
        if busy and self.random.random() < 0.4:
            branch = self.random.choice(busy)
            self.aborted.add(branch["running"])
            self.engine.scheduler.abort(branch["running"])
            self.collect()
            if branch["cursor"] is not None:
                self.engine.scheduler.cache.prune(branch["cursor"], self.random.choice([0, 8]))
            self.leave(branch)

    def close(self) -> None:
        branch = self.pick()
        if branch is not None and self.random.random() < 0.3:
            self.leave(branch)

    def leave(self, branch: dict[str, Any]) -> None:
        self.branches.remove(branch)
        if all(each["program"] != branch["program"] for each in self.branches):
            self.engine.closed(branch["program"])

    def idle(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            self.engine.write_behind()

    def flush(self) -> None:
        if self.random.random() < 0.1:
            self.engine.scheduler.cache.flush()

    def step(self) -> None:
        if self.engine.has_work:
            self.clock.advance(0.01)
            for request_id, event in self.engine.step():
                self.events.setdefault(request_id, []).append(event)
            self.collect()

    def collect(self) -> None:
        running = {branch["running"]: branch for branch in self.branches if branch["running"] is not None}
        for ended in self.engine.take_ended():
            if (branch := running.get(ended.seq.id)) is not None:
                branch.update(running=None, cursor=ended.cursor, known=ended.num_computed)

    def finish(self) -> None:
        for _ in range(5000):
            if not self.engine.has_work:
                return
            self.step()
            self.check()
        raise AssertionError("still at work")


@pytest.mark.parametrize("seed", range(10))
def test_pages_balance_after_every_event_and_tokens_are_those_of_undisturbed_turns(seed: int) -> None:
    world = World(seed)
    for _ in range(1000):
        world.act()
    world.finish()
    num_compared = 0
    for request_id, (prompt, spec) in world.expected.items():
        if request_id in world.aborted:
            continue
        end = world.events[request_id][-1]
        if isinstance(end, Failed):
            assert end.code == "context_length_exceeded"
            continue
        assert isinstance(end, Finished)
        output = [t for event in world.events[request_id] if isinstance(event, Delta) for t in event.tokens]
        expected = undisturbed(world.model, prompt, spec)
        assert output == expected[: CONTEXT - len(prompt)], request_id
        num_compared += 1
    assert num_compared > 50
    counts = world.tier.statistics()
    assert counts.read_pages_total > 0 and counts.missed_pages_total > 0 and counts.written_pages_total > 0
    balance = world.engine.scheduler.cache.balance()
    assert balance.leased == 0 and balance.free + balance.evictable == balance.total
    world.engine.scheduler.cache.flush()
    assert world.engine.scheduler.cache.balance().free == balance.total
