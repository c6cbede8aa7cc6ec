"""The vocabulary of the runtime: what crosses from one room to the next. Values only: no behaviour, no torch, no clock.

Two worlds meet here. Above the engine, a *branch* is extended with pieces and generates events; `runtime/client.py`
has the verbs. Below it, a *step* is planned in ints (`StepPlan`), worked in tensors, and comes back as ints
(`StepResult`). Structs that cross a process every step are frozen tagged msgspec Structs.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from ramet.constrained.spec import Spec

FinishReason = Literal["stop", "length", "tool_calls", "abort", "error"]
GapKind = Literal["tool", "human", "join"]
SelectMethod = Literal[
    "total", "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"
]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How one token is drawn from the logits. Greedy where temperature is 0 (or under 1e-5)."""

    temperature: float = 1.0
    """0 to 100; 0 is greedy."""
    top_p: float = 1.0
    """In (0, 1]: the smallest set of tokens whose probability reaches it."""
    top_k: int = 0
    """The k most probable tokens; 0 or -1: all."""
    min_p: float = 0.0
    """In [0, 1]: drop tokens below this share of the most probable one."""
    repetition_penalty: float = 1.0
    """> 0; divides (multiplies, where negative) the logits of tokens in prompt and output."""
    frequency_penalty: float = 0.0
    """-2 to 2, times the count in the output."""
    presence_penalty: float = 0.0
    """-2 to 2, once for tokens in the output."""
    logit_bias: Mapping[int, float] = {}
    """Token id -> added to its logit; -100 and below bans it."""
    allowed_token_ids: tuple[int, ...] = ()
    """If not empty, only these."""
    seed: int | None = None
    """Seeds this sequence's own generator: same logits, same tokens, alone or in a batch."""


class GenerateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One turn's generation."""

    max_tokens: int | None = None
    """None: the rest of the context. 0: compute the prompt (for its logprobs) and generate nothing."""
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    """The text is cut before the first of these to appear."""
    include_stop: bool = False
    """Keep the matched stop string in the text."""
    stop_token_ids: tuple[int, ...] = ()
    """Beside the model's own. Under a grammar they end an output that satisfies it, and are text before."""
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    sampling: Sampling = Sampling()
    grammar: Spec | None = None
    grammar_drafts: bool = True
    """Forced tokens are appended as verified drafts."""
    logprobs: int | None = None
    """None: none. n >= 0: the sampled token's logprob and the n most probable ones, of the distribution sampled from
    before temperature (log-softmax of the masked, penalised logits)."""
    prompt_logprobs: int | None = None
    """The same for prompt tokens from `prompt_logprobs_start` on; recomputed where the prefix was cached."""
    prompt_logprobs_start: int = 0
    timeout_s: float | None = None
    stream_interval: int = 1
    """Tokens per event, at least; the last event carries the rest."""


class ProgramSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the runtime is told about a program when it opens."""

    program_id: str | None = None
    """None: one is minted."""
    join: bool = False
    """Where a program of this id is open already, open a branch of it, instead of refusing the id."""
    tenant: str = ""
    """Owner of quotas and fair share; part of the cache namespace where isolation is on."""
    salt: str = ""
    """Cache isolation: programs with different salts share nothing."""
    priority: int = 0
    """Higher goes first, and is kept longer."""
    deadline_s: float | None = None
    """Seconds from now in which the program wants to end."""
    parent: str | None = None
    """The program that started this one (a sub-agent)."""
    workload: str = ""
    """Class for the scheduler's estimators (a hash of tools and system prompt)."""


class BranchHandle(NamedTuple):
    """Names a branch; plain values, good across processes."""

    program_id: str
    branch_id: int


class Mark(NamedTuple):
    """A point on a branch to roll back to."""

    num_tokens: int
    serial: int


class TextPiece(msgspec.Struct, frozen=True, tag="text"):
    """Text to append. Special tokens inside are plain text unless `allow_special`."""

    text: str
    allow_special: bool = False


class TokensPiece(msgspec.Struct, frozen=True, tag="tokens"):
    """Token ids to append as they are."""

    tokens: list[int]


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chat message as the model's template sees it."""

    role: str
    content: str | list[dict[str, object]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, object]] | None = None
    """OpenAI form; `function.arguments` is the client's text, byte for byte."""
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class MessagesPiece(msgspec.Struct, frozen=True, kw_only=True, tag="messages"):
    """Chat messages to append through the model's own template, which renders only what is new."""

    messages: list[Message]
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    tools: list[dict[str, object]] | None = None
    template_arguments: dict[str, object] = {}
    chat_template: str | None = None


Piece = TextPiece | TokensPiece | MessagesPiece


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A token, its logprob (None: the first prompt token has none) and the most probable ones at its place."""

    token: int
    logprob: float | None
    top: list[tuple[int, float]] = []


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn, a branch or a program cost."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose KV was found (device, host or disk), not computed."""
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    drafted_tokens: int = 0
    """Tokens proposed as drafts, ..."""
    accepted_tokens: int = 0
    """... and those of them that the model confirmed."""


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one turn."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    time_to_first_token_s: float | None = None


class Queued(msgspec.Struct, frozen=True, kw_only=True, tag="queued"):
    position: int
    estimate_s: float | None = None


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """The prompt is tokenised and admitted."""

    prompt_tokens: int
    cached_tokens: int


class Delta(msgspec.Struct, frozen=True, kw_only=True, tag="delta"):
    """New tokens and the text that is now certain. `text` may be empty (half a character, a possible stop)."""

    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob] | None = None
    tags: list[tuple[str, Literal["begin", "end"], int]] = []
    """Automaton events: (Tagged.name, edge, offset in the whole output's UTF-8 bytes)."""


class Paused(msgspec.Struct, frozen=True, kw_only=True, tag="paused"):
    reason: str


class Resumed(msgspec.Struct, frozen=True, kw_only=True, tag="resumed"):
    waited_s: float
    tokens_restored: int


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The last event of every generation that was not an error."""

    reason: FinishReason
    stop: str | int | None = None
    """The stop string or token id that ended it, where one did."""
    usage: Usage = Usage()
    timings: Timings = Timings()
    prompt_logprobs: list[TokenLogprob] | None = None
    ledger: list[dict[str, str]] | None = None
    """Of its grammar, where there was one: {pointer, keyword, status, reason}."""
    violations: list[dict[str, object]] | None = None
    """What the output fails of keywords that the ledger calls deferred: {part, pointer, at, schema}. None: there were
    none, so nothing had to be judged."""
    miss: dict[str, object] | None = None
    """Why the cache missed what it missed: {cause, at_token, ...} (telemetry/explain)."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The last event of a generation that an error ended. The engine lives on."""

    status: int
    code: str
    message: str
    at: str | None = None
    retry_after_s: float | None = None


Event = Queued | Started | Delta | Paused | Resumed | Finished | Failed


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `select`."""

    index: int
    """Of the winner in the caller's list."""
    probabilities: list[float]
    """Of each choice; they add up to 1 over the choices."""
    scores: list[float]
    """What the method ranked by, higher wins."""
    logprobs: list[list[TokenLogprob]]
    """Per choice, its tokens' logprobs (the end token last, where the method counts it)."""
    usage: Usage = Usage()


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What the front needs to know of a loaded model."""

    name: str
    """As served: `/v1/models` lists it."""
    model_type: str
    context_length: int
    vocabulary_size: int
    """Tokenizer's, not the padded logits'."""
    end_token_ids: tuple[int, ...]
    bos_token_id: int | None = None
    has_chat_template: bool = True
    chat_template: str | None = None
    tool_use_template: str | None = None
    """The model's own template for conversations with tools, where it has one beside `chat_template`."""
    dtype: str = "float32"
    kv_dtype: str = ""
    """Of the KV pages; "": as `dtype`."""
    device: str = "cpu"
    num_pages: int = 0
    page_size: int = 16
    parameters: int = 0
    fingerprint: str = ""
    """Of weights and vocabulary; "": not known. Tokens and KV of another fingerprint are another model's."""


# Below the engine: one step ------------------------------------------------------------------------------------------


class PageCopy(NamedTuple):
    """Copy the first `num_tokens` slots of page `source` to page `target`, before the step computes anything."""

    source: int
    target: int
    num_tokens: int


class PageMove(NamedTuple):
    """Move a page's KV between tiers."""

    page: int
    slot: int
    """Names this move: `Moved` tells of it."""
    direction: Literal["to_disk", "from_disk"]
    key: bytes
    """The page's name in the disk tier."""


class Moved(NamedTuple):
    """What became of a `PageMove`."""

    slot: int
    is_done: bool
    """Of a read: False where the file was torn, changed or gone; the page then holds nothing."""
    seconds: float = 0.0
    """That it took, without its time in line."""
    tier: Literal["host", "disk"] = "disk"
    """Of a read: where the page lay."""


class SequenceStart(NamedTuple):
    """A sequence that the executor meets for the first time (or again, after preemption): how it samples."""

    sequence_id: int
    spec: GenerateSpec
    prompt_tokens: Sequence[int]
    """For penalties that count the prompt."""
    output_tokens: Sequence[int]
    """Already generated: not empty after preemption; grammar and generator state are rebuilt from them."""


class PlannedRow(NamedTuple):
    """Tokens [start, start + len(tokens)) of one sequence, computed in this step."""

    sequence_id: int
    tokens: Sequence[int]
    start: int
    pages: Sequence[int]
    """The page table: covers [0, start + len(tokens))."""
    num_sampled: int = 0
    """0: a prefill chunk whose logits nobody needs. 1: sample after the last token. 1 + d: the last d tokens are drafts
    to verify, and one more is sampled."""
    num_logprobs: int = 0
    """The last so many of the row's tokens: return the logits' logprob of the token that follows each (prompt logprobs,
    select). The followers are `followers`."""
    followers: Sequence[int] = ()
    parents: Sequence[int] | None = None
    """A token tree (select, tree drafts): index in this row of each token's parent, -1: the prefix. None: a line."""
    follower_at: Sequence[int] | None = None
    """Index in this row of the token that each follower follows: a token of a tree may have many followers, or none.
    None: the last `num_logprobs` tokens have one each. `num_logprobs == len(followers)` in both forms."""


class RowGroup(NamedTuple):
    """Rows whose first `num_shared_tokens` tokens lie in the same pages: read once per step."""

    rows: tuple[int, ...]
    num_shared_tokens: int


class StepPlan(NamedTuple):
    """What one step computes. Ints only."""

    rows: Sequence[PlannedRow]
    starts: Sequence[SequenceStart] = ()
    ends: Sequence[int] = ()
    """Sequence ids whose sampler and grammar state the executor may drop."""
    copies: Sequence[PageCopy] = ()
    groups: Sequence[RowGroup] = ()
    moves: Sequence[PageMove] = ()


class SampledRow(NamedTuple):
    """What one row of the plan gave."""

    sequence_id: int
    tokens: Sequence[int]
    """Accepted drafts, then the sampled token; empty for a pure prefill chunk."""
    logprobs: Sequence[TokenLogprob] = ()
    """One per token, where the spec asks."""
    follower_logprobs: Sequence[TokenLogprob] = ()
    forced: Sequence[int] = ()
    """Tokens that the grammar forces next: drafts for the next step."""
    grammar_done: bool = False
    """The grammar accepts and nothing may follow."""
    tags: Sequence[tuple[str, Literal["begin", "end"], int]] = ()
    """Begins and ends of tagged parts that these tokens made certain; see `Delta.tags`."""
    unstopped: Sequence[int] = ()
    """Indices of stop tokens among `tokens` that end nothing: the grammar was not satisfied before them."""
    error: Failed | None = None
    """This row failed (its grammar died, its logits are not finite); the others did not."""


class StepResult(NamedTuple):
    rows: Sequence[SampledRow]
    compute_s: float = 0.0


class EngineStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """An immutable snapshot; metrics, dashboard and logs read nothing else."""

    num_running: int = 0
    num_waiting_prefill: int = 0
    num_decoding: int = 0
    num_programs: int = 0
    num_branches: int = 0
    oldest_waiting_s: float = 0.0
    total_pages: int = 0
    free_pages: int = 0
    evictable_pages: int = 0
    leased_pages: int = 0
    page_size: int = 16
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    computed_tokens_total: int = 0
    """Tokens that went through the model, prompt and output."""
    generated_tokens_total: int = 0
    evicted_tokens_total: int = 0
    recomputed_tokens_total: int = 0
    preemptions_total: int = 0
    aborted_total: int = 0
    steps_total: int = 0
    drafted_tokens_total: int = 0
    accepted_tokens_total: int = 0
    grammar_device_masks_total: int = 0
    """Places drawn under a grammar whose mask the device made, ..."""
    grammar_host_masks_total: int = 0
    """... and those whose mask the host made."""
    idle_token_seconds_total: float = 0.0
    """KV tokens of programs in gaps that nobody else reads, times seconds; under `gittins` and its kin."""
    idle_cost_seconds_total: float = 0.0
    """The same at the price of memory of the time."""
    quota_refused_total: int = 0
    """Turns refused because their tenant or program was at its limit."""
    tree_nodes: int = 0
    host_hit_tokens_total: int = 0
    """Of `cached_tokens_total`, those that a prompt found because they came back from the host tier for it, ..."""
    disk_hit_tokens_total: int = 0
    """... and those from the disk tier."""
    disk_written_tokens_total: int = 0
    disk_missed_tokens_total: int = 0
    """On disk by name, and torn, changed or gone when read: computed instead."""
    disk_dropped_tokens_total: int = 0
    """Evicted before they could be written."""
