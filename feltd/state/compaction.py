"""Compaction: clears what is past its time and needed by nobody, one bounded slice at a time.

Each slice is one operation of the writer and whole in itself: a crash between two, or in the middle
of one, loses nothing and leaves every promise true. Nothing here decides how fast; the daemon does.
"""

from collections.abc import Callable

from msgspec.json import encode

from feltd.clock import Now
from feltd.identity import audit, principals
from feltd.mesh import events
from feltd.model.base import Ask
from feltd.model.compaction import (
    Floor,
    HeldBack,
    Outcome,
    Policy,
    Pruned,
    Slice,
    Table,
)
from feltd.state import log_floors, prune_history, prune_people, prune_remains, prune_workloads
from feltd.store.tx import Tx

#: Rows one slice may be asked to clear.
LIMIT_MAX = 500
#: Logs that one answer names as held back.
HELD_MAX = 100

#: In the order of a round.
WALKS: dict[Table, Callable[[Tx, int, Policy, Now], Pruned]] = {
    "changes": log_floors.prune,
    "records": prune_remains.prune_records,
    "firings": prune_remains.prune_firings,
    "workloads": prune_workloads.prune,
    "groups": prune_workloads.prune_groups,
    "tombstones": prune_remains.prune_tombstones,
    "decisions": prune_history.prune_decisions,
    "events": prune_history.prune_events,
    "audit": prune_history.prune_audit,
    "sessions": prune_people.prune_sessions,
    "keys": prune_people.prune_keys,
    "workers": prune_people.prune_workers,
}
#: What a round itself leaves behind: cleared alone, it is not worth telling of.
OF_ITSELF = {"events", "audit"}


def compact(tx: Tx, cmd: Slice, now: Now) -> Pruned:
    """Clear at most about `limit` (1 to LIMIT_MAX) rows of one table; `more`: call again.

    Nothing that an enabled trigger, a consumer, unfinished work, a group or a key still needs goes.
    Repeating with nothing to clear writes nothing.
    """
    return WALKS[cmd.table](tx, max(1, min(cmd.limit, LIMIT_MAX)), cmd.policy, now)


def permit(tx: Tx, ask: Ask[None], now: Now) -> None:
    """Before a compaction by hand. Refuses as every verb does whose key has ended."""
    principals.confirm(tx, ask.caller, now)


def by_hand(tx: Tx, ask: Ask[Outcome], now: Now) -> Outcome:
    """Write down that somebody compacted, where that cleared anything; the outcome as it came."""
    if ask.body.pruned:
        audit.act(tx, now, str(ask.caller.subject), "compact", "database", body=encode(ask.body))
    return ask.body


def told(tx: Tx, pruned: dict[str, int], now: Now) -> None:
    """End a round that cleared something with one event, unless that was but its own traces."""
    if pruned.keys() - OF_ITSELF:
        events.tell(tx, now, "compact", actor="service:feltd")


def held_back(tx: Tx, policy: Policy, now: Now) -> tuple[HeldBack, ...]:
    """The logs that hold changes past their time, each with who needs them. Only reads."""
    floors = log_floors.floors(tx, now, policy, HELD_MAX)
    return tuple(found for floor in floors if (found := _holder(floor)) is not None)


def _holder(floor: Floor) -> HeldBack | None:
    if floor.seq >= floor.past_seq:
        return None
    return HeldBack(floor.tenant_id, floor.held[0].by, floor.held[0].seq)
