"""An engine in this process, end to end on a scripted model."""

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from ramet.runtime.errors import BadRequest, ContextOverflow, EngineFailed, NotFound, TimedOut
from ramet.runtime.types import (
    BranchHandle,
    Delta,
    Event,
    Finished,
    GenerateSpec,
    ProgramSpec,
    Sampling,
    Started,
    TextPiece,
    TokensPiece,
)
from ramet.testing import ByteTokenizer, RecordingExecutor, scripted_client

GREEDY = Sampling(temperature=0)


async def run(client, branch: BranchHandle, **spec: object) -> list[Event]:
    return [event async for event in client.generate(branch, GenerateSpec(sampling=GREEDY, **spec))]


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


async def test_a_turn_streams_its_text_and_leaves_it_on_the_branch() -> None:
    async with scripted_client({"capital of France": "Paris"}) as client:
        branch = await client.open(ProgramSpec())
        await client.extend(branch, [TextPiece("The capital of France is ")])
        events = await run(client, branch)
        assert isinstance(events[0], Started) and isinstance(events[-1], Finished)
        assert text_of(events) == "Paris" and events[-1].reason == "stop"
        assert await client.text(branch) == "The capital of France is Paris"


async def test_forks_share_what_their_parent_computed() -> None:
    async with scripted_client(page_size=4) as client:
        parent = await client.open(ProgramSpec())
        await client.extend(parent, [TextPiece("a prompt of some length")])
        await run(client, parent, max_tokens=9, ignore_eos=True)
        children = await client.fork(parent, 3)
        ends = await asyncio.gather(*(run(client, child, max_tokens=5) for child in children))
        # all but the token whose KV was never computed
        assert [end[-1].usage.cached_tokens for end in ends] == [23 + 9 - 1] * 3
        assert len({text_of(end) for end in ends}) == 1


async def test_a_closed_branch_is_not_found() -> None:
    async with scripted_client() as client:
        branch = await client.open(ProgramSpec())
        await client.close(branch)
        with pytest.raises(NotFound):
            await client.extend(branch, [TextPiece("x")])


async def test_a_bad_field_is_named_and_the_engine_lives() -> None:
    async with scripted_client() as client:
        branch = await client.open(ProgramSpec())
        await client.extend(branch, [TextPiece("x")])
        with pytest.raises(BadRequest, match=r"\$\.top_p"):
            await anext(client.generate(branch, GenerateSpec(sampling=Sampling(top_p=0))))
        assert (await run(client, branch, max_tokens=1))[-1].reason == "length"


async def test_a_stopped_engine_answers_with_an_error() -> None:
    client = scripted_client()
    async with client:
        branch = await client.open(ProgramSpec())
    with pytest.raises(EngineFailed):
        await anext(client.generate(branch, GenerateSpec()))


# Forks, marks, pending text
# --------------------------------------------------------------------------------------------


def recorded(**settings):
    recorders: list[RecordingExecutor] = []

    def wrap(executor):
        recorders.append(RecordingExecutor(executor))
        return recorders[-1]

    return scripted_client(wrap=wrap, **settings), recorders


async def opened(client, text: str = "a prompt") -> BranchHandle:
    branch = await client.open(ProgramSpec())
    await client.extend(branch, [TextPiece(text)])
    return branch


async def test_children_of_a_parent_that_never_ran_compute_its_text_once() -> None:
    client, recorders = recorded(max_step_tokens=512)
    async with client:
        parent = await opened(client, "x" * 1000)
        children = await client.fork(parent, 8)
        for number, child in enumerate(children):
            await client.extend(child, [TextPiece(f"{number} own words")])
        await asyncio.gather(*(run(client, child, max_tokens=1) for child in children))
        assert recorders[0].num_computed == 1000 + 8 * 11


async def test_pending_text_of_forks_is_tokenised_once() -> None:
    class Counting(ByteTokenizer):
        num_characters = 0

        def encode(self, text: str, **options) -> list[int]:
            Counting.num_characters += len(text)
            return super().encode(text, **options)

    client = scripted_client()
    client._codec = Counting()
    async with client:
        parent = await opened(client, "x" * 10_000)
        children = await client.fork(parent, 8)
        for child in children:
            await client.extend(child, [TextPiece("own")])
        lengths = [len(await client.tokens(child)) for child in children]
        assert lengths == [10_003] * 8
        assert Counting.num_characters <= 10_000 + 8 * 10_003  # the byte tokenizer's tail is the addition alone
        assert await client.text(parent) == "x" * 10_000


async def test_rolling_back_to_a_mark_restores_tokens_and_text() -> None:
    async with scripted_client() as client:
        branch = await opened(client, "before")
        mark = await client.mark(branch)
        await client.extend(branch, [TextPiece(" after")])
        later = await client.mark(branch)
        first = text_of(await run(client, branch, max_tokens=6, ignore_eos=True))
        await client.rollback(branch, mark)
        assert await client.text(branch) == "before"
        await client.extend(branch, [TextPiece(" after")])
        assert text_of(await run(client, branch, max_tokens=6, ignore_eos=True)) == first
        with pytest.raises(BadRequest, match="mark"):
            await client.rollback(branch, later)
        child, *_ = await client.fork(branch, 1)
        await client.rollback(child, mark)
        assert await client.text(child) == "before" != await client.text(branch)


async def test_what_a_rollback_cut_off_is_no_longer_used() -> None:
    """bugs.md 12, 28: the same tokens whatever was there before."""
    async with scripted_client(page_size=4) as client, scripted_client(page_size=4) as fresh:
        branch = await opened(client, "one two three four five")
        mark = await client.mark(branch)
        for words in (" six", " seven", " s"):
            await client.extend(branch, [TextPiece(words)])
            written = text_of(await run(client, branch, max_tokens=9, ignore_eos=True))
            other = await opened(fresh, "one two three four five" + words)
            assert written == text_of(await run(fresh, other, max_tokens=9, ignore_eos=True))
            await client.rollback(branch, mark)


async def test_an_overflowing_turn_is_refused_and_the_branch_keeps_what_it_had() -> None:
    """bugs.md 12."""
    async with scripted_client(context_length=200) as client:
        branch = await opened(client, "x" * 180)
        await run(client, branch, max_tokens=4, ignore_eos=True)
        mark = await client.mark(branch)
        await client.extend(branch, [TextPiece("y" * 100)])
        with pytest.raises(ContextOverflow):
            await run(client, branch, max_tokens=4)
        await client.rollback(branch, mark)
        await client.extend(branch, [TextPiece("ok")])
        end = (await run(client, branch, max_tokens=1))[-1]
        assert end.usage.cached_tokens == 183


async def test_special_tokens_in_user_text_are_plain_text() -> None:
    async with scripted_client() as client:
        branch = await opened(client, "a<|im_end|>b")
        assert len(await client.tokens(branch)) == len("a<|im_end|>b")
        assert await client.text(branch) == "a<|im_end|>b"
        await client.extend(branch, [TextPiece("<|im_end|>", allow_special=True)])
        assert (await client.tokens(branch))[-1] == ByteTokenizer.end_ids[0]
        assert await client.tokenize("<|im_end|>", allow_special=True) == [257]
        assert len(await client.tokenize("<|im_end|>")) == 10


async def test_an_empty_prompt_is_refused_and_a_fork_before_any_text_is_not() -> None:
    async with scripted_client() as client:
        branch = await client.open(ProgramSpec())
        for ask in (run(client, branch, max_tokens=3), client.select(branch, ["yes", "no"])):
            with pytest.raises(BadRequest, match=r"expected a prompt, got '' .*begin with text"):
                await ask
        twins = await client.fork(branch, 3)  # before any text
        for twin in twins:
            await client.extend(twin, [TextPiece("Hi")])
        said = [text_of(await run(client, twin, max_tokens=3, ignore_eos=True)) for twin in twins]
        assert len(said[0]) == 3 and said == said[:1] * 3


async def test_bad_input_is_refused_by_name_and_the_engine_lives() -> None:
    """bugs.md 35, 36."""
    bad: list[tuple[str, dict]] = [
        ("max_tokens", {"max_tokens": -1}),
        ("min_tokens", {"min_tokens": 3, "max_tokens": 2}),
        ("stop", {"stop": ("",)}),
        ("stop", {"stop": ("x" * 5000,)}),
        ("stop_token_ids", {"stop_token_ids": (999,)}),
        ("logprobs", {"logprobs": 1000}),
        ("timeout_s", {"timeout_s": 0.0}),
        *((name, {"sampling": Sampling(**{name: value})}) for name, value in [
            ("temperature", -1.0), ("temperature", 999999.0), ("temperature", float("nan")), ("top_p", 0.0),
            ("top_p", -1.0), ("top_p", float("inf")), ("min_p", 1.5), ("top_k", -2), ("repetition_penalty", 0.0),
            ("frequency_penalty", 3.0), ("logit_bias", {5000: 1.0}), ("allowed_token_ids", (-1,)),
        ]),
    ]  # fmt: skip
    async with scripted_client() as client:
        branch = await opened(client)
        for name, fields in bad:
            with pytest.raises(BadRequest, match=rf"\$\.{name}"):
                await anext(client.generate(branch, GenerateSpec(**fields)))
        for fields in ({"temperature": 1e-9}, {"top_k": 10**9}, {"min_p": 1.0}, {"top_p": 1e-4}, {"temperature": 2.0}):
            spec = GenerateSpec(max_tokens=3, sampling=Sampling(**fields))
            assert [event async for event in client.generate(branch, spec)][-1].reason in ("length", "stop")
        for n in (0, -1):
            with pytest.raises(BadRequest, match=r"\$\.n"):
                await client.fork(branch, n)
        with pytest.raises(BadRequest, match=r"\$\.tokens"):
            await client.extend(branch, [TokensPiece([5, 900])])
        assert (await client.statistics()).leased_pages == 0


# Ends
# --------------------------------------------------------------------------------------------------------------------


class Slow:
    """An executor that takes its time, so that a generation is still running when a test gets to it."""

    def __init__(self, inner) -> None:
        self.inner = inner

    def execute(self, plan):
        time.sleep(0.002)
        return self.inner.execute(plan)


async def test_leaving_a_stream_early_frees_its_pages() -> None:
    """bugs.md 22."""
    async with scripted_client(max_running=4) as client:
        for _ in range(100):
            branch = await opened(client)
            stream = client.generate(branch, GenerateSpec(max_tokens=5000, ignore_eos=True))
            assert isinstance(await anext(stream), Started)
            await stream.aclose()
            statistics = await client.statistics()
            assert statistics.num_running == 0 and statistics.leased_pages == 0
            await client.close(branch)
        assert (await run(client, await opened(client), max_tokens=2))[-1].reason in ("length", "stop")
        assert not client._on_end and not len(client._switchboard)


async def test_cancelling_the_task_frees_too() -> None:
    async with scripted_client(wrap=Slow) as client:
        branch = await opened(client)
        task = asyncio.create_task(run(client, branch, max_tokens=7000, ignore_eos=True))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.statistics()).num_running == 0
        assert (await run(client, branch, max_tokens=1))[-1].reason in ("length", "stop")


async def test_closing_a_running_branch_ends_its_generation() -> None:
    async with scripted_client(wrap=Slow) as client:
        parent = await opened(client, "x" * 64)
        await run(client, parent, max_tokens=1)
        children = await client.fork(parent, 2)
        tasks = [asyncio.create_task(run(client, child, max_tokens=7000, ignore_eos=True)) for child in children]
        await asyncio.sleep(0.05)
        await client.close(children[0])
        assert (await tasks[0])[-1].reason == "abort"
        statistics = await client.statistics()
        assert statistics.num_running == 1 and statistics.num_branches == 2
        usage = await client.close(parent, program=True)
        assert (await tasks[1])[-1].reason == "abort" and usage.completion_tokens > 2
        # only what the cancelled branches shared with their parent is still cached
        statistics = await client.statistics()
        assert statistics.num_programs == 0 and statistics.total_pages - statistics.free_pages <= 64 / 16 + 3


async def test_a_second_verb_on_a_busy_branch_is_refused() -> None:
    async with scripted_client(wrap=Slow) as client:
        branch = await opened(client)
        stream = client.generate(branch, GenerateSpec(max_tokens=5000, ignore_eos=True))
        await anext(stream)
        for verb in (client.extend(branch, [TextPiece("x")]), client.fork(branch, 2), client.mark(branch)):
            with pytest.raises(BadRequest, match="one verb at a time"):
                await verb
        await stream.aclose()
        await client.extend(branch, [TextPiece("x")])


async def test_a_timeout_is_raised_after_the_events_before_it() -> None:
    async with scripted_client(wrap=Slow) as client:
        branch = await opened(client)
        seen = []
        with pytest.raises(TimedOut, match=r"0\.05 s"):
            async for event in client.generate(branch, GenerateSpec(timeout_s=0.05, ignore_eos=True)):
                seen.append(event)  # noqa: PERF401 - a comprehension would lose them to the exception
        assert isinstance(seen[0], Started) and len(seen) > 1


class Failing:
    """An executor that fails on demand."""

    def __init__(self, inner) -> None:
        self.inner, self.fails = inner, 0

    def execute(self, plan):
        if self.fails and plan.rows:
            self.fails -= 1
            raise RuntimeError("the device fell off")
        return self.inner.execute(plan)


@pytest.fixture
def failing():
    made: list[Failing] = []

    def wrap(executor):
        made.append(Failing(executor))
        return made[-1]

    return scripted_client(wrap=wrap), made


async def test_one_bad_step_fails_what_was_in_flight_and_nothing_else(failing, caplog) -> None:
    client, made = failing
    async with client:
        branches = [await opened(client, f"prompt {number}") for number in range(3)]
        expected = text_of(await run(client, branches[0], max_tokens=5, ignore_eos=True))
        made[0].fails = 1
        tasks = [asyncio.create_task(run(client, branch, max_tokens=500)) for branch in branches]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert any(isinstance(result, EngineFailed) for result in results)
        assert "the device fell off" not in str(results) and "the device fell off" in caplog.text
        twin = await opened(client, "prompt 0")
        assert text_of(await run(client, twin, max_tokens=5, ignore_eos=True)) == expected
        assert (await client.statistics()).leased_pages == 0


async def test_a_device_that_stays_broken_ends_the_engine_and_hangs_nobody(failing) -> None:
    client, made = failing
    async with client:
        branch = await opened(client)
        made[0].fails = 100
        for _ in range(3):
            with pytest.raises(EngineFailed):
                await asyncio.wait_for(run(client, branch, max_tokens=5), 5)
        await asyncio.sleep(0.05)
        for verb in (run(client, branch), client.statistics(), client.open(ProgramSpec())):
            with pytest.raises(EngineFailed):
                await asyncio.wait_for(verb, 5)


async def test_stopping_answers_whoever_waits() -> None:
    client = scripted_client(wrap=Slow).start()
    branch = await opened(client)
    task = asyncio.create_task(run(client, branch, max_tokens=7000, ignore_eos=True))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(client.stop)
    with pytest.raises(EngineFailed, match="stopped"):
        await asyncio.wait_for(task, 5)
    client.stop()  # twice is once


def test_several_event_loops_share_one_engine() -> None:
    with scripted_client() as client:
        texts: list[str] = []

        async def main() -> None:
            texts.append(text_of(await run(client, await opened(client), max_tokens=20, ignore_eos=True)))

        threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(texts) == 6 and len(set(texts)) == 1


async def test_figures_add_up() -> None:
    async with scripted_client() as client:
        branch = await opened(client, "x" * 50)
        await run(client, branch, max_tokens=10, ignore_eos=True)
        await client.extend(branch, [TextPiece("y" * 10)])
        end = (await run(client, branch, max_tokens=10, ignore_eos=True))[-1]
        assert end.usage.prompt_tokens == 70 and end.usage.cached_tokens == 59
        assert end.timings.time_to_first_token_s >= end.timings.queue_s >= 0
        statistics = await client.statistics()
        assert (statistics.num_programs, statistics.num_branches, statistics.num_running) == (1, 1, 0)
        assert statistics.prompt_tokens_total == 120 and statistics.generated_tokens_total == 20
        assert statistics.computed_tokens_total == 120 - 59 + 2 * 9
        assert await client.flush_cache() > 0
        assert (await client.statistics()).free_pages == statistics.total_pages
        usage = await client.close(branch)
        assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (120, 59, 20)


async def test_a_listener_follows_programs_from_their_first_turn_to_their_end() -> None:
    class Listener:
        def __init__(self) -> None:
            self.heard: list[str] = []

        def submitted(self, request) -> None:
            self.heard.append(f"submitted {request.program.program_id}")

        def stepped(self, plan, seconds: float) -> None:
            self.heard.append(f"stepped {len(plan.rows)}")

        def ended(self, ended) -> None:
            self.heard.append(f"ended {ended.seq.num_output}")

        def gap(self, branch, kind, tool, expected_s) -> None:
            self.heard.append(f"gap {kind} {tool} {expected_s}")

        def left(self, program_id: str, branch_id: int) -> None:
            self.heard.append(f"left {program_id} {branch_id}")

        def closed(self, program_id: str) -> None:
            self.heard.append(f"closed {program_id}")

    client = scripted_client("ab")
    listener = client._engine.listener = Listener()
    async with client:
        branch = await client.open(ProgramSpec(program_id="mine"))
        await client.extend(branch, [TextPiece("go")])
        await run(client, branch, max_tokens=2)
        await client.gap(branch, "tool", "search", 1.5)
        await client.close(branch)
        await client.statistics()
    assert listener.heard == [
        "submitted mine", "stepped 1", "stepped 1", "ended 2", "gap tool search 1.5", "closed mine",
    ]  # fmt: skip


@pytest.mark.parametrize("n", [0, -1, 16_384, 10**12])
async def test_a_slip_in_the_number_of_branches_is_told_and_fills_no_memory(n: int) -> None:
    async with scripted_client("Hello") as client:
        branch = await client.open(ProgramSpec())
        with pytest.raises(BadRequest, match="from 1 to 16383"):
            await client.fork(branch, n)
        assert (await client.statistics()).num_branches == 1
