"""What feltd promises, as questions to the rows: an answer is a broken promise.

`feltd check`, the simulator and the tests ask the same questions. They only read, inside one read
transaction, so that they run beside a live daemon. Promises about what was answered over HTTP have
no row to ask and are kept by tests alone.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from feltd.identity import audit
from feltd.mesh import events, promised
from feltd.mesh.promised import PLAIN, Promise
from feltd.mesh.promised_feed import FEED
from feltd.mesh.promised_gates import GATES
from feltd.mesh.promised_holds import HOLDS
from feltd.mesh.promised_people import PEOPLE
from feltd.mesh.promised_places import PLACES
from feltd.mesh.promised_policies import POLICIES
from feltd.mesh.promised_timeouts import TIMEOUTS
from feltd.mesh.promised_waits import WAITS
from feltd.store import dialect
from feltd.store.tx import Row, Tx

#: Rows shown of one broken promise; more would hide the next one.
SHOWN_MAX = 20
#: Rows of the audit chain read at a time.
PAGE = 1_000

WITHIN_AUTHORITY = """
SELECT 'claim beyond the worker' AS what, c.fencing_token AS id, j.value AS capability
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
  JOIN workers k ON k.worker_id = c.worker_id
  JOIN json_each(w.capability_snapshot) j
 WHERE c.ended_at_ms IS NULL
   AND k.authority_unsettled = 0
   AND j.value NOT IN (SELECT g.value FROM json_each(k.granted_capabilities) g)
UNION ALL
SELECT 'claim under a revoked grant', c.fencing_token, k.authorization_grant_id
  FROM claims c
  JOIN workers k ON k.worker_id = c.worker_id
 WHERE c.ended_at_ms IS NULL
   AND k.authority_live = 0
   AND k.authority_unsettled = 0
UNION ALL
SELECT 'granted beyond declared or grant', k.worker_id, j.value
  FROM workers k
  JOIN json_each(k.granted_capabilities) j
  LEFT JOIN grants g ON g.grant_id = k.authorization_grant_id
 WHERE j.value NOT IN (SELECT d.value FROM json_each(k.declared_capabilities) d)
    OR (g.grant_id IS NOT NULL
        AND k.removed_at_ms IS NULL
        AND k.authority_live = 1
        AND k.authority_unsettled = 0
        AND g.status = 'ACTIVE'
        AND NOT EXISTS (SELECT 1
                          FROM json_each(g.capabilities) a
                         WHERE a.value = 'worker:capability:' || j.value))
"""

POOLS_LIST_THEIR_OWN = """
SELECT 'pool lists a stranger' AS what, p.tenant_id, p.pool_id AS id, j.value AS worker_id
  FROM pools p
  JOIN json_each(p.worker_ids) j
  LEFT JOIN workers k ON k.worker_id = j.value
 WHERE p.deleted_at_ms IS NULL
   AND (k.worker_id IS NULL
        OR k.removed_at_ms IS NOT NULL
        OR k.tenant_id <> p.tenant_id
        OR k.application_id <> ifnull(p.application_id, k.application_id))
"""

# The schema tests how such a column begins and ends; what lies between only a reader sees.
STORED_JSON_READS = """
SELECT 'workload' AS what, w.workload_id AS id
  FROM workloads w
 WHERE NOT json_valid(w.capability_snapshot)
    OR NOT json_valid(w.connection_scopes)
    OR NOT json_valid(w.retry_policy)
    OR NOT json_valid(w.placement)
    OR NOT json_valid(w.resources)
    OR NOT json_valid(w.labels)
    OR NOT json_valid(w.input)
    OR NOT json_valid(coalesce(w.output, 'null'))
UNION ALL
SELECT 'worker', k.worker_id
  FROM workers k
 WHERE NOT json_valid(k.declared_capabilities)
    OR NOT json_valid(k.granted_capabilities)
    OR NOT json_valid(k.workload_kinds)
    OR NOT json_valid(k.resource_profile)
    OR NOT json_valid(k.labels)
UNION ALL
SELECT 'grant', g.grant_id
  FROM grants g
 WHERE NOT json_valid(g.capabilities)
    OR NOT json_valid(g.resources)
    OR NOT json_valid(g.constraints)
UNION ALL
SELECT 'key', y.key_id
  FROM keys y
 WHERE NOT json_valid(y.scopes)
    OR NOT json_valid(y.namespaces)
    OR NOT json_valid(y.tenants)
"""

AUDIT_PAGE = """
SELECT a.seq, a.kind, a.at_ms, a.wall_at_ms, a.first_event_seq, a.last_event_seq, a.actor,
       a.action, a.subject, a.reason, a.digest, a.prev_hash, a.hash
  FROM audit a
 WHERE a.seq > :after_seq
 ORDER BY a.seq
 LIMIT :page
"""

SEALED_EVENTS = """
SELECT e.seq, e.at_ms, e.kind, e.tenant_id, e.application_id, e.workload_id, e.worker_id,
       e.fencing_token, e.from_state, e.to_state, e.eligible_at_ms, e.expires_at_ms, e.end_kind,
       e.actor
  FROM events e
 WHERE e.seq BETWEEN :first_seq AND :last_seq
 ORDER BY e.seq
"""

LEDGER = """
SELECT l.commit_seq, l.audit_seq, l.audit_hash, l.sealed_seq
  FROM ledger l
 WHERE l.id = 1
"""

AUDIT_FLOOR = """
SELECT f.seq, f.hash, f.event_seq, e.seq AS events_seq
  FROM floors f
  JOIN floors e ON e.name = 'events'
 WHERE f.name = 'audit'
"""

UNSEALED = """
SELECT e.seq
  FROM events e
 WHERE e.seq > :sealed_seq
 LIMIT 1
"""

NEWEST_TOKEN = """
SELECT max(c.fencing_token) AS fencing_token
  FROM claims c
"""


def in_order(one: Promise) -> tuple[bool, int]:
    """I1, I2 … by their numbers, then those that have names."""
    number = one.id.removeprefix("I")
    return not number.isdigit(), int(number) if number.isdigit() else 0


PROMISES = sorted(
    (
        *PLAIN,
        *TIMEOUTS,
        *FEED,
        *GATES,
        *HOLDS,
        *PEOPLE,
        *PLACES,
        *POLICIES,
        *WAITS,
        Promise("I12", "asked within granted, granted within declared and grant", WITHIN_AUTHORITY),
        Promise("POOLS", "a pool lists workers of its own alone", POOLS_LIST_THEIR_OWN),
        Promise("JSON", "what is stored as JSON can be read", STORED_JSON_READS),
    ),
    key=in_order,
)


class Broken(NamedTuple):
    """A promise that does not hold: its id, what it says, and the rows that break it."""

    id: str
    says: str
    rows: list[str]


class Link(NamedTuple):
    """Where a walk along the audit chain stands; `START` is before the first row."""

    seq: int
    hash: str
    event_seq: int


START = Link(0, "", 0)


def ids() -> list[str]:
    """The ids of every promise `ask` and `walk` look into, in order."""
    return [one.id for one in PROMISES] + ["I20", "I23"]


def says(promise_id: str) -> str:
    """A promise in words."""
    return {one.id: one.says for one in PROMISES}.get(promise_id) or promised.SAYS[promise_id]


def ask(
    tx: Tx, mark_commit_seq: int | None = None, asked: Sequence[Promise] = PROMISES
) -> list[Broken]:
    """Every broken promise that a query can find; empty when all hold.

    `mark_commit_seq` is the commit number the sidecar remembers, None without one; `asked` are
    the promises with a query, here those of the mesh. The audit chain is walked by `walk`.
    """
    found = []
    for one in asked:
        try:
            rows = [row for row in tx.rows(one.sql) if _breaks(one, row)]
        except dialect.UNREADABLE as error:
            found.append(Broken(one.id, one.says, [f"cannot be told: {error}"]))
            continue
        if rows:
            found.append(Broken(one.id, one.says, _shown(rows)))
    ledger = tx.row(LEDGER)
    if ledger is None:
        return [*found, Broken("I23", says("I23"), ["the ledger row is missing"])]
    newest = tx.row(NEWEST_TOKEN)
    counter = dialect.sequence(tx, "claims")
    if newest is not None and (newest["fencing_token"] or 0) > counter:
        told = f"newest token {newest['fencing_token']}, counter {counter}"
        found.append(Broken("I3", says("I3"), [told]))
    if mark_commit_seq is not None and ledger["commit_seq"] < mark_commit_seq:
        told = f"commit {ledger['commit_seq']} in the database, {mark_commit_seq} in the sidecar"
        found.append(Broken("I23", says("I23"), [told]))
    return found


def walk(tx: Tx, since: Link = START) -> tuple[Link, list[Broken]]:
    """Recompute the audit chain after `since`: where it ends, and what is wrong in it.

    Each row's hash, its link to the row before, its digest over the events it seals, that every
    event is sealed once, that no number is left out but where an act says so, and that the ledger
    names the last row. What compaction has taken is below the floors: the walk begins there at the
    earliest, and events below theirs are not looked for.
    """
    wrong: list[str] = []
    link, events_seq = _beginning(tx, since)
    for row in _audit(tx, link.seq):
        if row["seq"] != link.seq + 1 or row["prev_hash"] != link.hash:
            wrong.append(f"audit {row['seq']} does not follow audit {link.seq}")
        if audit.hash_of(row) != row["hash"]:
            wrong.append(f"audit {row['seq']} is not what was hashed")
        event_seq = link.event_seq
        if row["action"] == events.SKIP and str(row["subject"]).isdecimal():
            event_seq = int(row["subject"])
        elif row["kind"] == "commit":
            event_seq = row["last_event_seq"]
            bounds = {"first_seq": row["first_event_seq"], "last_seq": event_seq}
            if row["first_event_seq"] != link.event_seq + 1:
                wrong.append(f"audit {row['seq']} leaves out or repeats events")
            kept = event_seq > events_seq
            if kept and events.digest_of(tx.rows(SEALED_EVENTS, bounds)) != row["digest"]:
                wrong.append(f"audit {row['seq']} seals other events than there are")
        link = Link(row["seq"], row["hash"], event_seq)
    ledger = tx.row(LEDGER)
    if ledger is not None:
        if (ledger["audit_seq"], ledger["audit_hash"]) != (link.seq, link.hash):
            wrong.append(f"the chain ends at {link.seq}, the ledger at {ledger['audit_seq']}")
        unsealed = tx.row(UNSEALED, {"sealed_seq": link.event_seq})
        if ledger["sealed_seq"] != link.event_seq or unsealed is not None:
            wrong.append(f"events after {link.event_seq} are not sealed")
    return link, [Broken("I20", says("I20"), wrong[:SHOWN_MAX])] if wrong else []


def _beginning(tx: Tx, since: Link) -> tuple[Link, int]:
    """Where a walk from `since` begins, and the greatest event that is gone."""
    floor = tx.row(AUDIT_FLOOR)
    if floor is None:
        return since, 0
    kept = since.seq >= floor["seq"]
    link = since if kept else Link(floor["seq"], floor["hash"], floor["event_seq"])
    return link, int(floor["events_seq"])


def _audit(tx: Tx, after_seq: int) -> Iterator[Row]:
    while rows := tx.rows(AUDIT_PAGE, {"after_seq": after_seq, "page": PAGE}):
        yield from rows
        after_seq = rows[-1]["seq"]


def _breaks(one: Promise, row: Row) -> bool:
    return one.meant is None or row["text"] is None or one.meant(row["text"])


def _shown(rows: list[Row]) -> list[str]:
    shown = [
        ", ".join(f"{name}={told}" for name, told in dict(row).items() if name != "text")
        for row in rows[:SHOWN_MAX]
    ]
    if len(rows) > SHOWN_MAX:
        shown.append(f"and {len(rows) - SHOWN_MAX} more")
    return shown
