"""A select on a branch: from texts to token ids in their context, and from logprobs to a Selection. Knows no engine.

A choice is tokenised together with the text that waits before it, for "is " + "Paris" may be other tokens than "is" and
" Paris". What all choices and the waiting text have in common is the text that is computed; the rest is the trie.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ramet.runtime.branches import Branch
from ramet.runtime.literals import Pending, TextCodec, guard
from ramet.runtime.scheduler.choices import Scores
from ramet.runtime.scheduler.token_row import TokenRow
from ramet.runtime.selection import ChoiceLogprobs, pick, probabilities, scores
from ramet.runtime.types import Selection, SelectMethod, TokenLogprob
from ramet.runtime.validation import nothing_said


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the model."""

    text: TokenRow
    """The branch's tokens, with those of the waiting text that no choice changes."""
    choices: Sequence[Sequence[int]]
    """Token ids of each choice after that."""
    names: Sequence[str]
    guarded: Sequence[str]
    """The choices' texts, special tokens in them being plain."""

    def append_to(self, branch: Branch, index: int) -> None:
        """The winner's tokens, the ones that were scored, go on the branch."""
        num_branch = len(branch.tokens)
        branch.tokens.extend(self.text[num_branch:])
        branch.tokens.extend(self.choices[index])
        branch.pending = Pending(follows="text")
        branch.conversation = branch.conversation.with_words(self.guarded[index])


def ask(branch: Branch, choices: Sequence[str], codec: TextCodec, begin_token: Callable[[], int]) -> Question:
    """Tokenise the choices where they stand."""
    if not len(branch.tokens) and not branch.pending:
        raise nothing_said()
    waiting = branch.waiting(codec).shared()
    guarded = [guard(choice, codec.special_names) for choice in choices]
    joined = [waiting.with_text(each).ids(codec) for each in guarded]
    num_common = _num_common([waiting.ids(codec), *joined])
    text = branch.tokens.fork()
    text.extend(joined[0][:num_common])
    if not len(text):
        text.append(begin_token())
    return Question(text, [list(ids[num_common:]) for ids in joined], list(choices), guarded)


def _num_common(rows: Sequence[Sequence[int]]) -> int:
    """Leading ids that all rows have in common."""
    first, last = min(map(tuple, rows)), max(map(tuple, rows))
    return next((place for place, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))


def decide(
    question: Question,
    given: Mapping[int, Scores],
    alone: Mapping[int, Scores] | None,
    method: SelectMethod,
    temperature: float,
    seed: int | None,
) -> Selection:
    """The winner, its competitors, and the numbers behind it."""
    rows = [given[index] for index in range(len(question.choices))]
    ends = [_together(row.ends) for row in rows]
    read = [
        ChoiceLogprobs(
            _values(row.tokens), end.logprob if end else None, _values(alone[index].tokens) if alone is not None else ()
        )
        for index, (row, end) in enumerate(zip(rows, ends, strict=True))
    ]
    scored = scores(read, method)
    return Selection(
        index=pick(scored, question.names, temperature, seed),
        probabilities=probabilities(scored),
        scores=scored,
        logprobs=[[*row.tokens, end] if end else [*row.tokens] for row, end in zip(rows, ends, strict=True)],
    )


def _values(logprobs: Sequence[TokenLogprob]) -> list[float]:
    return [-math.inf if each.logprob is None else each.logprob for each in logprobs]


def _together(ends: Sequence[TokenLogprob]) -> TokenLogprob | None:
    """That the text ends here, whichever end token says so; reported under the most probable of them."""
    if not ends:
        return None
    values = _values(ends)
    highest = max(values)
    if highest == -math.inf:
        return ends[0]
    total = highest + math.log(math.fsum(math.exp(value - highest) for value in values))
    return TokenLogprob(ends[values.index(highest)].token, total)
