"""Limits of a tenant refuse what comes, and never touch what runs; its own cached pages go first."""

from tests.runtime.scheduler.driver import GREEDY, Driver

from ramet.radix.eviction import LeastRecentlyUsed
from ramet.radix.node import Node
from ramet.runtime.config import QuotaConfig
from ramet.runtime.scheduler.programs import ProgramTable
from ramet.runtime.scheduler.quota import LOWERED, Quotas, over_quota_first
from ramet.runtime.scheduler.retention import RetentionOrder
from ramet.runtime.types import Failed, Finished, GenerateSpec


def limited(num_pages: int = 256, **limits: int) -> tuple[Driver, Quotas]:
    driver, quotas = Driver(num_pages=num_pages), Quotas(QuotaConfig(**limits))
    scheduler = driver.scheduler
    scheduler.quotas = scheduler.cache.quotas = quotas
    scheduler.cache.order = over_quota_first(LeastRecentlyUsed(), quotas)
    return driver, quotas


def prompt(first: int, length: int = 64) -> list[int]:
    return [first, *(66 + n % 20 for n in range(length - 1))]


def test_a_turn_beyond_the_hard_limit_is_refused_and_what_runs_goes_on() -> None:
    driver, quotas = limited(tenant_kv_tokens=150)
    first, second = (driver.submit(prompt(65 + n), program=str(n), tenant="t") for n in range(2))
    driver.step()
    third = driver.submit(prompt(80), program="2", tenant="t")
    other = driver.submit(prompt(81), program="3", tenant="another")
    driver.run()
    refused = driver.last(third)
    assert isinstance(refused, Failed) and refused.status == 429 and refused.retry_after_s
    assert "128 of the 150 KV tokens" in refused.message and "--tenant-kv-tokens" in refused.message
    assert all(isinstance(driver.last(each), Finished) for each in (first, second, other))
    assert all(len(driver.output(each)) == 8 for each in (first, second, other))
    assert quotas.held_tokens("t") == 0 and driver.scheduler.statistics().quota_refused_total == 1
    again = driver.submit(prompt(80), program="2", tenant="t")
    driver.run()
    assert isinstance(driver.last(again), Finished)


def test_a_turn_that_can_never_fit_the_quota_is_told_so_and_not_to_try_again() -> None:
    driver, _ = limited(tenant_kv_tokens=40)
    request = driver.submit(prompt(65), tenant="t")
    driver.run()
    refused = driver.last(request)
    assert isinstance(refused, Failed) and refused.status == 400 and refused.retry_after_s is None
    assert "--tenant-kv-tokens" in refused.message


def test_parallel_branches_of_a_program_pay_their_common_prefix_once() -> None:
    driver, quotas = limited(tenant_kv_tokens=64 + 4 * 8)
    head = prompt(65)
    forks = [driver.submit([*head, *[70 + n] * 8], program="p", tenant="t", num_known=64) for n in range(4)]
    assert quotas.held_tokens("t") == 64 + 4 * 8
    driver.run()
    assert all(isinstance(driver.last(fork), Finished) for fork in forks)


def test_programs_and_lines_have_limits_of_their_own() -> None:
    driver, _ = limited(program_kv_tokens=100, tenant_waiting=3)
    first = driver.submit(prompt(65), program="p", tenant="t")
    second = driver.submit(prompt(66), program="p", tenant="t")
    rest = [driver.submit(prompt(67 + n), program=f"q{n}", tenant="t") for n in range(3)]
    driver.run()
    assert isinstance(driver.last(first), Finished)
    assert "--program-kv-tokens" in driver.last(second).message
    assert [isinstance(driver.last(each), Finished) for each in rest] == [True, True, False]
    assert "--tenant-waiting" in driver.last(rest[-1]).message


def test_cached_pages_of_a_tenant_over_its_soft_mark_go_before_older_ones_of_others() -> None:
    driver, quotas = limited(num_pages=32, tenant_kv_tokens=200)
    spec = GenerateSpec(max_tokens=1, sampling=GREEDY, ignore_eos=True)
    driver.submit(prompt(65, 129), spec, program="old", tenant="modest")
    driver.run()
    for number in range(2):
        driver.submit(prompt(70 + number, 129), spec, program=f"greedy{number}", tenant="greedy")
        driver.run()
    assert quotas.cached_tokens("greedy") == 256 and quotas.cached_tokens("modest") == 128
    driver.submit(prompt(90, 200), spec, program="new", tenant="third")
    driver.run()
    assert quotas.cached_tokens("modest") == 128, "the oldest pages went, not those of who has too much"
    assert quotas.cached_tokens("greedy") < 256


def test_a_price_over_the_soft_mark_is_lowered_and_ages_as_before() -> None:
    quotas = Quotas(QuotaConfig(tenant_kv_tokens=100))
    inner = RetentionOrder(ProgramTable(1000), lambda start, end: 1e-3 * (end - start))
    order = over_quota_first(inner, quotas)
    node = Node(None, *_empty(), 0, 0, "", owner="p")
    quotas._tenant_of["p"] = "t"
    before = order.rank(node, 5.0)
    quotas.cached("p", 90)
    assert order.rank(node, 5.0) == LOWERED * before > 0 and order.name == inner.name
    assert order.good_for_s(node, 100.0) == 1.0


def _empty():
    import numpy as np

    return np.arange(16, dtype=np.int32), np.arange(1, dtype=np.int32)
