"""From the logprobs of choices to a winner and real probabilities. Numbers only: knows no tokens, no tree, no
engine."""

import math
import random
from collections.abc import Sequence
from typing import NamedTuple, assert_never

from ramet.runtime.types import SelectMethod


class ChoiceLogprobs(NamedTuple):
    """Of one choice."""

    tokens: Sequence[float]
    """Each of its tokens, given the text and the tokens before."""
    end: float | None = None
    """That the text ends after it; None: the method does not ask."""
    unconditional: Sequence[float] = ()
    """Its tokens without the text, where the method asks."""


def counts_end(method: SelectMethod) -> bool:
    return method == "total"


def needs_unconditional(method: SelectMethod) -> bool:
    return method == "unconditional_likelihood_normalized"


def scores(choices: Sequence[ChoiceLogprobs], method: SelectMethod) -> list[float]:
    """What the method ranks by; higher wins.

    total                                 log of the probability of the whole option, its end included
    token_length_normalized               mean logprob of its tokens
    greedy_token_selection                log of the share of greedy agreement, see `_greedy`
    unconditional_likelihood_normalized   mean of (logprob given the text - logprob without it)
    """
    match method:
        case "total":
            return [math.fsum(choice.tokens) + (choice.end or 0.0) for choice in choices]
        case "token_length_normalized":
            return [_mean(choice.tokens) for choice in choices]
        case "greedy_token_selection":
            return _greedy([choice.tokens for choice in choices])
        case "unconditional_likelihood_normalized":
            gains = ([a - b for a, b in zip(c.tokens, c.unconditional, strict=True)] for c in choices)
            return [_mean(gain) for gain in gains]
    assert_never(method)


def probabilities(scored: Sequence[float]) -> list[float]:
    """Softmax: for `total`, each option's share of the probability of all of them."""
    highest = max(scored)
    if highest == -math.inf:
        return [1 / len(scored)] * len(scored)
    weights = [math.exp(score - highest) for score in scored]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def pick(scored: Sequence[float], names: Sequence[str], temperature: float, seed: int | None) -> int:
    """The highest score; with a temperature, drawn in proportion to exp(score / temperature). Neither depends on the
    order in which the choices were given: equal scores are settled by name, draws are made in the names' order."""
    by_name = sorted(range(len(scored)), key=lambda index: names[index])
    if temperature < 1e-5:
        return max(by_name, key=lambda index: scored[index])
    shares = probabilities([score / temperature for score in scored])
    return random.Random(seed).choices(by_name, [shares[index] for index in by_name])[0]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _greedy(choices: Sequence[Sequence[float]]) -> list[float]:
    """Walk down token by token and keep the options whose token is the most probable at that place; an option that is
    over is compared by the mean of what it had. The survivor's score is 0; that of the others says how far behind they
    were where they fell out, and how early that was."""
    longest = max(len(tokens) for tokens in choices)
    padded = [[*tokens, *[_mean(tokens)] * (longest - len(tokens))] for tokens in choices]
    alive = list(range(len(choices)))
    found = [0.0] * len(choices)
    for place in range(longest):
        best = max(padded[index][place] for index in alive)
        left = [index for index in alive if padded[index][place] == best]
        for index in set(alive) - set(left):
            found[index] = padded[index][place] - best - (longest - place)
        alive = left
    return found
