"""A backend without a model: it answers what it is told, a byte a token. For tests of programs, and of this package.

Deterministic and exact about what an engine promises: forks share their past, rollback forgets, cached tokens are
counted (a token is computed once per path), aborted generations free themselves. Chat turns are written as ChatML. It
enforces no grammar; a reply that breaks one is the test's own.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ramet.runtime.errors import BadRequest, NotFound
from ramet.runtime.types import (
    BranchHandle,
    Delta,
    EngineStatistics,
    Event,
    Finished,
    FinishReason,
    GapKind,
    GenerateSpec,
    Mark,
    Message,
    MessagesPiece,
    ModelCard,
    Piece,
    ProgramSpec,
    Selection,
    SelectMethod,
    Started,
    TextPiece,
    TokenLogprob,
    TokensPiece,
    Usage,
)


class Prompt(NamedTuple):
    """What a rule sees."""

    text: str
    """Everything on the branch, as the model sees it."""
    spec: GenerateSpec
    number: int
    """How many generations were asked for before this one."""


Reply = str | BaseException
Rule = Callable[[Prompt], Reply]
Script = str | Sequence[Reply] | Mapping[str, Reply] | Rule
"""The same text always; texts in turn, round and round; the first key found latest in the prompt decides; or a
function. An exception is raised in place of an answer."""


def as_rule(script: Script) -> Rule:
    """What to answer to a prompt."""
    if isinstance(script, str):
        return lambda prompt: script
    if isinstance(script, Mapping):
        return lambda prompt: _latest(script, prompt.text)
    if callable(script):
        return script
    replies = list(script)
    return lambda prompt: replies[prompt.number % len(replies)]


def _latest(script: Mapping[str, Reply], text: str) -> Reply:
    found = {key: text.rfind(key) for key in script}
    best = max(found, key=lambda key: (found[key], len(key)))
    if found[best] < 0:
        raise BadRequest(expected=f"one of {list(script)} in the prompt", got=text[-200:], at="Scripted")
    return script[best]


class _Path:
    """One branch: bytes, how many of them were computed, and whether a turn is open."""

    def __init__(self, tokens: list[int], computed: int, open_turn: bool) -> None:
        self.tokens, self.computed, self.open_turn = tokens, computed, open_turn


class ScriptedClient:
    """An EngineClient. `sent` counts the bytes of text that were handed over, so that a test can see that a fork sends
    none."""

    def __init__(
        self, script: Script = "ok", *, prefer: Mapping[str, float] | None = None, delay_s: float = 0.0
    ) -> None:
        self.rule = as_rule(script)
        self.prefer = dict(prefer or {})
        self.delay_s = delay_s
        self.branches: dict[BranchHandle, _Path] = {}
        self.programs: dict[str, ProgramSpec] = {}
        self.gaps: list[tuple[GapKind, str | None, float | None]] = []
        self.calls: list[str] = []
        """Verbs in the order they came."""
        self.sent = 0
        self.running = 0
        self.aborted = 0
        self._numbers = iter(range(10**9))
        self._asked = 0
        self._usage: dict[str, Usage] = {}

    @property
    def card(self) -> ModelCard:
        return ModelCard(
            name="scripted", model_type="scripted", context_length=1 << 20, vocabulary_size=256, end_token_ids=(0,)
        )

    def _path(self, branch: BranchHandle) -> _Path:
        if branch not in self.branches:
            raise NotFound(f"there is no branch {branch.branch_id} in program {branch.program_id}")
        return self.branches[branch]

    async def open(self, program: ProgramSpec) -> BranchHandle:
        self.calls.append("open")
        identity = program.program_id or f"program-{next(self._numbers)}"
        self.programs[identity] = program
        handle = BranchHandle(identity, next(self._numbers))
        self.branches[handle] = _Path([], 0, False)
        return handle

    async def extend(self, branch: BranchHandle, pieces: Sequence[Piece]) -> None:
        self.calls.append("extend")
        path = self._path(branch)
        for piece in pieces:
            if isinstance(piece, TextPiece):
                self._append(path, piece.text)
            elif isinstance(piece, TokensPiece):
                path.tokens += piece.tokens
            else:
                self._append_messages(path, piece)

    def _append(self, path: _Path, text: str) -> None:
        self.sent += len(text.encode())
        path.tokens += text.encode()

    def _append_messages(self, path: _Path, piece: MessagesPiece) -> None:
        if path.open_turn:
            self._append(path, "<|im_end|>\n")
            path.open_turn = False
        last = len(piece.messages) - 1
        for index, message in enumerate(piece.messages):
            stays_open = piece.continue_final_message and index == last
            end = "" if stays_open else "<|im_end|>\n"
            self._append(path, f"<|im_start|>{message.role}\n{_content(message)}{end}")
            path.open_turn = stays_open
        if piece.add_generation_prompt:
            self._append(path, "<|im_start|>assistant\n")
            path.open_turn = True

    async def generate(self, branch: BranchHandle, spec: GenerateSpec) -> AsyncIterator[Event]:
        self.calls.append("generate")
        path = self._path(branch)
        prompt, cached = len(path.tokens), path.computed
        path.computed = prompt
        number, self._asked = self._asked, self._asked + 1
        reply = self.rule(Prompt(_text(path.tokens), spec, number))
        yield Started(prompt_tokens=prompt, cached_tokens=cached)
        if isinstance(reply, BaseException):
            raise reply
        text, reason, stop = _shape(reply, spec)
        self.running += 1
        try:
            for delta in _deltas(text, spec):
                await asyncio.sleep(self.delay_s)
                self._path(branch).tokens += delta.tokens
                yield delta
        except BaseException:
            self.aborted += 1
            raise
        finally:
            self.running -= 1
        size = len(text.encode())
        path.computed = len(path.tokens)
        usage = self._count(branch, Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=size))
        yield Finished(reason=reason, stop=stop, usage=usage)

    def _count(self, branch: BranchHandle, usage: Usage) -> Usage:
        before = self._usage.get(branch.program_id, Usage())
        fields = Usage.__struct_fields__
        self._usage[branch.program_id] = Usage(**{f: getattr(before, f) + getattr(usage, f) for f in fields})
        return usage

    async def select(
        self,
        branch: BranchHandle,
        choices: Sequence[str],
        method: SelectMethod = "total",
        temperature: float = 0.0,
        seed: int | None = None,
        append: bool = True,
    ) -> Selection:
        """The choice with the highest weight in `prefer` (1 where it says nothing); the first of equals."""
        self.calls.append("select")
        await asyncio.sleep(self.delay_s)
        path = self._path(branch)
        prompt, cached, path.computed = len(path.tokens), path.computed, len(path.tokens)
        weights = [self.prefer.get(choice, 1.0) for choice in choices]
        total = sum(weights)
        probabilities = [weight / total for weight in weights]
        index = max(range(len(choices)), key=lambda i: weights[i])
        logprobs = [
            [TokenLogprob(t, math.log(p) / len(c.encode())) for t in c.encode()]
            for c, p in zip(choices, probabilities, strict=True)
        ]
        if append:
            path.tokens += choices[index].encode()
            path.computed = len(path.tokens)
        usage = self._count(branch, Usage(prompt_tokens=prompt, cached_tokens=cached))
        scores = [math.log(p) for p in probabilities]
        return Selection(index=index, probabilities=probabilities, scores=scores, logprobs=logprobs, usage=usage)

    async def fork(self, branch: BranchHandle, n: int) -> list[BranchHandle]:
        self.calls.append("fork")
        path = self._path(branch)
        path.computed = len(path.tokens)  # the first child to run computes the shared part; counted as the parent's
        handles = [BranchHandle(branch.program_id, next(self._numbers)) for _ in range(n)]
        for handle in handles:
            self.branches[handle] = _Path(list(path.tokens), path.computed, path.open_turn)
        return handles

    async def mark(self, branch: BranchHandle) -> Mark:
        self.calls.append("mark")
        path = self._path(branch)
        return Mark(len(path.tokens), int(path.open_turn))

    async def rollback(self, branch: BranchHandle, mark: Mark) -> None:
        self.calls.append("rollback")
        path = self._path(branch)
        del path.tokens[mark.num_tokens :]
        path.computed, path.open_turn = min(path.computed, mark.num_tokens), bool(mark.serial)

    async def gap(
        self, branch: BranchHandle, kind: GapKind, tool: str | None = None, expected_s: float | None = None
    ) -> None:
        self.calls.append("gap")
        self._path(branch)
        self.gaps.append((kind, tool, expected_s))

    async def close(self, branch: BranchHandle, *, program: bool = False) -> Usage:
        self.calls.append("close")
        if program:
            for handle in [h for h in self.branches if h.program_id == branch.program_id]:
                del self.branches[handle]
        else:
            self.branches.pop(branch, None)
        return self._usage.get(branch.program_id, Usage())

    async def tokens(self, branch: BranchHandle) -> list[int]:
        return list(self._path(branch).tokens)

    async def text(self, branch: BranchHandle) -> str:
        return _text(self._path(branch).tokens)

    async def tokenize(self, text: str, *, allow_special: bool = False, add_bos: bool = False) -> list[int]:
        return list(text.encode())

    async def detokenize(self, tokens: Sequence[int], *, skip_special: bool = False) -> str:
        return _text(tokens)

    async def statistics(self) -> EngineStatistics:
        return EngineStatistics(num_running=self.running, num_branches=len(self.branches), aborted_total=self.aborted)

    async def flush_cache(self) -> int:
        return 0


def _text(tokens: Iterable[int]) -> str:
    return bytes(tokens).decode(errors="replace")


def _content(message: Message) -> str:
    if isinstance(message.content, list):
        return "".join(str(part.get("text", "")) for part in message.content)
    return message.content or ""


def _shape(reply: str, spec: GenerateSpec) -> tuple[str, FinishReason, str | None]:
    """The reply as the spec lets it through: cut before the first stop, then at max_tokens."""
    found = [(reply.find(stop), stop) for stop in spec.stop if stop in reply]
    text, reason, matched = reply, "stop", None
    if found:
        at, matched = min(found)
        text = reply[: at + (len(matched) if spec.include_stop else 0)]
    data = text.encode()
    if spec.max_tokens is not None and len(data) > spec.max_tokens:
        text, reason, matched = data[: spec.max_tokens].decode(errors="ignore"), "length", None
    return text, reason, matched  # type: ignore[return-value]


def _deltas(text: str, spec: GenerateSpec) -> Iterable[Delta]:
    for start in range(0, len(text), spec.stream_interval):
        part = text[start : start + spec.stream_interval]
        tokens = list(part.encode())
        logprobs = None
        if spec.logprobs is not None:
            logprobs = [TokenLogprob(token, -0.5, [(token, -0.5)][: spec.logprobs]) for token in tokens]
        yield Delta(text=part, tokens=tokens, logprobs=logprobs)


class Scripted:
    """A backend that answers from a script: `Scripted("yes")`, `Scripted(["first", "second"])`,
    `Scripted({"capital": "Paris"})` or `Scripted(lambda prompt: ...)`.

    prefer: choice -> weight, for select. delay_s: seconds per event, to see concurrency and cancellation.
    """

    def __init__(
        self, script: Script = "ok", *, prefer: Mapping[str, float] | None = None, delay_s: float = 0.0
    ) -> None:
        self.client = ScriptedClient(script, prefer=prefer, delay_s=delay_s)

    async def connect(self) -> ScriptedClient:
        return self.client
