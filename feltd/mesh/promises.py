"""What feltd promises, as questions to the rows: an answer is a broken promise.

`feltd check`, the simulator and the tests ask the same questions. They only read, inside one read
transaction, so that they run beside a live daemon. Promises about what was answered over HTTP have
no row to ask and are kept by tests alone.
"""

from collections.abc import Sequence

from feltd.mesh import promised
from feltd.mesh.promised import PLAIN, SHOWN_MAX, Broken, Promise
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

LEDGER = """
SELECT l.commit_seq
  FROM ledger l
 WHERE l.id = 1
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


def ids() -> list[str]:
    """The ids of every promise that is looked into here and by chain.walk, in order."""
    return [one.id for one in PROMISES] + ["I20", "I23"]


def says(promise_id: str) -> str:
    """A promise in words."""
    return {one.id: one.says for one in PROMISES}.get(promise_id) or promised.SAYS[promise_id]


def ask(
    tx: Tx, mark_commit_seq: int | None = None, asked: Sequence[Promise] = PROMISES
) -> list[Broken]:
    """Every broken promise that a query can find; empty when all hold.

    `mark_commit_seq` is the commit number the sidecar remembers, None without one; `asked` are
    the promises with a query, here those of the mesh. The audit chain is walked by chain.walk.
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
