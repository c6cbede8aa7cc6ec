"""S10: fork-join graphs of agents with tools on a small pool: what scheduling gains, what offloading, what both.

The components are ours: `scheduling` is order, admission and retention without a lower tier; `offload` is request FCFS
over a host tier; `both` is ours over a host tier. The published factors are of TokenCake's own parts on its machine.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from ramet.runtime.simulate.cost import named_cost
from ramet.runtime.simulate.figure import Figure, at_least, at_most
from ramet.runtime.simulate.policies import BASELINES, MachineConfig, build_runner
from ramet.runtime.simulate.synthetic import GRAPH_CALLS, agent_graphs

BLOCKS, BLOCK_TOKENS = 3_050, 16
HOST_BYTES = 100 * 2**30
NUM_GRAPHS, SEED = 24, 2
RATES = (0.05, 0.2, 0.5, 1.0)
COMPONENTS = {
    "base": ("fcfs", False),
    "scheduling": ("gittins", False),
    "offload": ("fcfs", True),
    "both": ("gittins", True),
}
"""Name -> policy, with a host tier."""


class Graphs(NamedTuple):
    """A run."""

    completion_s: float
    """Of a whole graph, mean."""
    makespan_s: float
    preemptions: float
    prefilled_tokens: float
    """Prompt tokens that were computed, those lost to evictions included."""


def measure(
    policy: str,
    per_s: float,
    *,
    has_host: bool,
    num_graphs: int = NUM_GRAPHS,
    without: frozenset[str] = frozenset(),
) -> Graphs:
    cost = named_cost("a100", "qwen2.5-14b")
    config = MachineConfig(
        cost=cost,
        pool_tokens=BLOCKS * BLOCK_TOKENS,
        page_size=BLOCK_TOKENS,
        max_running=256,
        num_drafts=3,
        host_tokens=HOST_BYTES // cost.model.kv_bytes_per_token if has_host else 0,
    )
    replay = build_runner(policy, config, without).open_loop(agent_graphs(per_s, num_graphs, SEED))
    computed = sum(turn.prompt_tokens - turn.cached_tokens for turn in replay.turns)
    return Graphs(
        fmean(each.ended_s - each.started_s for each in replay.programs().values()),
        replay.seconds,
        replay.num_preemptions,
        computed - replay.loaded_tokens,
    )


def s10(traces: Path | None = None, *, rates: Sequence[float] = RATES, num_graphs: int = NUM_GRAPHS) -> Figure:
    found = {
        (name, rate): measure(policy, rate, has_host=has_host, num_graphs=num_graphs)
        for name, (policy, has_host) in COMPONENTS.items()
        for rate in rates
    }
    last = max(rates)
    others = {f"{key} {policy}": policy for key, policy in BASELINES.items() if policy not in ("fcfs", "gittins")}
    found |= {
        (f"{row}{' with host' if has_host else ''}", last): measure(
            policy, last, has_host=has_host, num_graphs=num_graphs
        )
        for row, policy in others.items()
        for has_host in (False, True)
    }
    values = {
        f"{name}_{rate:g}: {field}": value
        for (name, rate), graphs in found.items()
        for field, value in graphs._asdict().items()
    }
    base, both = found["base", last], found["both", last]
    gains = {name: 1.0 - found[name, last].completion_s / base.completion_s for name in COMPONENTS if name != "base"}
    checks = [
        at_least("scheduling_gain", gains["scheduling"], 0.12),
        at_least("offload_gain", gains["offload"], 0.25),
        at_least("both_gain", gains["both"], 0.30),
        at_most("both_preemptions", both.preemptions, 0.0),
        at_most("both_prefilled_over_base", both.prefilled_tokens / base.prefilled_tokens, 0.30),
    ]
    notes = (
        f"a100, qwen2.5-14b, {BLOCKS} blocks of {BLOCK_TOKENS}, 100 GiB of host, {num_graphs} graphs of {GRAPH_CALLS}",
        "the published base preempts 41 times; ours starts no turn without room for its prompt and 64 tokens more",
        "the shape of the graphs and their prompts are ours, tool gaps those of S16; lengths of outputs are published",
    )
    return Figure(
        name="S10",
        title="Graphs of agents: scheduling, offloading, both",
        values=values,
        checks=tuple(checks),
        notes=notes,
    )
