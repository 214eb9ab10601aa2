"""Which of two words on a runtime policy is the tighter: one order for grants, workloads, workers.

Pure. A child grant, a creation, a claim and a worker's own flags are all narrowed by it, so that
none of them can mean another order.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from feltd.model.grant import RuntimeCaps
from feltd.model.policy import RuntimePolicy

#: From tight to loose.
ORDERS: Mapping[str, Sequence[str]] = {
    "network_policy": ("none", "loopback", "inherit"),
    "filesystem_policy": ("none", "scratch", "inherit"),
    "secret_policy": ("none", "inherit"),
    "artifact_policy": ("none", "references"),
}
BOUNDS = ("max_cpu_millis", "max_memory_bytes", "max_duration_ms")


def capped(policy: RuntimePolicy, caps: RuntimeCaps | None) -> RuntimePolicy:
    """The policy within caps: member by member the tighter of both."""
    if caps is None:
        return policy
    return structs.replace(policy, **_tighter(policy, caps))


def meeting(one: RuntimeCaps | None, other: RuntimeCaps | None) -> RuntimeCaps | None:
    """The caps that hold where both do: member by member the tighter of both."""
    if one is None or other is None:
        return other if one is None else one
    return structs.replace(one, **_tighter(one, other))


def _tighter(held: RuntimePolicy | RuntimeCaps, caps: RuntimeCaps) -> dict[str, object]:
    """Members in which the caps are tighter than what is held."""
    found: dict[str, object] = {}
    for member in BOUNDS:
        mine, most = getattr(held, member), getattr(caps, member)
        if most is not None and (mine is None or mine > most):
            found[member] = most
    for member, order in ORDERS.items():
        mine, most = getattr(held, member), getattr(caps, member)
        if most is not None and (mine is None or order.index(mine) > order.index(most)):
            found[member] = most
    return found
