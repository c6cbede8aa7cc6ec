"""What a step holds, who goes first, what is shared, and what happens when there is too little of something."""

import math

import pytest
from tests.runtime.scheduler.driver import GREEDY, Driver, undisturbed

from ramet.radix.key import as_tokens
from ramet.runtime.scheduler.cache import PrefixCache
from ramet.runtime.scheduler.pace import StepPace
from ramet.runtime.scheduler.token_row import TokenRow
from ramet.runtime.types import Failed, Finished, GenerateSpec, Paused, Queued, Resumed, Sampling, Started
from ramet.scripted.sampling import log_softmax
from ramet.testing import ByteTokenizer, Prefix, ScriptedModel


def spec(max_tokens: int = 8, **fields: object) -> GenerateSpec:
    return GenerateSpec(max_tokens=max_tokens, sampling=GREEDY, ignore_eos=True, **fields)


def text(length: int, salt: str = "") -> bytes:
    return (salt + "the quick brown fox jumps over the lazy dog " * (length // 44 + 1)).encode()[:length]


# A step
# ----------------------------------------------------------------------------------------------------------------


def test_decode_rows_come_first_and_a_long_prompt_is_computed_in_chunks() -> None:
    driver = Driver(max_step_tokens=32)
    driver.submit(text(10), spec(40))
    driver.step()
    driver.submit(text(100, "long"), spec(4))
    driver.run()
    mixed = [plan for plan in driver.recorder.plans if len(plan.rows) == 2]
    assert [len(row.tokens) for row in mixed[0].rows] == [1, 31]
    assert all(sum(len(row.tokens) for row in plan.rows) <= 32 for plan in driver.recorder.plans)
    assert all(plan.rows[0].sequence_id == 0 for plan in mixed[:4])


def test_short_prompts_do_not_wait_for_the_end_of_a_long_one() -> None:
    """bugs.md 24: what a short prompt waits is bounded by the share, whatever the long prompt's length."""
    driver = Driver(max_step_tokens=256, num_pages=4096, checks=False)
    long = driver.submit(text(30_000), spec(2))
    driver.step()
    short = [driver.submit(text(50, f"{n:02d}"), spec(2)) for n in range(20)]
    driver.run()
    firsts = [driver.ended[each].seq.first_token_s - driver.ended[each].seq.arrived_s for each in short]
    assert max(firsts) <= 0.01 * math.ceil(20 * 50 / 128) + 0.02
    assert driver.ended[long].seq.first_token_s > 1.0


def test_a_prompt_adds_no_more_than_its_stall_to_the_steps_of_others() -> None:
    """At a thousand tokens a second, a quarter of a second is 250 tokens."""
    driver = Driver(max_step_tokens=2048, num_pages=4096, checks=False)
    driver.scheduler.pace = StepPace(0.25)
    execute = driver.engine.executor.execute

    def timed(plan):
        num_tokens = sum(len(row.tokens) for row in plan.rows)
        return execute(plan)._replace(compute_s=0.01 + num_tokens / 1000)

    driver.engine.executor.execute = timed
    alone = driver.submit(text(4000, "alone"), spec(1))
    driver.run()
    assert len(driver.recorder.plans[0].rows[0].tokens) == 2048  # nobody decodes: nobody waits
    talker = driver.submit(text(10), spec(200))
    driver.step()
    driver.submit(text(8000, "long"), spec(1))
    driver.run()
    sizes = [len(row.tokens) for plan in driver.recorder.plans for row in plan.rows if row.sequence_id == talker + 1]
    assert 230 <= max(sizes) <= 256 and sum(sizes) == 8000
    assert driver.last(alone).reason == driver.last(talker).reason == "length"


def test_steps_are_full_while_there_is_work() -> None:
    driver = Driver(max_step_tokens=100, num_pages=4096)
    for salt in "abc":
        driver.submit(text(1000, salt), spec(1))
    for _ in range(20):
        driver.step()
        assert sum(len(row.tokens) for row in driver.recorder.plans[-1].rows) == 100


# What is cached
# --------------------------------------------------------------------------------------------------------


def test_the_second_turn_hits_everything_but_the_token_that_was_never_computed() -> None:
    """bugs.md 5."""
    driver = Driver()
    first = driver.submit(text(100), spec(50))
    driver.run()
    again = driver.submit([*text(100), *driver.output(first), *text(50, "new")], spec(1))
    driver.run()
    assert driver.last(again).usage.cached_tokens == 149
    assert driver.num_computed == 149 + 1 + 50


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33])
def test_a_fully_cached_prompt_computes_one_token_and_says_the_same(length: int) -> None:
    """bugs.md 28."""
    driver = Driver()
    cold = driver.submit(text(length))
    driver.run()
    warm = driver.submit(text(length))
    driver.run()
    assert driver.output(warm) == driver.output(cold) == undisturbed(driver.model, text(length), spec(8))
    assert driver.last(warm).usage.cached_tokens == length - 1
    assert driver.last(warm).miss is None


def test_a_match_inside_a_page_copies_its_head() -> None:
    driver = Driver()
    driver.submit(text(64), spec(1))
    driver.run()
    other = driver.submit([*text(40), *b"something else"], spec(1))
    driver.run()
    assert driver.last(other).usage.cached_tokens == 40
    assert [copy.num_tokens for plan in driver.recorder.plans for copy in plan.copies] == [8]


def test_two_requests_with_one_new_prompt_compute_it_once() -> None:
    driver = Driver(max_step_tokens=64, num_pages=4096)
    prompt = text(500)
    for number in range(8):
        driver.submit([*prompt, *f"child {number}".encode()], spec(3))
    driver.run()
    own = len(b"child 0")
    # each child's own tokens, and the two of its three outputs that were fed back
    assert driver.num_computed <= 500 + 8 * (own + 2)
    assert sum(driver.last(each).usage.cached_tokens for each in range(8)) >= 7 * 500


def test_a_waiting_twin_sleeps_until_its_leader_has_what_both_need(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    look = PrefixCache.look
    monkeypatch.setattr(PrefixCache, "look", lambda self, seq: looks.append(seq.id) or look(self, seq))
    driver = Driver(max_step_tokens=64, num_pages=4096)
    for number in range(8):
        driver.submit([*text(5000), *f"child {number}".encode()], spec(1))
    driver.run()
    assert len(driver.recorder.plans) > 70 and len(looks) <= 8 * 4
    # the tree has all that these share: nobody has anything to wait for
    looks.clear()
    for number in range(8):
        driver.submit([*text(5000), *f"other {number}".encode()], spec(1))
    driver.step()
    assert len(looks) == 8


def test_a_waiting_twin_goes_on_by_itself_when_its_leader_is_aborted() -> None:
    driver = Driver(max_step_tokens=64, num_pages=4096)
    first, second = (driver.submit(text(500), spec(3)) for _ in range(2))
    driver.step()
    driver.scheduler.abort(first)
    driver.run()
    assert driver.output(second) == undisturbed(driver.model, text(500), spec(3))


def test_namespaces_share_nothing() -> None:
    driver = Driver()
    for namespace in ("one", "two", "one"):
        driver.submit(text(64), spec(1), namespace=namespace)
        driver.run()
    assert [driver.last(each).usage.cached_tokens for each in range(3)] == [0, 0, 63]


def test_many_forks_of_one_prefix_go_idle_in_balance() -> None:
    """bugs.md 26."""
    driver = Driver(num_pages=400, page_size=8)
    for number in range(40):
        driver.submit([*text(100), *f" fork {number}".encode()], spec(number % 7))
    driver.run()
    balance = driver.scheduler.cache.balance()
    assert balance.leased == 0 and balance.free + balance.evictable == balance.total
    held = [page for node in driver.scheduler.cache.tree.nodes() for page in node.pages.tolist()]
    assert len(held) == len(set(held)) == balance.evictable - len(driver.scheduler.cache.open_pages.tails)


def test_a_cursor_spares_the_lookup_and_finds_the_same() -> None:
    driver = Driver()
    row = TokenRow(text(200))
    first = driver.submit(row, spec(20))
    driver.run()
    row.extend(b" and more")
    second = driver.submit(row, spec(5), cursor=driver.ended[first].cursor)
    driver.run()
    assert driver.last(second).usage.cached_tokens == 219


def test_without_a_cache_the_engine_is_a_plain_one() -> None:
    """bugs.md 29."""
    driver = Driver(cache=False)
    for _ in range(2):
        driver.submit(text(40))
        driver.run()
    assert [driver.last(each).usage.cached_tokens for each in range(2)] == [0, 0]
    assert driver.last(1).miss == {"cause": "cache_off", "at_token": 0, "num_tokens": 40}
    assert driver.scheduler.statistics().free_pages == driver.scheduler.statistics().total_pages


def test_rows_that_share_pages_are_grouped() -> None:
    driver = Driver(num_pages=4096)
    driver.submit(text(320), spec(1))
    driver.run()
    for number in range(6):
        driver.submit([*text(320), *f"{number}".encode()], spec(10))
    driver.submit(text(30, "other"), spec(10))
    for _ in range(4):
        driver.step()
    groups = driver.recorder.plans[-1].groups
    assert [(len(group.rows), group.num_shared_tokens) for group in groups] == [(6, 320)]


def test_nested_sharing_takes_the_split_that_saves_most() -> None:
    driver = Driver(num_pages=4096)
    for head in (text(160), text(160) + text(480, "x")):
        driver.submit(head, spec(1))
        driver.run()
    for number in range(4):
        driver.submit([*text(160), *text(480, "x"), *f"{number} four".encode()], spec(20))
    for number in range(2):
        driver.submit([*text(160), *f"{number} two".encode()], spec(20))
    for _ in range(5):
        driver.step()
    sizes = sorted((len(group.rows), group.num_shared_tokens) for group in driver.recorder.plans[-1].groups)
    assert sizes == [(4, 640)]  # 3 x 640 tokens saved; all six together would save 5 x 160


# Too little of something
# -----------------------------------------------------------------------------------------------


def test_preemption_takes_the_last_in_order_and_changes_no_token() -> None:
    driver = Driver(num_pages=12, page_size=4, high_water=3.0)
    first, second = (driver.submit(text(12, name), spec(24), program=name) for name in "ab")
    driver.run()
    assert driver.scheduler.counters.preemptions >= 1
    assert driver.ended[first].seq.num_recomputed == 0
    told = [event for event in driver.events[second] if isinstance(event, Paused | Resumed)]
    assert [type(event) for event in told[:2]] == [Paused, Resumed] and told[1].waited_s > 0
    for request, salt in ((first, "a"), (second, "b")):
        assert driver.output(request) == undisturbed(driver.model, text(12, salt), spec(24))
        assert driver.last(request).reason == "length"


def test_what_was_admitted_is_not_retracted_in_a_loop() -> None:
    driver = Driver(num_pages=64, page_size=4, checks=False)
    for number in range(30):
        driver.submit(text(20, f"{number:02d}"), spec(60))
    driver.run()
    assert driver.scheduler.counters.preemptions <= 15
    assert all(driver.last(each).reason == "length" for each in range(30))


def test_a_request_larger_than_the_context_or_the_pool_is_answered_with_an_error() -> None:
    driver = Driver(num_pages=4)
    too_long = driver.submit(text(65), spec(1))
    over_context = driver.submit(text(20), spec(1), context_length=20)
    fits = driver.submit(text(19), spec(1), context_length=20)
    driver.run()
    for request in (too_long, over_context):
        failure = driver.last(request)
        assert isinstance(failure, Failed) and (failure.status, failure.code) == (400, "context_length_exceeded")
    assert driver.last(fits).reason == "length"


@pytest.mark.parametrize("cache", [True, False])
def test_a_pool_smaller_than_prompt_and_output_ends_with_length(cache: bool) -> None:
    """bugs.md 25."""
    driver = Driver(num_pages=4, page_size=4, cache=cache)
    request = driver.submit(text(10), spec(100))
    driver.run()
    assert driver.last(request).reason == "length"
    assert driver.output(request) == undisturbed(driver.model, text(10), spec(7))  # 16 computed, one more sampled
    after = driver.submit(text(10, "z"), spec(3))
    driver.run()
    assert driver.output(after) == undisturbed(driver.model, text(10, "z"), spec(3))


@pytest.mark.parametrize(("num_pages", "page_size"), [(1, 1), (1, 16), (2, 4)])
def test_tiny_pools_work(num_pages: int, page_size: int) -> None:
    """bugs.md 29."""
    driver = Driver(num_pages=num_pages, page_size=page_size)
    requests = [driver.submit(b"x"[: num_pages * page_size], spec(2)) for _ in range(3)]
    driver.run()
    expected = undisturbed(driver.model, b"x", spec(2))
    assert all(driver.output(each) == expected[: len(driver.output(each))] for each in requests)
    assert all(isinstance(driver.last(each), Finished) for each in requests)


def test_eviction_makes_room_before_anybody_is_refused() -> None:
    """bugs.md 29."""
    driver = Driver(num_pages=8)
    for number in range(40):
        driver.submit(text(100, f"{number:02d}"), spec(4))
        driver.run()
    assert all(driver.last(each).reason == "length" for each in range(40))
    assert driver.scheduler.statistics().evicted_tokens_total > 3000


def test_an_evicted_prefix_says_who_evicted_it() -> None:
    driver = Driver(num_pages=8)
    driver.submit(text(64), spec(1), program="mine")
    driver.run()
    driver.submit(text(120, "other"), spec(1), program="thief")
    driver.run()
    again = driver.submit(text(64), spec(1), program="mine", num_known=64)
    driver.run()
    miss = driver.last(again).miss
    assert miss["cause"] == "evicted" and miss["evicted"]["owner"] == "mine"
    assert miss["evicted"]["on_behalf_of"] == "thief" and miss["evicted"]["policy"] == "lru"
    assert driver.scheduler.statistics().recomputed_tokens_total > 0


# Orders
# ----------------------------------------------------------------------------------------------------------------


def test_priority_goes_first() -> None:
    driver = Driver(max_running=1)
    low = driver.submit(text(10, "a"), spec(1))
    high = driver.submit(text(10, "b"), spec(1), priority=1)
    driver.run()
    assert driver.ended[high].seq.admitted_s < driver.ended[low].seq.admitted_s


def test_longest_prefix_goes_first_and_a_cold_request_still_gets_its_turn() -> None:
    """bugs.md 23: steady hot traffic does not starve a cold request."""
    driver = Driver(order="lpm", max_running=1, num_pages=4096, checks=False)
    driver.submit(text(256, "hot"), spec(1))
    driver.run()
    cold = driver.submit(text(64, "cold"), spec(1))
    hot = driver.submit([*text(256, "hot"), *b"first"], spec(1))
    driver.step()
    assert driver.ended[hot].seq.admitted_s is not None and cold not in driver.ended
    for number in range(400):
        driver.submit([*text(256, "hot"), *str(number).encode()], spec(1))
        driver.step()
    assert cold in driver.ended
    # 512 cached tokens weigh one second of waiting
    assert driver.ended[cold].seq.admitted_s - driver.ended[cold].seq.arrived_s <= 256 / 512 + 0.3


def test_whoever_waits_is_told_its_place() -> None:
    driver = Driver(max_running=1)
    for salt in "abc":
        driver.submit(text(10, salt), spec(2))
    driver.run()
    places = [event.position for each in range(3) for event in driver.events[each] if isinstance(event, Queued)]
    assert places == [0, 1]
    assert all(isinstance(driver.events[each][-3], Started) or len(driver.events[each]) > 3 for each in range(3))


# Endings
# ---------------------------------------------------------------------------------------------------------------


def test_every_way_to_abort_frees_the_pages_at_once() -> None:
    """bugs.md 21."""
    driver = Driver(max_step_tokens=16, max_running=2)
    decoding = driver.submit(text(8, "a"), spec(1000))
    driver.step()
    prefilling = driver.submit(text(400, "b"), spec(1000))
    driver.step()
    queued = driver.submit(text(8, "c"), spec(1000))
    driver.step()
    for request in (queued, prefilling, decoding):
        driver.scheduler.abort(request)
    balance = driver.scheduler.cache.balance()
    assert balance.leased == 0 and balance.free + balance.evictable == balance.total
    driver.run()
    assert {driver.last(each).reason for each in (decoding, prefilling, queued)} == {"abort"}
    assert sorted(driver.recorder.plans[-1].ends) == [decoding, prefilling]
    assert driver.scheduler.statistics().aborted_total == 3


def test_pruning_a_path_frees_its_open_tail_too() -> None:
    driver = Driver()
    request = driver.submit(text(40), spec(1))
    driver.run()
    cache = driver.scheduler.cache
    assert cache.balance().evictable == 3
    cache.prune(driver.ended[request].cursor, 16)
    driver.check()
    assert cache.balance().evictable == 1
    cache.prune(driver.ended[request].cursor, 0)
    assert cache.balance().free == cache.balance().total


def test_a_timeout_ends_one_and_spares_the_others() -> None:
    driver = Driver(max_running=1)
    slow = driver.submit(text(10), spec(1000, timeout_s=0.05))
    queued = driver.submit(text(10, "q"), spec(5, timeout_s=0.02))
    other = driver.submit(text(10, "o"), spec(5))
    driver.run()
    for request in (slow, queued):
        assert isinstance(driver.last(request), Failed) and driver.last(request).code == "timeout"
    assert driver.last(other).reason == "length"


def test_nothing_to_generate_still_computes_the_prompt() -> None:
    driver = Driver()
    request = driver.submit(text(40), spec(0))
    driver.run()
    assert driver.last(request).reason == "length" and driver.output(request) == []
    assert driver.num_computed == 40
    again = driver.submit(text(40), spec(1))
    driver.run()
    assert driver.last(again).usage.cached_tokens == 39


def test_a_stop_string_cuts_text_and_tokens_before_it() -> None:
    """bugs.md 30, 31."""
    model = ScriptedModel.replying("one two STOP three")
    driver = Driver(model)
    request = driver.submit(b"count", GenerateSpec(sampling=GREEDY, stop=("o ST",), max_tokens=50))
    driver.run()
    assert driver.text(request) == "one tw" and driver.last(request).stop == "o ST"
    assert bytes(driver.output(request)) == b"one tw"
    seq = driver.ended[request].seq
    assert bytes(list(seq.tokens)) == b"countone tw" and seq.leftover == ""


def test_end_tokens_stop_strings_and_lengths_are_told_apart() -> None:
    model = ScriptedModel.replying("ab")
    driver = Driver(model)
    natural = driver.submit(b"x", GenerateSpec(sampling=GREEDY))
    by_id = driver.submit(b"x", GenerateSpec(sampling=GREEDY, stop_token_ids=(ord("b"),)))
    kept = driver.submit(b"x", GenerateSpec(sampling=GREEDY, stop_token_ids=(ord("b"),), include_stop=True))
    short = driver.submit(b"x", GenerateSpec(sampling=GREEDY, max_tokens=1))
    forced = driver.submit(b"x", GenerateSpec(sampling=GREEDY, min_tokens=4, max_tokens=4))
    driver.run()
    ends = [
        (driver.last(each).reason, driver.last(each).stop, driver.text(each)) for each in (natural, by_id, kept, short)
    ]
    assert ends == [
        ("stop", ByteTokenizer.end_ids[0], "ab"),
        ("stop", ord("b"), "a"),
        ("stop", ord("b"), "ab"),
        ("length", None, "a"),
    ]
    assert len(driver.output(forced)) == 4
    assert driver.last(natural).usage.completion_tokens == 3


def test_deltas_come_in_the_size_that_was_asked_for() -> None:
    driver = Driver()
    request = driver.submit(text(10), spec(10, stream_interval=4))
    driver.run()
    sizes = [len(event.tokens) for event in driver.events[request] if hasattr(event, "tokens")]
    assert sizes == [4, 4, 2]


# Logprobs
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 1, 20, 39])
@pytest.mark.parametrize("chunk", [7, 512])
def test_prompt_logprobs_are_the_same_cold_and_warm(start: int, chunk: int) -> None:
    """bugs.md 33."""
    driver = Driver(max_step_tokens=chunk)
    prompt = text(40)
    wanted = spec(2, prompt_logprobs=2, prompt_logprobs_start=start)
    found = []
    for _ in range(3):
        request = driver.submit(prompt, wanted)
        driver.run()
        found.append(driver.last(request).prompt_logprobs)
        assert driver.output(request) == undisturbed(driver.model, prompt, spec(2))
    assert found[0] == found[1] == found[2]
    assert [each.token for each in found[0]] == list(prompt[start:])
    for place, each in enumerate(found[0], start):
        if place == 0:
            assert each.logprob is None
            continue
        logprobs = log_softmax(driver.model.logits(Prefix(as_tokens(list(prompt[:place])), 40, 0)))
        assert each.logprob == pytest.approx(logprobs[prompt[place]]) and len(each.top) == 2
    assert driver.last(2).usage.cached_tokens == max(0, min(39, start - 1))


def test_output_logprobs_come_with_their_tokens() -> None:
    driver = Driver()
    request = driver.submit(text(10), spec(6, logprobs=3, stream_interval=2))
    driver.run()
    deltas = [event for event in driver.events[request] if hasattr(event, "tokens")]
    assert all([each.token for each in delta.logprobs] == delta.tokens for delta in deltas)
    assert all(len(each.top) == 3 for delta in deltas for each in delta.logprobs)


def test_a_seeded_sequence_writes_the_same_in_any_company() -> None:
    seeded = GenerateSpec(max_tokens=12, sampling=Sampling(temperature=1.0, seed=42), ignore_eos=True)
    alone, crowd = Driver(), Driver(num_pages=30, page_size=4, high_water=3.0)
    one = alone.submit(text(20), seeded)
    alone.run()
    many = [crowd.submit(text(20, salt), spec(12)) for salt in "abcde"] + [crowd.submit(text(20), seeded)]
    crowd.run()
    assert crowd.output(many[-1]) == alone.output(one)
