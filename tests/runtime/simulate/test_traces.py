"""Readers give what SOURCES.md says the files hold."""

from pathlib import Path
from statistics import fmean

import pytest

from ramet.runtime.errors import BadRequest
from ramet.runtime.simulate.sources import live_sessions, open_sessions
from ramet.runtime.simulate.traces import (
    SubAgent,
    azure,
    lmcache_agent,
    mooncake,
    tau_bench_turns,
    weka,
    weka_upstream,
)

TRACES = Path(__file__).parents[4] / "shared" / "data" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not beside the repository")
WEKA = TRACES / "weka-claude-code"


@needs_traces
def test_mooncake_blocks() -> None:
    requests = mooncake(TRACES / "mooncake" / "conversation_trace.jsonl")
    assert len(requests) == 12_031
    assert sum(len(request.blocks) for request in requests) == 288_500
    assert len({block for request in requests for block in request.blocks}) == 182_790


@needs_traces
def test_azure_rows_begin_at_zero_and_go_forward() -> None:
    requests = azure(TRACES / "azure2023" / "AzureLLMInferenceTrace_code.csv")
    assert len(requests) == 8_819 and requests[0].arrived_s == 0.0
    assert requests[1].arrived_s == pytest.approx(0.052, abs=1e-3)


@needs_traces
def test_weka_sessions() -> None:
    sessions = weka(WEKA / "weka_compact.jsonl.gz")
    main = sum(len(session.main_rows) for session in sessions)
    assert (len(sessions), main) == (710, 48_658)
    assert sum(len(session.all_rows) for session in sessions) - main == 676
    assert sum(isinstance(item, SubAgent) for session in sessions for item in session.items) == 63


@needs_traces
@pytest.mark.parametrize("name", ["trace_0012", "trace_0016", "trace_0019", "trace_0021", "trace_0026"])
def test_the_published_form_and_the_compact_one_agree(name: str) -> None:
    ours = weka_upstream(WEKA / f"{name}.json")
    theirs = next(session for session in weka(WEKA / "weka_compact.jsonl.gz") if session.name == name)
    assert (ours.tool_tokens, ours.system_tokens) == (theirs.tool_tokens, theirs.system_tokens)
    facts = [
        [(row.parent, row.shared_blocks, row.input_tokens, row.output_tokens, row.start_s) for row in session.main_rows]
        for session in (ours, theirs)
    ]
    assert facts[0] == facts[1]


@needs_traces
def test_tau_bench_turns() -> None:
    turns = tau_bench_turns(TRACES / "tau-bench" / "gpt-4o-airline.json.gz")
    assert len(turns) == 200 and max(turns) == 30 and fmean(turns) == pytest.approx(12.27)


@needs_traces
def test_agent_calls_come_in_time_order() -> None:
    path = TRACES / "lmcache-agent" / "miniswe" / "c9a69aa29bb95747980705c2ac0012cc.jsonl"
    calls = lmcache_agent(path)
    assert [call.time_s for call in calls] == sorted(call.time_s for call in calls)
    sessions = open_sessions(path)
    assert sum(len(session.turns) for session in sessions) == len(calls)
    assert all(turn.new_tokens >= 1 and turn.output_tokens >= 1 for session in sessions for turn in session.turns)


@needs_traces
def test_a_coding_session_extends_itself() -> None:
    looping = live_sessions(WEKA / "weka_compact.jsonl.gz", seed=1)
    assert looping is not None
    for session, _ in zip(looping, range(50), strict=False):
        length = 0
        for turn in session.turns:
            assert 0 <= turn.kept_tokens <= length
            length = turn.kept_tokens + turn.new_tokens


def test_a_missing_file_is_named() -> None:
    with pytest.raises(BadRequest, match="no-such-file"):
        mooncake(Path("no-such-file.jsonl"))
    with pytest.raises(BadRequest, match="no-such-file"):
        open_sessions(Path("no-such-file.jsonl"))
