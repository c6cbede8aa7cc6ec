"""Programs on a real engine loop: tokens do not depend on the policy, pages balance, all programs are served."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from ramet.radix.tree import RadixTree
from ramet.runtime.config import AdmissionConfig
from ramet.runtime.engine import Engine
from ramet.runtime.kv.allocator import PageAllocator
from ramet.runtime.local_client import LocalClient
from ramet.runtime.scheduler.cache import PrefixCache
from ramet.runtime.scheduler.program_feed import Measured, ProgramFeed
from ramet.runtime.scheduler.program_scheduling import ProgramOrderName, program_scheduling
from ramet.runtime.scheduler.programs import reader_name
from ramet.runtime.scheduler.scheduler import Scheduler
from ramet.runtime.scheduler.sequence import Request
from ramet.runtime.types import BranchHandle, Delta, GenerateSpec, ProgramSpec, Sampling, TextPiece
from ramet.testing import ManualClock, scripted_client

ORDERS: list[ProgramOrderName] = ["las", "atlas", "program-fcfs", "gittins"]


def client_under(order: ProgramOrderName, *, num_pages: int, page_size: int = 8) -> tuple[LocalClient, ProgramFeed]:
    """A scripted client whose engine schedules programs."""
    client = scripted_client(page_size=page_size, num_pages=num_pages)
    plain, clock = client._engine, ManualClock()
    tree = RadixTree(page_size, clock=clock.now)
    programs = program_scheduling(
        order, tree=tree, pool_tokens=num_pages * page_size, admission=AdmissionConfig(), clock=clock
    )
    cache = PrefixCache(PageAllocator(num_pages), page_size, tree, programs.eviction)
    scheduler = Scheduler(cache, programs.order, programs.admission, clock)
    engine = Engine(scheduler, plain.executor, programs.feed)
    plain.scheduler, plain.listener = engine.scheduler, engine.listener
    return client, programs.feed


async def agent(client: LocalClient, number: int, num_turns: int) -> list[str]:
    """A program of turns with tool gaps between; what it said."""
    branch = await client.open(ProgramSpec(program_id=f"agent-{number}", workload="agent"))
    said = []
    for turn in range(num_turns):
        await client.extend(branch, [TextPiece(f"turn {turn} of {number}: " + "x" * (number % 5 + 3))])
        said.append(await speak(client, branch))
        await client.gap(branch, "tool", "shell git log" if number % 2 else "grep")
        await asyncio.sleep(0)
    await client.close(branch, program=True)
    return said


async def speak(client: LocalClient, branch: BranchHandle) -> str:
    spec = GenerateSpec(max_tokens=12, ignore_eos=True, sampling=Sampling(temperature=0))
    return "".join([event.text async for event in client.generate(branch, spec) if isinstance(event, Delta)])


async def outcome(order: ProgramOrderName, num_pages: int) -> Sequence[list[str]]:
    client, feed = client_under(order, num_pages=num_pages)
    async with client:
        said = await asyncio.gather(*(agent(client, number, 4) for number in range(10)))
        await client.statistics()
        client._engine.scheduler.check()
        assert client._engine.scheduler.cache.balance().leased == 0
        for _ in range(200):
            if len(feed.table) == 0:
                break
            await asyncio.sleep(0.005)
        assert len(feed.table) == 0, "every program that was closed is gone"
    return said


@pytest.mark.parametrize("order", ORDERS)
async def test_a_small_pool_and_any_order_give_the_tokens_of_a_large_pool(order: ProgramOrderName) -> None:
    assert await outcome(order, num_pages=40) == await outcome(order, num_pages=2000)


async def test_cancelled_programs_leave_nothing() -> None:
    choose = random.Random(1)
    client, feed = client_under("gittins", num_pages=60)
    async with client:
        tasks = [asyncio.ensure_future(agent(client, number, 6)) for number in range(8)]
        await asyncio.sleep(0.02)
        for task in choose.sample(tasks, 4):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client._engine.scheduler.check()
        assert client._engine.scheduler.cache.balance().leased == 0
    assert len(feed.table) <= 4, "a program that was cancelled without being closed waits to be forgotten"


async def test_a_fork_does_not_cost_a_program_its_place() -> None:
    client, feed = client_under("gittins", num_pages=200)
    async with client:
        branch = await client.open(ProgramSpec(program_id="p"))
        await client.extend(branch, [TextPiece("a prompt of several pages, which the children share " * 4)])
        await speak(client, branch)
        (child,) = await client.fork(branch, 1)
        places: list[bool] = []
        submitted = feed.submitted

        def noted(request: Request) -> None:
            submitted(request)
            places.append(feed.table["p"].is_admitted)

        feed.submitted = noted  # type: ignore[method-assign]
        await client.extend(child, [TextPiece("more")])
        await speak(client, child)
    assert places == [True]


async def test_a_closed_branch_is_nobodys_reader() -> None:
    client, _ = client_under("gittins", num_pages=200)
    async with client:
        branch = await client.open(ProgramSpec(program_id="p"))
        await client.extend(branch, [TextPiece("a prompt of several pages, which the children share " * 4)])
        await speak(client, branch)
        (child,) = await client.fork(branch, 1)
        await client.extend(child, [TextPiece("a tail of its own, of some pages " * 4)])
        await speak(client, child)
        tree = client._engine.scheduler.cache.tree
        assert tree is not None and tree.reader_depth(reader_name("p", child.branch_id)) > 0
        await client.close(child)
        await client.statistics()
        assert tree.reader_depth(reader_name("p", child.branch_id)) == 0
        assert tree.reader_depth(reader_name("p", branch.branch_id)) > 0


def test_what_a_lower_tier_has_costs_what_reading_it_was_measured_to_cost() -> None:
    read_s: list[float | None] = [None]
    measured = Measured(prefill_s_per_token=1e-3, read_s_per_token=lambda: read_s[0])
    assert measured.rebuild_s(100, 300) == pytest.approx(0.2)
    read_s[0] = 1e-4
    assert measured.rebuild_s(100, 300) == pytest.approx(0.02)
    read_s[0] = 1e-2
    assert measured.rebuild_s(100, 300) == pytest.approx(0.2), "a slow disk is not read"


async def test_what_lies_idle_in_gaps_is_on_the_account_of_its_tenant() -> None:
    """Two tenants wait equally long; a page that both read is on nobody's account."""
    client, feed = client_under("gittins", num_pages=400)
    clock = client._engine.scheduler.clock
    assert isinstance(clock, ManualClock)
    async with client:
        branches = []
        for tenant, words in (("a", 40), ("b", 10)):
            branch = await client.open(ProgramSpec(program_id=tenant, tenant=tenant))
            await client.extend(branch, [TextPiece(f"{tenant} says " + "word " * words)])
            await speak(client, branch)
            branches.append(branch)
        unshared = {tenant: feed.table[tenant].unshared_tokens for tenant in "ab"}
        clock.advance(10.0)
        feed._tree.price = 0.5
        for branch in branches:
            await client.extend(branch, [TextPiece(" and more")])
            await speak(client, branch)
        idle = {tenant: feed.table.accounts[tenant].idle_token_s for tenant in "ab"}
        assert idle == pytest.approx({tenant: 10.0 * unshared[tenant] for tenant in "ab"}) and idle["a"] > 2 * idle["b"]
        statistics = await client.statistics()
        assert statistics.idle_token_seconds_total == pytest.approx(sum(idle.values()))
        assert statistics.idle_cost_seconds_total == pytest.approx(0.5 * sum(idle.values()))
