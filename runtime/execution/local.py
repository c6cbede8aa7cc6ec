"""LocalExecutor: a step's ints, worked in tensors on this machine's device. Decides nothing.

    copies -> batch -> forward -> followers' logprobs -> places to draw at -> sample -> accepted drafts, forced tokens

What goes wrong with one row (logits that are not finite, a grammar that is refused) is a value in its SampledRow; the
other rows do not notice.
"""

import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ramet.runtime.errors import NotBuilt
from ramet.runtime.execution.grammar import GrammarCompiler
from ramet.runtime.execution.mover import PageMover
from ramet.runtime.execution.sequences import ExecutedSequence, SequenceStarter, failed
from ramet.runtime.execution.tensors import BatchBuilder, RowOutputs
from ramet.runtime.models.base import Model
from ramet.runtime.models.batch import KVPool
from ramet.runtime.sampling.logprobs import token_logprobs
from ramet.runtime.sampling.sampler import NOT_FINITE, Drawn, DrawRow, sample
from ramet.runtime.types import (
    Failed,
    PageCopy,
    PageMove,
    PlannedRow,
    SampledRow,
    StepPlan,
    StepResult,
    TokenLogprob,
)

if TYPE_CHECKING:
    from ramet.runtime.execution.device_masks import DeviceMaskConfig, DeviceMasks

_LOGPROB_ROWS = 256
"""Rows of logits whose logprobs are worked out at once: bounds the extra memory of long prompt logprobs."""


class LocalExecutor:
    """Runs plans on one model and one pool. One thread at a time."""

    def __init__(
        self,
        model: Model,
        kv: KVPool,
        *,
        vocabulary_size: int,
        end_ids: Sequence[int] = (),
        compile_grammar: GrammarCompiler | None = None,
        seed: int | None = None,
        num_torch_threads: int | None = None,
        mover: PageMover | None = None,
        device_masks: "DeviceMaskConfig | bool | None" = None,
    ) -> None:
        """vocabulary_size    the tokenizer's: logits past it are the model's padding, and never drawn
        end_ids            the model's end tokens: not drawn before min_tokens
        compile_grammar    None: no sequence has a grammar
        seed               of the sequences that bring none; None: another one in each process
        num_torch_threads  set on the thread that executes, at its first step: 1 where the model brings threads of its
                           own, for torch's then only cost wake-ups; None: as they are
        mover              to the disk tier and back; None: pages live on the device only
        device_masks       grammars on the device of the logits, or masks from the host; None: on it unless it is a CPU
        """
        self.mover = mover
        self._num_torch_threads = num_torch_threads
        self._model, self._kv, self.kv = model, kv, kv
        self._vocabulary_size = vocabulary_size
        self.device_masks = self._device_masks(device_masks, kv.keys[0].device, vocabulary_size)
        """None: the host makes all masks."""
        self.num_device_masks = self.num_host_masks = 0
        """Places that were drawn under a grammar, by who made the mask."""
        self._builder = BatchBuilder(kv.page_size, kv.keys[0].device)
        self._starter = SequenceStarter(
            vocabulary_size=vocabulary_size,
            end_ids=end_ids,
            compile_grammar=compile_grammar,
            seed=secrets.randbits(64) if seed is None else seed,
            device_masks=self.device_masks,
        )
        self._sequences: dict[int, ExecutedSequence | Failed] = {}

    @property
    def num_sequences(self) -> int:
        """Sequences whose state is kept."""
        return len(self._sequences)

    def seed_of(self, sequence_id: int) -> int:
        """The seed of a sequence that brings none: with it, a checkpoint goes on with the same noise."""
        return self._starter.seed_of(sequence_id)

    def execute(self, plan: StepPlan) -> StepResult:
        """Copies, forward, logprobs, grammar, sampling. Rows come back in the plan's order."""
        began = time.perf_counter()
        if self._num_torch_threads is not None:
            torch.set_num_threads(self._num_torch_threads)  # OpenMP's number is the calling thread's
            self._num_torch_threads = None
        with torch.inference_mode():
            for sequence_id in plan.ends:
                self._forget(sequence_id)
            for start in plan.starts:
                self._forget(start.sequence_id)
                self._sequences[start.sequence_id] = self._starter.start(start)
            self.move(plan.moves)  # what leaves, before anything is written over it
            self._copy_pages(plan.copies)
            rows = self._run(plan) if plan.rows else []
        return StepResult(rows, compute_s=time.perf_counter() - began)

    def _forget(self, sequence_id: int) -> None:
        ended = self._sequences.pop(sequence_id, None)
        if self.device_masks is not None and isinstance(ended, ExecutedSequence) and ended.slot is not None:
            self.device_masks.leave(ended.slot)

    @staticmethod
    def _device_masks(
        wanted: "DeviceMaskConfig | bool | None", device: torch.device, vocabulary_size: int
    ) -> "DeviceMasks | None":
        if wanted is False or (wanted is None and device.type == "cpu"):
            return None
        from ramet.runtime.execution.device_masks import DeviceMasks  # late: it comes with the grammars' tables

        return DeviceMasks(device, vocabulary_size, None if isinstance(wanted, bool) else wanted)

    def move(self, moves: Sequence[PageMove]) -> None:
        if not moves:
            return
        if self.mover is None:
            raise NotBuilt("moving KV pages without a tier", hint="Give the executor a mover (`--kv-disk DIR`).")
        self.mover.move(moves)

    def _run(self, plan: StepPlan) -> list[SampledRow]:
        batch, outputs = self._builder.build(plan)
        logits = self._model.forward(batch, self._kv)[:, : self._vocabulary_size]
        followed = self._follower_logprobs(plan.rows, outputs, logits)  # before sampling, which changes the logits
        drawn = self._draw(plan.rows, outputs, logits)
        return [
            self._sampled(row, places, logprobs)
            for row, places, logprobs in zip(plan.rows, drawn, followed, strict=True)
        ]

    def _draw(self, rows: Sequence[PlannedRow], outputs: Sequence[RowOutputs], logits: Tensor) -> list[list[Drawn]]:
        """What was drawn at each row's places; nothing for rows that want nothing or have failed."""
        places: list[DrawRow] = []
        wanted: list[int] = []
        counts: list[int] = []
        step = None if self.device_masks is None else self.device_masks.new_step()
        for row, output in zip(rows, outputs, strict=True):
            sequence = self._sequences.get(row.sequence_id)
            is_line = row.parents is None or row.num_sampled <= 1
            own: list[DrawRow] = []
            if row.num_sampled and is_line and isinstance(sequence, ExecutedSequence):
                own = sequence.places(row, step, len(places))
            places += own
            wanted += output.sampled[: len(own)]
            counts.append(len(own))
        self.num_device_masks += sum(place.mask_row is not None for place in places)
        self.num_host_masks += sum(place.grammar is not None for place in places)
        logits = logits if len(wanted) == len(logits) else logits[wanted]
        if step is None:
            drawn = iter(sample(logits, places))
        else:
            for at, words in step.run().items():
                places[at] = places[at]._replace(mask_row=None, grammar=words)
            drawn = iter(sample(logits, places, step.words, step.commit))
        return [[next(drawn) for _ in range(count)] for count in counts]

    def _sampled(self, row: PlannedRow, drawn: Sequence[Drawn], logprobs: Sequence[TokenLogprob]) -> SampledRow:
        sequence = self._sequences.get(row.sequence_id)
        if isinstance(sequence, Failed):
            return SampledRow(row.sequence_id, (), error=sequence)
        if row.num_sampled > 1 and row.parents is not None:
            return SampledRow(
                row.sequence_id, (), error=failed("drafts in a tree are not built", code="not_implemented")
            )
        if any(logprob.logprob != logprob.logprob for logprob in logprobs):  # NaN is not equal to itself
            return SampledRow(row.sequence_id, (), error=failed(NOT_FINITE))
        if not row.num_sampled:
            return SampledRow(row.sequence_id, (), follower_logprobs=logprobs)
        assert sequence is not None, f"sequence {row.sequence_id} samples, but was never started"
        return sequence.take(row, drawn)._replace(follower_logprobs=logprobs)

    def _follower_logprobs(
        self, rows: Sequence[PlannedRow], outputs: Sequence[RowOutputs], logits: Tensor
    ) -> list[list[TokenLogprob]]:
        """Per row, of the model's own logits."""
        at = [index for output in outputs for index in output.followed]
        tokens = [token for row in rows for token in row.followers]
        num_top = [self._num_top(row) for row in rows for _ in row.followers]
        found: list[TokenLogprob] = []
        for begin in range(0, len(at), _LOGPROB_ROWS):
            part = slice(begin, begin + _LOGPROB_ROWS)
            found += token_logprobs(logits[at[part]], tokens[part], num_top[part])
        split = iter(found)
        return [[next(split) for _ in row.followers] for row in rows]

    def _num_top(self, row: PlannedRow) -> int:
        sequence = self._sequences.get(row.sequence_id)
        return sequence.num_top if isinstance(sequence, ExecutedSequence) else 0

    def _copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """The heads of pages, layer by layer. All are read before any is written: a page that gives its head may,
        evicted meanwhile, be another's target."""
        if not copies:
            return
        size = self._kv.page_size
        source, target = (
            torch.from_numpy(np.concatenate([page * size + np.arange(copy.num_tokens) for page, copy in pages]))
            for pages in ([(copy.source, copy) for copy in copies], [(copy.target, copy) for copy in copies])
        )
        kv = self._kv
        for pages in (*kv.keys, *kv.values, *(kv.key_scales or ()), *(kv.value_scales or ())):
            flat = pages.view(-1, *pages.shape[2:])  # [N * S, ...]
            flat.index_copy_(0, target.to(flat.device), flat[source.to(flat.device)])
