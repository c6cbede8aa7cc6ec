"""Whatever is submitted, forked, cut back and aborted, in whatever order, over however few pages: no page is lost, and
every turn writes what it would have written alone."""

import random

import msgspec
import pytest
from tests.runtime.scheduler.driver import Driver, prompt_logprobs, undisturbed

from ramet.runtime.scheduler.token_row import TokenRow
from ramet.runtime.types import Failed, Finished, GenerateSpec, Sampling

TEXTS = ["a shared head of some length, ", "another head ", "a shared tail "]


class World:
    """Branches as a client keeps them, on a driver."""

    def __init__(self, seed: int, **settings: object) -> None:
        self.random = random.Random(seed)
        self.driver = Driver(**settings)
        self.branches: list[dict] = []
        self.expected: dict[int, tuple[list[int], GenerateSpec]] = {}
        self.aborted: set[int] = set()

    def act(self) -> None:
        action = self.random.choice(
            ["open", "turn", "turn", "turn", "fork", "rollback", "abort", "step", "step", "step"]
        )
        getattr(self, action)()
        self.collect()

    def collect(self) -> None:
        for branch in self.branches:
            ended = self.driver.ended.get(branch["running"])
            if ended is not None:
                branch.update(running=None, cursor=ended.cursor, known=ended.num_computed)

    def pick(self) -> dict | None:
        idle = [branch for branch in self.branches if branch["running"] is None]
        return self.random.choice(idle) if idle else None

    def open(self) -> None:
        if len(self.branches) < 12:
            head = self.random.choice(TEXTS)[: self.random.randint(1, 40)]
            self.branches.append({"tokens": TokenRow(head.encode()), "running": None, "cursor": None, "known": 0})

    def turn(self) -> None:
        branch = self.pick()
        if branch is None or len(branch["tokens"]) > 120:
            return
        branch["tokens"].extend(self.random.choice(TEXTS)[: self.random.randint(0, 14)].encode())
        sampling = self.random.choice(
            [Sampling(temperature=0), Sampling(temperature=0.8, seed=self.random.randint(0, 9))]
        )
        spec = GenerateSpec(
            max_tokens=self.random.choice([0, 1, 2, 5, 17]), sampling=sampling, ignore_eos=self.random.random() < 0.7
        )
        if self.random.random() < 0.15:
            start = self.random.randint(0, len(branch["tokens"]))
            spec = msgspec.structs.replace(spec, prompt_logprobs=0, prompt_logprobs_start=start)
        prompt = list(branch["tokens"])
        branch["running"] = self.driver.submit(
            branch["tokens"], spec, cursor=branch["cursor"], num_known=branch["known"], program=str(id(branch))
        )
        self.expected[branch["running"]] = (prompt, spec)

    def fork(self) -> None:
        branch = self.pick()
        if branch is not None and len(self.branches) < 12:
            for _ in range(self.random.randint(1, 4)):
                self.branches.append({**branch, "tokens": branch["tokens"].fork()})

    def rollback(self) -> None:
        branch = self.pick()
        if branch is not None and len(branch["tokens"]) > 1:
            length = self.random.randint(1, len(branch["tokens"]))
            branch["tokens"].truncate(length)
            branch["known"] = min(branch["known"], length)
            if branch["cursor"] is not None and branch["cursor"].num_tokens > length:
                branch["cursor"] = None

    def abort(self) -> None:
        busy = [branch for branch in self.branches if branch["running"] is not None]
        if busy and self.random.random() < 0.5:
            branch = self.random.choice(busy)
            self.aborted.add(branch["running"])
            self.driver.scheduler.abort(branch["running"])
            self.driver.check()
            self.branches.remove(branch)

    def step(self) -> None:
        if self.driver.scheduler.has_work:
            self.driver.step()


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_and_everybody_writes_what_they_would_have_written_alone(page_size: int, seed: int) -> None:
    chooser = random.Random(seed * 31 + page_size)
    world = World(
        seed,
        page_size=page_size,
        num_pages=max(1, chooser.choice([40, 90, 160, 300, 2000]) // page_size),
        high_water=chooser.choice([0.9, 1.0, 3.0]),
        max_step_tokens=chooser.choice([3, 16, 64, 512]),
        max_running=chooser.choice([2, 5, 64]),
        order=chooser.choice(["fcfs", "lpm"]),
        cache=chooser.random() < 0.9,
        proposes=seed if chooser.random() < 0.5 else None,
    )
    for _ in range(250):
        world.act()
    world.driver.run()
    driver = world.driver
    for request_id, (prompt, spec) in world.expected.items():
        if request_id in world.aborted:
            continue
        end = driver.last(request_id)
        if isinstance(end, Failed):
            assert end.code == "context_length_exceeded"
            continue
        assert isinstance(end, Finished)
        expected = undisturbed(driver.model, prompt, spec)
        output = driver.output(request_id)
        if end.reason == "length" and len(output) < (spec.max_tokens or 0):
            expected = expected[: len(output)]  # it had the whole pool and filled it
        assert output == expected, (request_id, prompt)
        if spec.prompt_logprobs is not None:
            read = [(each.token, each.logprob) for each in end.prompt_logprobs]
            assert read == prompt_logprobs(driver.model, prompt, spec.prompt_logprobs_start)
    balance = driver.scheduler.cache.balance()
    assert balance.leased == 0 and balance.free + balance.evictable == balance.total
    driver.scheduler.cache.flush()
    assert driver.scheduler.cache.balance().free == balance.total
