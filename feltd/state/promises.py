"""All that feltd promises, the mesh's and those of state together, as questions to the rows.

`feltd check`, the daemon after a foreign write, the simulator and the tests ask these. A promise
may need several queries; it is told once. Nothing here writes.
"""

from feltd.mesh import promises as of_mesh
from feltd.mesh.chain import START, Link, marked, walk
from feltd.mesh.promised import SHOWN_MAX, Broken
from feltd.state.promised import RECORDS
from feltd.state.promised_floors import FLOORS
from feltd.state.promised_schedules import SCHEDULES
from feltd.state.promised_triggers import TRIGGERS
from feltd.store.tx import Tx

__all__ = [
    "PROMISES",
    "SHOWN_MAX",
    "START",
    "Broken",
    "Link",
    "ask",
    "ids",
    "marked",
    "says",
    "walk",
]

PROMISES = sorted(
    (*of_mesh.PROMISES, *RECORDS, *TRIGGERS, *SCHEDULES, *FLOORS), key=of_mesh.in_order
)


def ids() -> list[str]:
    """The ids of every promise `ask` and `walk` look into, in order, each once."""
    return [*dict.fromkeys(one.id for one in PROMISES), "I20", "I23"]


def says(promise_id: str) -> str:
    """A promise in words; where several queries ask it, each in its own."""
    told = [one.says for one in PROMISES if one.id == promise_id]
    return "; ".join(dict.fromkeys(told)) or of_mesh.says(promise_id)


def ask(tx: Tx, mark_commit_seq: int | None = None) -> list[Broken]:
    """Every broken promise that a query can find; empty when all hold.

    `mark_commit_seq` is the commit number the sidecar remembers, None without one. The audit
    chain is walked by `walk`.
    """
    return of_mesh.ask(tx, mark_commit_seq, PROMISES)
