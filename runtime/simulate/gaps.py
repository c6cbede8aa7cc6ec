"""Tool gaps with the shape of 8,911 timed coding-agent calls: a generator, and rules that decide how long to hold KV.

Half of all calls come from a shell tool whose durations depend on the command word; most calls are short and a few are
very long. A rule sees finished calls only. Holding a gap of length D up to a time tau is worth V - D if it ends in
time, else -tau (V: seconds saved by KV that is still there; one second of holding costs one second).
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Durations = NDArray[np.float64]
"""float64 [n]  seconds"""

_LEVELS = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)
TOOLS: dict[str, tuple[float, tuple[float, ...]]] = {
    "shell/test": (0.09, (0.2, 0.4, 7, 13, 100, 300)),
    "shell/python": (0.12, (0.05, 0.2, 7, 11, 18, 120)),
    "shell/install": (0.03, (0.5, 1.2, 7, 11, 42, 200)),
    "shell/vcs": (0.07, (0.01, 0.02, 0.04, 3, 9, 20)),
    "shell/list": (0.10, (0.01, 0.02, 0.04, 4, 12, 30)),
    "shell/other": (0.09, (0.01, 0.05, 1.5, 10, 30, 300)),
    "read/": (0.19, (0.005, 0.011, 0.016, 0.056, 1.6, 11)),
    "edit/": (0.19, (0.005, 0.018, 0.027, 0.06, 0.13, 8)),
    "grep/": (0.11, (0.006, 0.017, 0.027, 0.06, 2, 8)),
    "web/": (0.003, (1.4, 4, 10, 17, 23, 24)),
    "subagent/": (0.007, (5, 18, 67, 135, 360, 360)),
}
"""tool/first command word -> weight, and the quantiles of its duration (s) at `_LEVELS`."""


class ToolCall(NamedTuple):
    key: str
    duration_s: float

    @property
    def tool(self) -> str:
        return self.key.partition("/")[0]

    @property
    def command(self) -> str:
        return self.key.partition("/")[2]


def tool_calls(seed: int = 7) -> Iterator[ToolCall]:
    """Endless."""
    source = random.Random(seed)
    keys, weights = list(TOOLS), [weight for weight, _ in TOOLS.values()]
    while True:
        key = source.choices(keys, weights)[0]
        y = source.random()
        yield ToolCall(key, float(np.exp(np.interp(y, _LEVELS, np.log(TOOLS[key][1])))))


def held_value(duration_s: float, hold_s: float, value_s: float) -> float:
    """What holding up to `hold_s` was worth."""
    return value_s - duration_s if duration_s <= hold_s else -hold_s


# Rules: sorted durations of earlier calls, and V -> how long to hold -------------------------------------------------

Rule = Callable[[Durations, float], float]


def continuum(seen: Durations, value_s: float) -> float:
    """Continuum's equation 2: the observed duration (or 0) that maximises F(tau) V - tau."""
    share = np.arange(1, len(seen) + 1) / len(seen)
    return _best(seen, share * value_s - seen)


def expected_minimum(seen: Durations, value_s: float) -> float:
    """The same, with the holding time that is really paid: F(tau) V - E[min(D, tau)]."""
    count = np.arange(1, len(seen) + 1)
    paid = (np.cumsum(seen) + (len(seen) - count) * seen) / len(seen)
    return _best(seen, count / len(seen) * value_s - paid)


def effective_hazard(seen: Durations, value_s: float) -> float:
    """Hold while H(t) V >= 1, with H(t) = sup over d of P(D <= t + d | D > t) / E[min(D - t, d) | D > t]."""
    return _until(seen, best_rates(seen), value_s)


def instantaneous_hazard(seen: Durations, value_s: float) -> float:
    """The tempting mistake: the hazard of this very moment. No tool returns in its first millisecond."""
    edges = _log_edges()
    events, _ = np.histogram(seen, edges)
    exposed = np.cumsum(events[::-1])[::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = np.nan_to_num(events / exposed) / np.diff(edges)
    stop = int(np.argmax(rates * value_s < 1.0)) if (rates * value_s < 1.0).any() else len(rates) - 1
    return float(edges[stop])


def best_rates(seen: Durations) -> Durations:
    """float64 [n + 1]  H just after 0 and after each of the sorted durations; 0 after the last."""
    starts = np.concatenate([[0.0], seen])
    rates = np.zeros(len(starts))
    total = np.concatenate([[0.0], np.cumsum(seen)])
    for index in range(len(seen)):
        ends = seen[index:]
        count = np.arange(1, len(ends) + 1)
        waited = total[index + 1 :] - total[index] - count * starts[index]
        waited += (len(ends) - count) * (ends - starts[index])
        with np.errstate(divide="ignore"):
            rates[index] = np.max(count / waited)
    return rates


def _until(seen: Durations, rates: Durations, value_s: float) -> float:
    stop = int(np.argmax(rates * value_s < 1.0))
    return 0.0 if stop == 0 else float(seen[stop - 1])


def _best(seen: Durations, worth: Durations) -> float:
    best = int(np.argmax(worth))
    return float(seen[best]) if worth[best] > 0 else 0.0


def _log_edges() -> Durations:
    return np.concatenate([[0.0], np.geomspace(0.005, 3600, 49)])


class FittedRule:
    """A rule per key: refitted when the key's calls grew by a fifth, on its last 2,000; below ten of them on the last
    2,000 of all calls; before any at all, the break-even time V."""

    def __init__(self, rule: Rule, values_s: Sequence[float]) -> None:
        self._rule, self._values = rule, values_s
        self._seen: dict[str, list[float]] = {}
        self._fitted: dict[str, tuple[int, dict[float, float]]] = {}

    def hold_s(self, key: str) -> dict[float, float]:
        """V -> how long to hold a call of `key`."""
        for name in (key, ""):
            seen = self._seen.get(name, [])
            if len(seen) >= (10 if name else 1):
                return self._fit(name, seen)
        return {value: value for value in self._values}

    def learn(self, call: ToolCall) -> None:
        for name in (call.key, ""):
            self._seen.setdefault(name, []).append(call.duration_s)

    def _fit(self, name: str, seen: list[float]) -> dict[float, float]:
        num_fitted, holds = self._fitted.get(name, (0, {}))
        if len(seen) >= 1.2 * num_fitted:
            sample = np.sort(np.array(seen[-2000:]))
            holds = {value: self._rule(sample, value) for value in self._values}
            self._fitted[name] = (len(seen), holds)
        return holds
