"""Drives a scheduler step by step over a scripted memory, and says what an undisturbed run would have written."""

import itertools
import random
from collections import defaultdict

from ramet.radix.check import check as check_tree
from ramet.radix.key import as_tokens
from ramet.radix.node import Cursor
from ramet.runtime.detokenizer import StreamDecoder, TokenTable
from ramet.runtime.engine import Engine
from ramet.runtime.scheduler.choices import Choices
from ramet.runtime.scheduler.scheduler import Ended
from ramet.runtime.scheduler.sequence import Request
from ramet.runtime.scheduler.token_row import TokenRow
from ramet.runtime.types import Delta, Event, Failed, Finished, GenerateSpec, ProgramSpec, Sampling
from ramet.scripted.sampling import adjust, draw, log_softmax
from ramet.testing import ByteTokenizer, ManualClock, Prefix, RecordingExecutor, ScriptedModel, scripted_engine

END = ByteTokenizer.end_ids[0]
TABLE = TokenTable(pieces=ByteTokenizer().all_token_bytes, special_ids=ByteTokenizer.special_ids)
GREEDY = Sampling(temperature=0)


class Proposing:
    """Around an executor: proposes drafts, some of them right, as a grammar or a drafter would."""

    def __init__(self, inner, model: ScriptedModel, seed: int) -> None:
        self._inner, self._model, self._random = inner, model, random.Random(seed)
        self._tokens: dict[int, list[int]] = {}
        self._prompts: dict[int, int] = {}

    def execute(self, plan):
        for start in plan.starts:
            self._tokens[start.sequence_id] = [*start.prompt_tokens, *start.output_tokens]
            self._prompts[start.sequence_id] = len(start.prompt_tokens)
        result = self._inner.execute(plan)
        return result._replace(rows=[self._propose(row) for row in result.rows])

    def _propose(self, row):
        tokens = self._tokens[row.sequence_id]
        tokens.extend(row.tokens)
        if not row.tokens or self._random.random() < 0.3:
            return row
        drafts: list[int] = []
        for _ in range(self._random.randint(1, 4)):
            logits = self._model.logits(Prefix(as_tokens(tokens + drafts), self._prompts[row.sequence_id], 0))
            drafts.append(int(logits.argmax()) if self._random.random() < 0.8 else ord("?"))
        return row._replace(forced=drafts)


class Driver:
    """An engine, one step at a time, that proves after each step that no page is lost."""

    def __init__(
        self,
        model: ScriptedModel | None = None,
        *,
        checks: bool = True,
        proposes: int | None = None,
        **settings: object,
    ) -> None:
        self.model = model or ScriptedModel.seeded()
        self.clock = ManualClock()
        self.recorder: RecordingExecutor

        def wrap(executor):
            self.recorder = RecordingExecutor(executor)
            return self.recorder if proposes is None else Proposing(self.recorder, self.model, proposes)

        self.engine: Engine = scripted_engine(self.model, clock=self.clock, wrap=wrap, **settings)
        self.scheduler = self.engine.scheduler
        self.events: dict[int, list[Event]] = defaultdict(list)
        self.ended: dict[int, Ended] = {}
        self._ids = itertools.count()
        self._checks = checks

    def submit(
        self,
        tokens,
        spec: GenerateSpec | None = None,
        *,
        program: str = "p",
        priority: int = 0,
        namespace: str = "",
        cursor: Cursor | None = None,
        context_length: int = 1 << 20,
        choices: Choices | None = None,
        num_known: int = 0,
        tenant: str = "",
    ) -> int:
        spec = spec or GenerateSpec(max_tokens=8, sampling=GREEDY, ignore_eos=True)
        request = Request(
            request_id=next(self._ids),
            tokens=tokens if isinstance(tokens, TokenRow) else TokenRow(tokens),
            spec=spec,
            program=ProgramSpec(program_id=program, priority=priority, tenant=tenant),
            namespace=namespace,
            cursor=cursor,
            num_known=num_known,
            decoder=StreamDecoder(TABLE, stops=spec.stop, include_stop=spec.include_stop, min_tokens=spec.min_tokens),
            end_token_ids=frozenset({END}),
            context_length=context_length,
            choices=choices,
        )
        self.scheduler.submit(request)
        return request.request_id

    def step(self) -> None:
        self.clock.advance(0.01)
        for request_id, event in self.engine.step():
            self.events[request_id].append(event)
        for ended in self.scheduler.take_ended():
            self.ended[ended.seq.id] = ended
        if self._checks:
            self.check()

    def check(self) -> None:
        self.scheduler.check()
        if self.scheduler.cache.tree is not None:
            check_tree(self.scheduler.cache.tree)

    def run(self, max_steps: int = 10_000) -> None:
        """Until nothing is left to do."""
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps")

    def last(self, request_id: int) -> Finished | Failed:
        event = self.events[request_id][-1]
        assert isinstance(event, Finished | Failed)
        return event

    def output(self, request_id: int) -> list[int]:
        """Tokens that were streamed."""
        return [token for event in self.events[request_id] if isinstance(event, Delta) for token in event.tokens]

    def text(self, request_id: int) -> str:
        return "".join(event.text for event in self.events[request_id] if isinstance(event, Delta))

    @property
    def num_computed(self) -> int:
        return self.recorder.num_computed


def undisturbed(model: ScriptedModel, prompt, spec: GenerateSpec) -> list[int]:
    """The tokens by the definition: one model call each, nothing cached, nobody else there. For seeded or greedy
    specs."""
    tokens, output = list(prompt), []
    while len(output) < (spec.max_tokens or 0):
        logits = model.logits(Prefix(as_tokens(tokens), len(prompt), 0))
        adjusted = adjust(logits, spec.sampling, prompt, output)
        if len(output) < spec.min_tokens:
            adjusted[END] = -float("inf")
        token = draw(adjusted, spec.sampling, ((spec.sampling.seed or 0) & 0xFFFF_FFFF_FFFF_FFFF, len(output)))
        if token == END and not spec.ignore_eos:
            break
        output.append(token)
        tokens.append(token)
    return output


def prompt_logprobs(model: ScriptedModel, prompt, start: int) -> list[tuple[int, float | None]]:
    """Of each prompt token from `start` on, by the definition."""
    found: list[tuple[int, float | None]] = []
    for place in range(start, len(prompt)):
        if place == 0:
            found.append((prompt[0], None))
            continue
        logits = model.logits(Prefix(as_tokens(prompt[:place]), len(prompt), 0))
        found.append((prompt[place], float(log_softmax(logits)[prompt[place]])))
    return found
