"""Branches of one fork: let in together as far as they fit, read together, ended together; cancelled to the page."""

import random

import pytest
from tests.runtime.scheduler.driver import GREEDY, Driver, undisturbed

from ramet.radix.eviction import LeastRecentlyUsed
from ramet.runtime.config import QuotaConfig
from ramet.runtime.scheduler.gang import Gangs
from ramet.runtime.scheduler.quota import Quotas, over_quota_first
from ramet.runtime.types import GenerateSpec, Paused, Started

PAGE = 4
HEAD = [65 + n % 20 for n in range(40)]


def spec(num_tokens: int) -> GenerateSpec:
    return GenerateSpec(max_tokens=num_tokens, sampling=GREEDY, ignore_eos=True)


def fork(driver: Driver, n: int, num_tokens: int, program: str = "p") -> list[int]:
    """`n` branches over HEAD, which was computed before, with a few tokens of their own."""
    return [
        driver.submit([*HEAD, 70 + each, *[66] * 3], spec(num_tokens), program=program, num_known=len(HEAD))
        for each in range(n)
    ]


def over_head(num_pages: int, **settings: object) -> Driver:
    driver = Driver(num_pages=num_pages, page_size=PAGE, high_water=9.0, **settings)
    driver.submit(HEAD, spec(1), program="parent")
    driver.run()
    return driver


def num_started(driver: Driver, branches: list[int]) -> int:
    return sum(any(isinstance(event, Started) for event in driver.events[branch]) for branch in branches)


def test_as_many_branches_start_as_fit_with_all_that_they_will_add_and_none_steps_back() -> None:
    """The head has 10 pages; each branch wants 1 + 5 of its own: of 32 pages q = (32 - 10) // 6 = 3."""
    driver = over_head(32)
    branches = fork(driver, 5, 20)
    driver.step()
    assert num_started(driver, branches) == 3
    driver.run()
    assert driver.scheduler.counters.preemptions == 0
    assert not any(isinstance(event, Paused) for branch in branches for event in driver.events[branch])
    for place, branch in enumerate(branches):
        assert driver.output(branch) == undisturbed(driver.model, [*HEAD, 70 + place, *[66] * 3], spec(20))


def test_programs_behind_go_on_beside_a_gang_that_waits_for_its_own() -> None:
    driver = over_head(32)
    branches = fork(driver, 5, 20)
    other = driver.submit([90, 91], spec(2), program="other")
    driver.step()
    assert num_started(driver, branches) == 3 and num_started(driver, [other]) == 1


def test_siblings_share_their_steps_and_the_prefix_is_read_once() -> None:
    driver = over_head(200)
    branches = fork(driver, 8, 12)
    driver.run()
    plans = [plan for plan in driver.recorder.plans if {row.sequence_id for row in plan.rows} >= set(branches)]
    assert len(plans) >= 11, "each step has all of them"
    assert all([(len(group.rows), group.num_shared_tokens) for group in plan.groups] == [(8, 40)] for plan in plans)
    assert sum(plan.copies != [] for plan in driver.recorder.plans) == 0


def test_the_last_branches_of_a_join_go_before_everybody_else() -> None:
    """Two rows. The fork's third branch waits behind a stream of others, until its siblings are done: then it is the
    only thing that the join waits for."""
    driver = over_head(500, max_running=2)
    urgent = [driver.submit([80 + n] * 9, spec(30), program=f"u{n}", priority=1) for n in range(2)]
    driver.step()
    branches = fork(driver, 3, 10)
    later = [driver.submit([90 + n] * 9, spec(30), program=f"l{n}", priority=1) for n in range(4)]
    driver.run()
    ended = list(driver.ended)
    assert ended[1:3] == urgent, "who runs is not stopped"
    assert ended.index(branches[0]) > ended.index(later[-1]), "before anything is known it has its place in line"
    assert ended[-3:] == branches


def test_a_straggler_passes_programs_of_higher_priority() -> None:
    driver = over_head(500, max_running=3)
    branches = fork(driver, 4, 10)
    driver.step()
    others = [driver.submit([90 + n] * 9, spec(30), program=f"o{n}", priority=5) for n in range(6)]
    driver.run()
    ended = list(driver.ended)
    assert ended[1:4] == branches[:3]
    assert ended[4] == branches[3], "one quantum is left of the join: its last branch goes first"
    assert set(ended[5:]) == set(others)


def test_a_branch_near_its_end_does_not_step_back() -> None:
    gangs = Gangs()
    driver = Driver(num_pages=100)
    for number in range(2):
        driver.submit([66 + number] * 9, spec(100), program=str(number))
    driver.step()
    first, second = driver.scheduler._running.values()
    assert not gangs.is_raised(first)
    for _ in range(70):
        driver.step()
    assert gangs.is_raised(first) and first.max_output - first.num_output <= 32 and gangs.is_raised(second)


@pytest.mark.parametrize("num_steps", range(1, 14))
def test_a_cancelled_branch_frees_its_own_pages_in_the_same_step_and_no_other(num_steps: int) -> None:
    """First one of four: the other three go, wherever in a page they are."""
    driver = over_head(200)
    cache = driver.scheduler.cache
    before = cache.balance()
    assert before.evictable == 10 and before.leased == 0
    branches = fork(driver, 4, 30)
    for _ in range(num_steps):
        driver.step()
    num_own = -(-(4 + num_steps - 1) // PAGE)  # the token that was sampled last has no KV yet
    assert cache.balance().leased == 10 + 4 * num_own
    for branch in branches[1:]:
        driver.scheduler.abort(branch)
        ended = next(each for each in driver.scheduler.take_ended() if each.seq.id == branch)
        cache.prune(ended.cursor, len(HEAD))
        driver.check()
    after = cache.balance()
    assert (after.leased, after.evictable, after.free) == (10 + num_own, 0, before.free - num_own)
    driver.run()
    assert driver.output(branches[0]) == undisturbed(driver.model, [*HEAD, 70, 66, 66, 66], spec(30))


def test_less_than_a_page_of_a_cancelled_branch_is_freed_too() -> None:
    driver = over_head(200)
    cache = driver.scheduler.cache
    num_free = cache.allocator.num_free
    branch = driver.submit([*HEAD, 70], spec(30), program="p", num_known=len(HEAD))
    driver.step()
    driver.scheduler.abort(branch)
    (ended,) = (each for each in driver.scheduler.take_ended() if each.seq.id == branch)
    cache.prune(ended.cursor, len(HEAD), ended.seq.tokens)
    assert cache.allocator.num_free == num_free and cache.num_evictable == 10


@pytest.mark.parametrize("seed", range(4))
def test_random_forks_cancels_and_limits_in_a_small_pool_lose_no_page_and_change_no_token(seed: int) -> None:
    """Every step is checked by the driver: free + evictable + leased = total, and the tree's own rules."""
    chooser = random.Random(seed)
    driver = Driver(num_pages=60, page_size=PAGE, high_water=3.0, max_running=6, max_step_tokens=48)
    quotas = Quotas(QuotaConfig(tenant_kv_tokens=400, program_kv_tokens=260, tenant_waiting=12))
    driver.scheduler.quotas = driver.scheduler.cache.quotas = quotas
    driver.scheduler.cache.order = over_quota_first(LeastRecentlyUsed(), quotas)
    live: dict[int, tuple[list[int], int, int]] = {}
    finished, num_cancelled, num_raised = 0, 0, 0
    for _ in range(400):
        if len(live) < 10 and chooser.random() < 0.2:
            name, length = str(chooser.randrange(6)), chooser.randrange(3, 60)
            head = [65 + (int(name) + n) % 20 for n in range(length)]
            for place in range(chooser.choice([1, 2, 5])):
                prompt = [*head, 70 + place, *[66] * chooser.randrange(6)]
                wanted = chooser.randrange(1, 50)
                known = length if place else 0
                request = driver.submit(prompt, spec(wanted), program=name, num_known=known, tenant=str(int(name) % 2))
                live[request] = (prompt, wanted, length)
        num_raised += sum(map(driver.scheduler._gangs.is_raised, driver.scheduler._all.values()))
        driver.step()
        if live and chooser.random() < 0.05:
            request = chooser.choice(list(live))
            driver.scheduler.abort(request)
            for ended in driver.scheduler.take_ended():
                driver.ended[ended.seq.id] = ended
                if ended.seq.id == request and ended.cursor is not None:
                    driver.scheduler.cache.prune(ended.cursor, live[request][2], ended.seq.tokens)
            driver.check()
            num_cancelled += 1
            del live[request]
        for request in [each for each in live if each in driver.ended]:
            prompt, wanted, _ = live.pop(request)
            if driver.ended[request].ending.failed is None:
                assert driver.output(request) == undisturbed(driver.model, prompt, spec(wanted))
                finished += 1
    driver.run()
    assert finished > 20 and num_cancelled > 5 and num_raised > 0
    assert quotas.held_tokens("0") == quotas.held_tokens("1") == 0 and not driver.scheduler._gangs._gangs
    cached = sum(node.num_pages for node in driver.scheduler.cache.tree.nodes()) * PAGE
    assert quotas.cached_tokens("0") + quotas.cached_tokens("1") == cached, "the books say what the tree has"
