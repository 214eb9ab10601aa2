"""Runtime policies: how they are stored, shown, and capped; the tighter word always wins.

Pure. A row without one means the law's default, which every answer spells out, so that a worker in
any language finds each member in its claim.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs
from msgspec.json import decode, encode

from feltd.model.grant import RuntimeCaps
from feltd.model.policy import RuntimePolicy

DEFAULT = RuntimePolicy()
DEFAULT_TEXT = encode(DEFAULT).decode()
#: The column of a workload that says nothing of its own.
NOTHING_SAID = "{}"

#: From tight to loose.
ORDERS: Mapping[str, Sequence[str]] = {
    "network_policy": ("none", "loopback", "inherit"),
    "filesystem_policy": ("none", "scratch", "inherit"),
    "secret_policy": ("none", "inherit"),
    "artifact_policy": ("none", "references"),
}
BOUNDS = ("max_cpu_millis", "max_memory_bytes", "max_duration_ms")


def written(policy: RuntimePolicy) -> str:
    """The column of a policy."""
    return NOTHING_SAID if policy == DEFAULT else encode(policy).decode()


def told(column: str) -> str:
    """The policy of a column as JSON with every member, as a claim carries it."""
    return DEFAULT_TEXT if column == NOTHING_SAID else column


def of(column: str) -> RuntimePolicy:
    """The policy of a column."""
    return DEFAULT if column == NOTHING_SAID else decode(column, type=RuntimePolicy)


def capped(policy: RuntimePolicy, caps: RuntimeCaps | None) -> RuntimePolicy:
    """The policy within what a grant allows at most: member by member the tighter of both."""
    if caps is None:
        return policy
    tighter: dict[str, object] = {}
    for member in BOUNDS:
        asked, most = getattr(policy, member), getattr(caps, member)
        if most is not None and (asked is None or asked > most):
            tighter[member] = most
    for member, order in ORDERS.items():
        asked, most = getattr(policy, member), getattr(caps, member)
        if most is not None and order.index(asked) > order.index(most):
            tighter[member] = most
    return structs.replace(policy, **tighter) if tighter else policy
