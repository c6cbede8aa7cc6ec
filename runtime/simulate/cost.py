"""How long a step takes, from measured constants: the roofline of one device. Arithmetic; no engine.

T = t_0 + max((W + kappa X) / B_mem, (2 N sum x + 4 n d sum x (c + x / 2)) / Phi)

x, c  new tokens and context of a row         W  bytes of weights read     N  parameters
X     distinct KV tokens read in the step     kappa  KV bytes per token    n, d  layers, attention width
A prefix that rows share is read once where the plan groups them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ramet.runtime.errors import BadRequest
from ramet.runtime.types import PlannedRow, RowGroup, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a model costs."""

    parameters: float
    num_layers: int
    attention_width: int
    """Heads times head size."""
    kv_bytes_per_token: int
    weight_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a device gives."""

    memory_bytes_per_s: float
    flops: float
    """Effective, of prefill."""
    step_s: float
    """t_0: fixed cost of a step."""
    memory_bytes: float
    host_bytes_per_s: float


MODELS = {
    "llama-3.1-8b": Model(
        parameters=8e9, num_layers=32, attention_width=4096, kv_bytes_per_token=131_072, weight_bytes=16e9
    ),
    "llama-2-13b": Model(
        parameters=13e9, num_layers=40, attention_width=5120, kv_bytes_per_token=819_200, weight_bytes=26e9
    ),
    "qwen2.5-14b": Model(
        parameters=14.8e9, num_layers=48, attention_width=5120, kv_bytes_per_token=196_608, weight_bytes=29.6e9
    ),
    "smollm2-135m": Model(
        parameters=135e6, num_layers=30, attention_width=576, kv_bytes_per_token=23_040, weight_bytes=270e6
    ),
}
DEVICES = {
    "h200": Device(memory_bytes_per_s=4e12, flops=495e12, step_s=2e-3, memory_bytes=141e9, host_bytes_per_s=50e9),
    "h100": Device(memory_bytes_per_s=2.7e12, flops=495e12, step_s=2e-3, memory_bytes=80e9, host_bytes_per_s=50e9),
    "a100": Device(memory_bytes_per_s=1.6e12, flops=156e12, step_s=3e-3, memory_bytes=80e9, host_bytes_per_s=25e9),
}


def named_cost(gpu: str, model: str) -> "CostModel":
    """The cost model of a device and a model by their names."""
    for name, table, at in ((gpu, DEVICES, "--gpu"), (model, MODELS, "--model")):
        if name not in table:
            raise BadRequest(expected=f"one of {', '.join(table)}", got=name, at=at)
    return CostModel(MODELS[model], DEVICES[gpu])


_NOTHING: Mapping[int, int] = {}


class RowCost(NamedTuple):
    """A row as the formula sees it."""

    new_tokens: int
    context_tokens: int
    """Before this step."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """T of steps, and R of contexts that have to be computed again."""

    model: Model
    device: Device

    @property
    def pool_tokens(self) -> int:
        """KV tokens that fit beside the weights, a tenth of the memory kept free."""
        free = 0.9 * self.device.memory_bytes - self.model.weight_bytes
        return int(free / self.model.kv_bytes_per_token)

    def step_s(self, rows: Iterable[RowCost], num_shared_reads: int = 0) -> float:
        """`num_shared_reads`: KV tokens that groups save reading."""
        num_new, num_read, pairs = 0, -num_shared_reads, 0.0
        for new, context in rows:
            num_new += new
            num_read += context
            pairs += new * (context + new / 2)
        model, device = self.model, self.device
        memory_s = (model.weight_bytes + model.kv_bytes_per_token * num_read) / device.memory_bytes_per_s
        flops = 2 * model.parameters * num_new + 4 * model.num_layers * model.attention_width * pairs
        return device.step_s + max(memory_s, flops / device.flops)

    def plan_s(self, plan: StepPlan, loaded: Mapping[int, int] = _NOTHING) -> float:
        """Of a planned step. Drafts stand for later steps of one token: each is charged as a step of its own. Of each
        sequence id in `loaded`, so many leading tokens of its row are not computed."""
        rows = [_row_cost(row, loaded.get(row.sequence_id, 0)) for row in plan.rows]
        total = self.step_s(rows, shared_reads(plan.groups))
        longest = max((row.num_sampled - 1 for row in plan.rows), default=0)
        decoding = [(row.num_sampled - 1, row.start + len(row.tokens)) for row in plan.rows if row.num_sampled > 1]
        for later in range(1, longest + 1):
            rows = [RowCost(1, context) for num_drafts, context in decoding if num_drafts >= later]
            saved = shared_reads(plan.groups) if len(rows) == len(plan.rows) else 0
            total += self.step_s(rows, saved)
        return total

    def overhead_s(self, plan: StepPlan) -> float:
        """Beside the step: none, for t_0 has it."""
        return 0.0

    def rebuild_s(self, start: int, end: int) -> float:
        """R: seconds to compute tokens [start, end) of a context, alone on the device."""
        model = self.model
        flops = 2 * model.parameters * (end - start)
        flops += 2 * model.num_layers * model.attention_width * (end * end - start * start)
        return flops / self.device.flops

    def reload_s(self, num_tokens: int) -> float:
        """Seconds to bring so many KV tokens back from host memory."""
        return num_tokens * self.model.kv_bytes_per_token / self.device.host_bytes_per_s

    def with_pool(self, pool_tokens: int) -> "CostModel":
        """The same with memory for just so many KV tokens."""
        memory = (pool_tokens * self.model.kv_bytes_per_token + self.model.weight_bytes) / 0.9
        return replace(self, device=replace(self.device, memory_bytes=memory))


def shared_reads(groups: Iterable[RowGroup]) -> int:
    """KV tokens that need not be read again, for the rows of a group share them."""
    return sum((len(group.rows) - 1) * group.num_shared_tokens for group in groups)


def _row_cost(row: PlannedRow, num_loaded: int) -> RowCost:
    return RowCost(len(row.tokens) - max(0, row.num_sampled - 1) - num_loaded, row.start + num_loaded)
