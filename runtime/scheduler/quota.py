"""What one tenant or one program may have at once, and what happens beyond it. Counts only.

Two marks. Over the *soft* one (a share of the limit) what the tenant has cached is worth less, so its own pages go
first when room is wanted. Over the *hard* one new turns are refused, with the time after which trying again may help;
what runs, or was taken, is never touched. The hard mark counts what turns in flight hold and will hold at their start:
of a program's parallel turns, the tokens that its branches had computed before count once. Cached KV that nobody uses
refuses nobody: it can go.
"""

from collections import defaultdict
from typing import NamedTuple, Protocol

from ramet.radix.eviction import Ageing, EvictionOrder
from ramet.radix.node import Node
from ramet.runtime.config import QuotaConfig
from ramet.runtime.errors import Busy, ContextOverflow
from ramet.runtime.failures import to_failed
from ramet.runtime.scheduler.retention import RetentionOrder
from ramet.runtime.scheduler.sequence import Sequence
from ramet.runtime.types import Failed

SOFT_SHARE = 0.8
"""Of the limit, from which on a tenant's own cached pages go first."""
LOWERED = 0.01
"""What KV over the soft mark is worth, against what it would be worth."""
_LOOK_AGAIN_S = 1.0
_BEFORE_ALL = 1e9
_RETRY_S = 2.0


class _Charge(NamedTuple):
    tenant: str
    program_id: str
    num_tokens: int


class Quotas:
    """The books. `charge` a turn when it comes, say when it `started`, `release` it when it ended."""

    def __init__(self, config: QuotaConfig) -> None:
        self.config = config
        self.num_refused = 0
        self._charges: dict[int, _Charge] = {}
        self._waiting: set[int] = set()
        self._num_waiting: dict[str, int] = defaultdict(int)
        self._in_flight: dict[str, int] = defaultdict(int)
        self._of_tenant: dict[str, int] = defaultdict(int)
        self._of_program: dict[str, int] = defaultdict(int)
        self._cached: dict[str, int] = defaultdict(int)
        self._cached_of: dict[str, int] = defaultdict(int)
        self._tenant_of: dict[str, str] = {}

    # Turns -----------------------------------------------------------------------------------------------------------

    def charge(self, seq: Sequence) -> Failed | None:
        """Enter a turn, or say why it can't come in now."""
        tenant, program_id = seq.program.tenant, seq.program_id
        had = min(seq.num_known, seq.num_tokens) if self._in_flight[program_id] else 0
        need = seq.num_row_tokens - had
        refusal = self._refusal(tenant, program_id, need)
        if refusal is not None:
            self.num_refused += 1
            self._forget(program_id)
            return refusal
        self._charges[seq.id] = _Charge(tenant, program_id, need)
        self._waiting.add(seq.id)
        self._num_waiting[tenant] += 1
        self._in_flight[program_id] += 1
        self._of_tenant[tenant] += need
        self._of_program[program_id] += need
        self._tenant_of[program_id] = tenant
        return None

    def _refusal(self, tenant: str, program_id: str, need: int) -> Failed | None:
        config = self.config
        for whose, option, limit, used in (
            ("tenant", "tenant-kv-tokens", config.tenant_kv_tokens, self._of_tenant[tenant]),
            ("program", "program-kv-tokens", config.program_kv_tokens, self._of_program[program_id]),
        ):
            if limit is not None and need > limit:
                hint = f"One turn is beyond the {whose}'s quota: shorten it, or raise `--{option}`."
                return to_failed(ContextOverflow(num_tokens=need, limit=limit, hint=hint))
            if limit is not None and used + need > limit:
                said = f"the {whose}'s turns in flight hold {used} of the {limit} KV tokens that it may have, and this"
                return to_failed(Busy(f"{said} one wants {need} more (`--{option}`)", retry_after_s=_RETRY_S))
        most = config.tenant_waiting
        if most is not None and self._num_waiting[tenant] >= most:
            said = f"{most} turns of the tenant wait already, its limit (`--tenant-waiting`)"
            return to_failed(Busy(said, retry_after_s=_RETRY_S))
        return None

    def started(self, seq: Sequence) -> None:
        """It waits no more. Once it was let in it may wait again, and counts as running."""
        if seq.id in self._waiting:
            self._waiting.discard(seq.id)
            self._num_waiting[seq.program.tenant] -= 1

    def release(self, seq: Sequence) -> None:
        charge = self._charges.pop(seq.id, None)
        if charge is None:
            return
        self.started(seq)
        self._in_flight[charge.program_id] -= 1
        self._of_tenant[charge.tenant] -= charge.num_tokens
        self._of_program[charge.program_id] -= charge.num_tokens
        self._forget(charge.program_id)

    def _forget(self, program_id: str) -> None:
        """Nothing of a program is in flight: it leaves the books, but for what is cached."""
        if not self._in_flight[program_id]:
            self._in_flight.pop(program_id), self._of_program.pop(program_id, None)
            if not self._cached_of.get(program_id):
                self._cached_of.pop(program_id, None)
                self._tenant_of.pop(program_id, None)

    # What is cached --------------------------------------------------------------------------------------------------

    def cached(self, owner: str, num_tokens: int) -> None:
        """So many more tokens lie in the tree that a program computed; fewer where negative."""
        tenant = self._tenant_of.get(owner)
        if tenant is None:
            return
        self._cached_of[owner] += num_tokens
        self._cached[tenant] += num_tokens
        if not self._cached_of[owner] and not self._in_flight.get(owner):
            del self._cached_of[owner], self._tenant_of[owner]

    def is_over(self, owner: str) -> bool:
        """Does the tenant of a program keep more than its soft mark?"""
        tenant, limit = self._tenant_of.get(owner), self.config.tenant_kv_tokens
        return tenant is not None and limit is not None and self._cached[tenant] > SOFT_SHARE * limit

    # Telling ---------------------------------------------------------------------------------------------------------

    def held_tokens(self, tenant: str) -> int:
        """That the tenant's turns in flight are charged for."""
        return self._of_tenant.get(tenant, 0)

    def cached_tokens(self, tenant: str) -> int:
        """That its programs have in the tree."""
        return self._cached.get(tenant, 0)


class OverQuotaFirst:
    """Around an eviction order: pages of a tenant over its soft mark are worth less than they would be."""

    def __init__(self, inner: EvictionOrder, quotas: Quotas, *, refresh_s: float = _LOOK_AGAIN_S) -> None:
        """`refresh_s`: who is over its mark is looked at again after so long"""
        self._inner, self._quotas = inner, quotas
        self.refresh_s = min(refresh_s, inner.refresh_s)

    @property
    def name(self) -> str:
        return self._inner.name

    def rank(self, node: Node, now: float) -> float:
        """Without prices all of them go before all others, in their own order."""
        rank = self._inner.rank(node, now)
        return rank - _BEFORE_ALL if self._quotas.is_over(node.owner) else rank


class PricedOrder(EvictionOrder, Ageing, Protocol):
    """Ranks are prices that age."""


class PricedOverQuotaFirst(OverQuotaFirst):
    """The same around an order by price: what is over the mark has a fraction of its price."""

    def __init__(self, inner: PricedOrder, quotas: Quotas) -> None:
        super().__init__(inner, quotas)
        self._prices = inner

    def rank(self, node: Node, now: float) -> float:
        rank = self._inner.rank(node, now)
        return rank * LOWERED if self._quotas.is_over(node.owner) else rank

    def good_for_s(self, node: Node, now: float) -> float:
        return min(_LOOK_AGAIN_S, self._prices.good_for_s(node, now))


def over_quota_first(inner: EvictionOrder, quotas: Quotas) -> EvictionOrder:
    """`inner`, minding the soft marks."""
    if isinstance(inner, RetentionOrder):
        return PricedOverQuotaFirst(inner, quotas)
    return OverQuotaFirst(inner, quotas)
