"""Programs on the embedded model: what the cache spares, and decode and prefill beside transformers' `generate`.

Both sides hold the same weights in bf16 and take turns in one process, so that what else the machine does hits both;
the ratios are of medians. Before any number: every token that was generated must be, to transformers, as good as the
best one within bf16's rounding, and what the cache spared must not have changed that.
"""

import asyncio
import importlib.util
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from ramet.bench.form import Bar, Measured, NotCorrect
from ramet.runtime.build import Backend, build_engine
from ramet.runtime.client import EngineClient
from ramet.runtime.errors import Unavailable
from ramet.runtime.types import (
    BranchHandle,
    Delta,
    GenerateSpec,
    Message,
    MessagesPiece,
    ProgramSpec,
    Sampling,
    Started,
    TokensPiece,
)

PROMPT_TOKENS, NUM_FORKS, OWN_TOKENS = 1_000, 8, 10
NUM_TURNS, ANSWER_TOKENS = 6, 24
DECODE_PROMPT_TOKENS, DECODE_TOKENS = 64, 32
PREFILL_TOKENS = 2_048
WORST_GAP = 1.0
"""Logits by which a token may fall behind transformers' best: both sides round to bf16 at every layer."""

BARS = (
    Bar("fork8_prefill_tokens", PROMPT_TOKENS + NUM_FORKS * OWN_TOKENS, "<="),
    Bar("fork8_reuse", 0.98, ">="),
    Bar("chat6_reuse", 0.98, ">="),
    Bar("decode_b1_x_hf", 1.5, ">="),
    Bar("decode_b16_x_hf", 1.5, ">="),
    Bar("prefill_x_hf", 1.5, ">="),
)


class Turn(NamedTuple):
    """One generation, as its client saw it."""

    prompt_tokens: int
    cached_tokens: int
    tokens: list[int]
    times_s: list[float]
    """When each event with tokens came, ..."""
    counts: list[int]
    """... and how many it brought."""


def measure(options: Mapping[str, object] | None = None) -> Measured:
    """Every figure; a minute or two. Options: `rounds` (3), `backend` (auto)."""
    options = options or {}
    if importlib.util.find_spec("transformers") is None:
        raise Unavailable("this benchmark runs beside transformers, which is not installed: pip install transformers")
    return asyncio.run(_measure(int(str(options.get("rounds", 3))), str(options.get("backend", "auto"))))


async def _measure(rounds: int, backend: str) -> Measured:
    client = build_engine(dtype="bfloat16", backend=cast(Backend, backend))
    try:
        reuse, sequences = await _reuse_figures(client)
        peak_mb = _peak_memory_mb()
        peer = Peer()
        gap = max(peer.gap(prompt, answer) for prompt, answer in sequences)
        if gap > WORST_GAP:
            raise NotCorrect(f"a generated token is {gap:.2f} logits worse than the best one to transformers")
        speed = await _speed_figures(client, peer, rounds)
    finally:
        client.stop()
    figures = {**reuse, **speed, "peak_memory_mb": peak_mb, "worst_gap_logits": gap}
    return Measured(figures=figures, bars=BARS, notes={"rounds": rounds, "backend": backend, "dtype": "bfloat16"})


# What the cache spares -----------------------------------------------------------------------------------------------

Answered = list[tuple[list[int], list[int]]]
"""Prompts with their answers."""


async def _reuse_figures(client: EngineClient) -> tuple[dict[str, float], Answered]:
    fork, forked = await _fork8(client)
    chat, chatted = await _chat6(client)
    return {**fork, **chat}, [*forked, *chatted]


async def _fork8(client: EngineClient) -> tuple[dict[str, float], Answered]:
    """A prompt that nobody has computed yet, forked at once: eight branches that all need it."""
    rng = np.random.default_rng(8)
    root = await client.open(ProgramSpec())
    prompt = _random_tokens(rng, PROMPT_TOKENS)
    await client.extend(root, [TokensPiece(prompt)])
    branches = await client.fork(root, NUM_FORKS)
    owns = [_random_tokens(rng, OWN_TOKENS) for _ in branches]
    for branch, own in zip(branches, owns, strict=True):
        await client.extend(branch, [TokensPiece(own)])
    turns = await asyncio.gather(*(_generate(client, branch, 8) for branch in branches))
    await client.close(root, program=True)
    cached, computed = (
        sum(turn.cached_tokens for turn in turns),
        sum(turn.prompt_tokens - turn.cached_tokens for turn in turns),
    )
    figures = {"fork8_prefill_tokens": computed, "fork8_reuse": cached / ((NUM_FORKS - 1) * PROMPT_TOKENS)}
    return figures, [(prompt + own, turn.tokens) for own, turn in zip(owns, turns, strict=True)]


async def _chat6(client: EngineClient) -> tuple[dict[str, float], Answered]:
    """Six turns on one branch: all that was there before a turn can be reused, but the last token, whose KV is due."""
    branch = await client.open(ProgramSpec())
    answered: Answered = []
    cached = reusable = 0
    for number in range(NUM_TURNS):
        before = len(await client.tokens(branch))
        question = Message(role="user", content=f"Question {number}: tell me one thing about the number {number}.")
        await client.extend(branch, [MessagesPiece(messages=[question], add_generation_prompt=True)])
        prompt = await client.tokens(branch)
        turn = await _generate(client, branch, ANSWER_TOKENS)
        cached, reusable = cached + turn.cached_tokens, reusable + max(0, before - 1)
        answered.append((prompt, turn.tokens))
    await client.close(branch, program=True)
    return {"chat6_reuse": min(1.0, cached / reusable)}, answered


# Beside transformers -------------------------------------------------------------------------------------------------


async def _speed_figures(client: EngineClient, peer: "Peer", rounds: int) -> dict[str, float]:
    """Tokens a second of both sides, taking turns; round 0 warms both up and does not count."""
    found: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        rng = np.random.default_rng(number)
        for name, batch in (("decode_b1", 1), ("decode_b16", 16)):
            prompts = [_random_tokens(rng, DECODE_PROMPT_TOKENS) for _ in range(batch)]
            found.setdefault(f"{name}_tok_s", []).append(await _decode_rate(client, prompts))
            found.setdefault(f"{name}_hf_tok_s", []).append(peer.decode_rate(prompts))
        prompt = _random_tokens(rng, PREFILL_TOKENS)
        found.setdefault("prefill_tok_s", []).append(await _prefill_rate(client, prompt))
        found.setdefault("prefill_hf_tok_s", []).append(peer.prefill_rate(prompt))
    rates = {name: statistics.median(values[1:]) for name, values in found.items()}
    ratios = {
        f"{name}_x_hf": rates[f"{name}_tok_s"] / rates[f"{name}_hf_tok_s"]
        for name in ("decode_b1", "decode_b16", "prefill")
    }
    return {**ratios, **rates}


async def _decode_rate(client: EngineClient, prompts: Sequence[list[int]]) -> float:
    """Tokens a second of all branches together, while all of them decode."""
    turns = await asyncio.gather(*[_prompted(client, prompt, DECODE_TOKENS + 1) for prompt in prompts])
    begin, end = max(turn.times_s[0] for turn in turns), min(turn.times_s[-1] for turn in turns)
    num_tokens = sum(
        count for turn in turns for when, count in zip(turn.times_s, turn.counts, strict=True) if begin < when <= end
    )
    return num_tokens / (end - begin)


async def _prefill_rate(client: EngineClient, prompt: list[int]) -> float:
    began = time.perf_counter()
    turn = await _prompted(client, prompt, 1)
    if turn.cached_tokens:
        raise NotCorrect(f"{turn.cached_tokens} tokens of a prompt never seen came from the cache")
    return len(prompt) / (turn.times_s[0] - began)


class Peer:
    """transformers' model with our embedded weights, in bf16."""

    def __init__(self) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        from ramet.runtime.weights.source import find_default_model, open_source

        source = open_source(find_default_model())
        config = source.config
        ends = list(source.generation_end_ids)
        self._torch = torch
        self._model = LlamaForCausalLM._from_config(  # type: ignore[no-untyped-call]
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                num_key_value_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                max_position_embeddings=config.context_length,
                rms_norm_eps=config.rms_norm_eps,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
                tie_word_embeddings=config.tie_word_embeddings,
                eos_token_id=ends,
                pad_token_id=ends[0],
            ),
            dtype=torch.bfloat16,
        ).eval()
        weights = {name: source.read(name, torch.bfloat16) for name in source.names()}
        missing, unexpected = self._model.load_state_dict(weights, strict=False)
        if unexpected or set(missing) - {"lm_head.weight"}:
            raise NotCorrect(f"transformers names its weights otherwise: {missing}, {unexpected}")

    def gap(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """By how many logits the worst of the answer's tokens falls behind the best one at its place."""
        tokens = self._torch.tensor([[*prompt, *answer]])
        with self._torch.inference_mode():
            logits = self._model(tokens).logits[0, len(prompt) - 1 : -1].float()
        chosen = logits.gather(1, tokens[0, len(prompt) :, None])[:, 0]
        return float((logits.amax(-1) - chosen).max())

    def decode_rate(self, prompts: Sequence[list[int]]) -> float:
        whole, first = self._generate(prompts, DECODE_TOKENS + 1), self._generate(prompts, 1)
        return len(prompts) * DECODE_TOKENS / (whole - first)

    def prefill_rate(self, prompt: list[int]) -> float:
        return len(prompt) / self._generate([prompt], 1)

    def _generate(self, prompts: Sequence[list[int]], num_tokens: int) -> float:
        """Seconds of a greedy `generate` of exactly so many tokens."""
        tokens = self._torch.tensor(prompts)
        began = time.perf_counter()
        with self._torch.inference_mode():
            made: Any = self._model.generate(
                tokens,
                attention_mask=self._torch.ones_like(tokens),
                do_sample=False,
                min_new_tokens=num_tokens,
                max_new_tokens=num_tokens,
            )
        seconds = time.perf_counter() - began
        if made.shape[1] != tokens.shape[1] + num_tokens:
            raise NotCorrect(f"transformers made {made.shape[1] - tokens.shape[1]} tokens of {num_tokens}")
        return seconds


# Small tools ---------------------------------------------------------------------------------------------------------


async def _prompted(client: EngineClient, prompt: list[int], num_tokens: int) -> Turn:
    branch = await client.open(ProgramSpec())
    await client.extend(branch, [TokensPiece(prompt)])
    turn = await _generate(client, branch, num_tokens)
    await client.close(branch, program=True)
    return turn


async def _generate(client: EngineClient, branch: BranchHandle, num_tokens: int) -> Turn:
    """Greedy, exactly so many tokens."""
    spec = GenerateSpec(max_tokens=num_tokens, ignore_eos=True, sampling=Sampling(temperature=0))
    turn = Turn(0, 0, [], [], [])
    async for event in client.generate(branch, spec):
        if isinstance(event, Started):
            turn = turn._replace(prompt_tokens=event.prompt_tokens, cached_tokens=event.cached_tokens)
        elif isinstance(event, Delta) and event.tokens:
            turn.tokens.extend(event.tokens)
            turn.times_s.append(time.perf_counter())
            turn.counts.append(len(event.tokens))
    if len(turn.tokens) != num_tokens:
        raise NotCorrect(f"{len(turn.tokens)} tokens came of {num_tokens}")
    return turn


def _random_tokens(rng: np.random.Generator, count: int) -> list[int]:
    """Ordinary ones: the first ids are special, in the embedded model."""
    tokens: list[int] = rng.integers(100, 49_000, count).tolist()
    return tokens


def _peak_memory_mb() -> float:
    """The most that this process ever held."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1e3
