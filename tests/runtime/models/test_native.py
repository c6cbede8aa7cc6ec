"""The native CPU decoder: against the torch model, and against itself in every company a row can be computed in."""

import itertools
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ramet.kernels.cpu.build import usable_variants
from ramet.runtime.errors import EngineFailed, NotBuilt
from ramet.runtime.models.base import make_kv_pool
from ramet.runtime.models.batch import StepBatch
from ramet.runtime.models.config import ModelConfig, RopeConfig
from ramet.runtime.models.native import NativeModel, build_for_cpu, build_native
from ramet.runtime.models.registry import build_model
from ramet.runtime.types import RowGroup

LLAMA = ModelConfig(
    model_type="llama",
    vocab_size=107,  # no multiple of a panel's sixteen columns
    hidden_size=96,
    intermediate_size=160,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    head_dim=32,
    context_length=1024,
    rms_norm_eps=1e-5,
    rope=RopeConfig(theta=10_000.0),
)
FAMILIES = {
    "llama": LLAMA,
    "one_kv_head": replace(LLAMA, num_kv_heads=1),
    "no_sharing": replace(LLAMA, num_kv_heads=6, head_dim=64),
    "head_of_20": replace(LLAMA, head_dim=20),
    "head_of_80": replace(LLAMA, head_dim=80, num_kv_heads=3),
    "qwen2_head_of_48": replace(LLAMA, model_type="qwen2", head_dim=48),
    "qwen3_head_of_100": replace(LLAMA, model_type="qwen3", head_dim=100),
    "qwen2": replace(LLAMA, model_type="qwen2", tie_word_embeddings=True),
    "qwen3": replace(LLAMA, model_type="qwen3", head_dim=64),
    "gemma3": replace(
        LLAMA,
        model_type="gemma3_text",
        windows=(9, None, 9),
        local_rope=RopeConfig(theta=1000.0),
        activation="gelu_tanh",
        attention_scale=0.2,
        attention_softcap=20.0,
        final_softcap=15.0,
        tie_word_embeddings=True,
    ),
}


class RandomWeights:
    """Every tensor that a config's family asks for, random and the same each time."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.tensors = dict(self._make())

    def _make(self) -> Iterator[tuple[str, Tensor]]:
        c, g = self.config, torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g) * shape[-1] ** -0.5

        def norm(size: int) -> Tensor:
            return 1 + 0.1 * torch.randn(size, generator=g)

        yield "model.embed_tokens.weight", torch.randn(c.vocab_size, c.hidden_size, generator=g)
        yield "model.norm.weight", norm(c.hidden_size)
        if not c.tie_word_embeddings:
            yield "lm_head.weight", normal(c.vocab_size, c.hidden_size)
        for i in range(c.num_layers):
            at = f"model.layers.{i}"
            inner, outer = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
            for name, rows, columns in (
                ("self_attn.q_proj", inner, c.hidden_size),
                ("self_attn.k_proj", outer, c.hidden_size),
                ("self_attn.v_proj", outer, c.hidden_size),
                ("self_attn.o_proj", c.hidden_size, inner),
                ("mlp.gate_proj", c.intermediate_size, c.hidden_size),
                ("mlp.up_proj", c.intermediate_size, c.hidden_size),
                ("mlp.down_proj", c.hidden_size, c.intermediate_size),
            ):
                yield f"{at}.{name}.weight", normal(rows, columns)
                if c.model_type == "qwen2" and name[10:] in ("q_proj", "k_proj", "v_proj"):
                    yield f"{at}.{name}.bias", torch.randn(rows, generator=g)
            if c.model_type in ("qwen3", "gemma3_text"):
                yield f"{at}.self_attn.q_norm.weight", norm(c.head_dim)
                yield f"{at}.self_attn.k_norm.weight", norm(c.head_dim)
            norms = ["input_layernorm", "post_attention_layernorm"]
            if c.model_type == "gemma3_text":
                norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
            for name in norms:
                yield f"{at}.{name}.weight", norm(c.hidden_size)

    def has(self, name: str) -> bool:
        return name in self.tensors

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.tensors[name].to(dtype)

    def read_raw(self, name: str) -> Tensor:
        return self.tensors[name]


def _native(config: ModelConfig = LLAMA, **options: Any) -> NativeModel:
    return build_native(config, RandomWeights(config), threads=options.pop("threads", 2), **options)


def _prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 107, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


# ---- against the torch model


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_float32_equals_the_torch_model(config: ModelConfig, page_size: int, greedy: Any) -> None:
    prompts = [_prompt(n, n) for n in (1, 17, 33)]
    native = greedy(_native(config, weight_format="fp32"), prompts, 4, page_size=page_size)
    torch_model = build_model(config, RandomWeights(config), dtype=torch.float32)
    theirs = greedy(torch_model, prompts, 4, page_size=page_size)
    assert native[0] == theirs[0]
    for ours, expected in zip(native[1], theirs[1], strict=True):
        torch.testing.assert_close(ours, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "config",
    [LLAMA, FAMILIES["no_sharing"], FAMILIES["gemma3"], FAMILIES["head_of_20"], FAMILIES["head_of_80"]],
    ids=str,
)
def test_int8_pages_are_those_of_the_torch_model(config: ModelConfig, make_runner: Any) -> None:
    """Codes may differ by one at ties, and what is attended is rounded to bfloat16 where the CPU multiplies that."""
    prompt = _prompt(150)
    models = (
        _native(config, weight_format="fp32"), build_model(config, RandomWeights(config), dtype=torch.float32)
    )  # fmt: skip
    runners = [make_runner(model, 1, 200, 16, torch.int8) for model in models]
    ours, theirs = (runner.step([(0, prompt)]) for runner in runners)
    assert (ours - theirs).square().mean().sqrt() < 0.02 * theirs.std()
    for name in ("keys", "values"):
        codes, expected = (getattr(runner.kv, name)[0].int() for runner in runners)
        assert (codes - expected).abs().max() <= 1
        scales = [getattr(runner.kv, f"{name[:-1]}_scales")[0] for runner in runners]
        torch.testing.assert_close(*scales, rtol=2e-3, atol=0)


@pytest.mark.parametrize(("weight_format", "tolerance"), [("bf16", 0.05), ("w8", 0.05), ("w4", 0.6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_rounded_formats_stay_near(weight_format: Any, tolerance: float, dtype: torch.dtype, make_runner: Any) -> None:
    """Root-mean-square distance from float32, as a share of the logits' own size."""
    prompt = _prompt(150)
    exact = make_runner(_native(weight_format="fp32"), 1, 200, 16, torch.float32).step([(0, prompt)])
    rounded = make_runner(_native(weight_format=weight_format), 1, 200, 16, dtype).step([(0, prompt)])
    assert (rounded - exact).square().mean().sqrt() < tolerance * exact.std()


def test_logits_are_those_of_the_output_rows_asked_for(make_runner: Any) -> None:
    model = _native()
    runner = make_runner(model, 1, 40, 4, torch.bfloat16)
    everything = runner.step([(0, _prompt(20))])
    batch = _line_batch(_prompt(20), page_size=4, output_rows=[19, 3, 3])
    some = model.forward(batch, make_kv_pool(LLAMA, 8, 4, torch.bfloat16, "cpu"))
    assert torch.equal(some, everything[[19, 3, 3]])


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_what_nobody_asks_for_is_left_out_and_changes_no_bit(name: str) -> None:
    """The last layer computes keys and values of every row, and the rest near rows that are asked for only."""
    config, prompt = FAMILIES[name], _prompt(150)
    model, pools = _native(config), [make_kv_pool(config, 10, 16, torch.float32, "cpu") for _ in range(3)]
    batch = _line_batch(prompt, page_size=16)
    every = model.forward(replace(batch, output_rows=torch.arange(150)), pools[0])
    some = model.forward(replace(batch, output_rows=torch.tensor([149, 31])), pools[1])
    model.forward(replace(batch, output_rows=torch.tensor([], dtype=torch.int64)), pools[2])
    assert torch.equal(some, every[[149, 31]])
    for pool in pools[1:]:
        for ours, theirs in zip((*pool.keys, *pool.values), (*pools[0].keys, *pools[0].values), strict=True):
            assert torch.equal(ours, theirs)


def test_token_tree_equals_each_of_its_paths() -> None:
    """Five new tokens after eleven cached ones; each path from the root, computed alone, has the same logits."""
    model = _native(FAMILIES["gemma3"], weight_format="fp32")
    parents = [-1, 0, 0, 1, 2]
    prefix, new = _prompt(11), _prompt(5, 1)
    mask = torch.zeros(5, 5, dtype=torch.bool)
    paths: list[list[int]] = []
    for i, parent in enumerate(parents):
        paths.append(([] if parent < 0 else paths[parent]) + [i])
        mask[i, paths[i]] = True
    kv = make_kv_pool(model.config, 8, 4, torch.float32, "cpu")
    model.forward(_line_batch(prefix, page_size=4), kv)
    positions = torch.tensor([10 + len(path) for path in paths])
    tree = replace(_line_batch(new, page_size=4, start=11), positions=positions, tree_masks={0: mask})
    in_tree = model.forward(tree, kv)
    for i, path in enumerate(paths):
        alone = make_kv_pool(model.config, 8, 4, torch.float32, "cpu")
        logits = model.forward(_line_batch(prefix + [new[j] for j in path], page_size=4), alone)
        torch.testing.assert_close(in_tree[i], logits[-1], atol=1e-4, rtol=1e-4)


# ---- a row's bits do not depend on its company


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("weight_format", ["w4", "w8", "bf16", "fp32"])
def test_same_bits_alone_in_a_batch_in_chunks_and_on_any_page_size(
    weight_format: Any, dtype: torch.dtype, make_runner: Any
) -> None:
    """Lengths beside the edges of tiles (12), blocks (16), decode rows (16) and chunks (128)."""
    model = _native(weight_format=weight_format)
    prompts = [_prompt(n, n) for n in (1, 12, 16, 17, 127, 129, 260)]
    alone = [make_runner(model, 1, 300, 16, dtype).step([(0, prompt)]) for prompt in prompts]
    for page_size in (1, 4, 16):
        together = make_runner(model, len(prompts), 300, page_size, dtype)
        pieces = together.step(list(enumerate(prompts))).split(list(map(len, prompts)))
        assert all(map(torch.equal, alone, pieces)), f"in one batch, page size {page_size}"
    for chunk in (1, 7, 50):
        runner = make_runner(model, len(prompts), 300, 4, dtype)
        pending = {row: list(prompt) for row, prompt in enumerate(prompts)}
        got: dict[int, list[Tensor]] = {row: [] for row in pending}
        while pending:
            rows = [(row, tokens[:chunk]) for row, tokens in pending.items()]
            for (row, new), piece in zip(rows, runner.step(rows).split([len(n) for _, n in rows]), strict=True):
                got[row].append(piece)
                del pending[row][: len(new)]
            pending = {row: tokens for row, tokens in pending.items() if tokens}
        assert all(torch.equal(alone[row], torch.cat(got[row])) for row in got), f"in chunks of {chunk}"


@pytest.mark.parametrize("config", [LLAMA, FAMILIES["gemma3"]], ids=["llama", "gemma3"])
@pytest.mark.parametrize("shared", [5, 128, 150])
def test_a_fork_group_reads_shared_keys_once_and_gets_the_same_bits(config: ModelConfig, shared: int) -> None:
    """Four branches of one prefix, each with its own tail; tables point at the same pages for the shared tokens."""
    model, page_size, num_rows = _native(config), 1, 4
    kv = make_kv_pool(config, 1200, page_size, torch.bfloat16, "cpu")
    model.forward(_line_batch(_prompt(shared), page_size=page_size), kv)
    tails = [_prompt(3 + 7 * row, row) for row in range(num_rows)]
    tables = torch.zeros(num_rows, 300, dtype=torch.int32)
    for row, tail in enumerate(tails):
        tables[row, :shared] = torch.arange(shared)
        tables[row, shared : shared + len(tail)] = 300 * (row + 1) - 100 + torch.arange(len(tail))
    for row, tail in enumerate(tails):  # all but the last token of each tail
        model.forward(_rows_batch([tail[:-1]], [shared], tables[row : row + 1]), kv)
    last = _rows_batch([[tail[-1]] for tail in tails], [shared + len(tail) - 1 for tail in tails], tables)
    apart = model.forward(last, kv)
    before = model.statistics()
    together = model.forward(replace(last, groups=(RowGroup(tuple(range(num_rows)), shared),)), kv)
    after = model.statistics()
    assert torch.equal(apart, together)
    if config.window(0) is not None:
        return  # reads are counted in the first layer, which sees a window only
    lengths = [shared + len(tail) for tail in tails]
    assert after["kv_tokens_seen"] - before["kv_tokens_seen"] == sum(lengths)
    common = shared // 16 * 16  # whole blocks of sixteen keys are shared; what is left, each row reads for itself
    num_read = sum(lengths) - (num_rows - 1) * common
    assert after["kv_tokens_read"] - before["kv_tokens_read"] == num_read
    assert after["kv_bytes_read"] - before["kv_bytes_read"] == num_read * config.kv_bytes_per_token(2)


def test_threads_make_no_difference(make_runner: Any) -> None:
    prompts = [(0, _prompt(40)), (1, _prompt(300, 1)), (2, _prompt(1, 2))]
    results = [make_runner(_native(threads=n), 3, 300, 16, torch.bfloat16).step(prompts) for n in (1, 2, 5)]
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_unwritten_pages_are_never_looked_at(make_runner: Any) -> None:
    model = _native()
    clean, dirty = (make_runner(model, 2, 200, 4, torch.bfloat16) for _ in range(2))
    for tensor in (*dirty.kv.keys, *dirty.kv.values):
        tensor.fill_(float("nan"))
    rows = [(0, _prompt(131)), (1, _prompt(5, 1))]
    assert torch.equal(clean.step(rows), dirty.step(rows))


@pytest.mark.parametrize("variant", [v.name for v in usable_variants()])
@pytest.mark.slow
def test_every_build_that_this_cpu_runs_agrees(variant: str, make_runner: Any) -> None:
    """Integer products are exact in all; floats differ in the last places, bfloat16 attention in its own."""
    prompt = _prompt(140)
    for weight_format, dtype in itertools.product(("w4", "w8", "bf16"), (torch.float32, torch.bfloat16)):
        best = make_runner(_native(weight_format=weight_format), 1, 200, 16, dtype).step([(0, prompt)])
        built = _native(weight_format=weight_format, variant=variant)
        other = make_runner(built, 1, 200, 16, dtype).step([(0, prompt)])
        assert (other - best).square().mean().sqrt() < 0.02 * best.std(), (weight_format, dtype)


# ---- what is refused


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("tokens", [107], "outside the vocabulary"),
        ("positions", [1024], "past the context length"),
        ("slots", [8], "slot outside the pool"),
        ("page_tables", [[9]], "page 9 outside the pool"),
        ("output_rows", [1], "output row outside"),
        ("context_lengths", [0], "more new tokens than keys"),
        ("context_lengths", [5], "longer than its page table"),
    ],
)
def test_a_step_that_would_leave_its_memory_is_refused(field: str, value: Any, words: str) -> None:
    batch = _line_batch([1], page_size=4)
    wrong = torch.tensor(value, dtype=getattr(batch, field).dtype)
    with pytest.raises(EngineFailed, match=words):
        _native().forward(replace(batch, **{field: wrong}), make_kv_pool(LLAMA, 2, 4, torch.bfloat16, "cpu"))


def test_a_size_that_native_code_lacks_runs_on_torch_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    config = replace(LLAMA, hidden_size=80)
    with pytest.raises(NotBuilt, match="hidden size of 80"):
        _native(config)
    with caplog.at_level(logging.WARNING):
        model = build_for_cpu(config, RandomWeights(config))
    assert not isinstance(model, NativeModel)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def _line_batch(
    tokens: list[int], *, page_size: int, start: int = 0, output_rows: list[int] | None = None
) -> StepBatch:
    """One row whose pages are 0, 1, 2, ..."""
    table = torch.arange(-(-(start + len(tokens)) // page_size), dtype=torch.int32)[None]
    batch = _rows_batch([tokens], [start], table, page_size=page_size)
    return batch if output_rows is None else replace(batch, output_rows=torch.tensor(output_rows))


def _rows_batch(rows: list[list[int]], starts: list[int], tables: Tensor, *, page_size: int = 1) -> StepBatch:
    positions = [torch.arange(start, start + len(row)) for row, start in zip(rows, starts, strict=True)]
    slots = [
        table.long()[at // page_size] * page_size + at % page_size for table, at in zip(tables, positions, strict=True)
    ]
    lengths = [start + len(row) for row, start in zip(rows, starts, strict=True)]
    offsets = list(itertools.accumulate(map(len, rows), initial=0))
    return StepBatch(
        tokens=torch.tensor([token for row in rows for token in row]),
        positions=torch.cat(positions),
        query_offsets=torch.tensor(offsets, dtype=torch.int32),
        context_lengths=torch.tensor(lengths, dtype=torch.int32),
        page_tables=tables.contiguous(),
        slots=torch.cat(slots),
        output_rows=torch.arange(offsets[-1]),
    )
