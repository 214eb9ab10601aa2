"""For the owner of a sink: does this claim still hold, and is this token the highest so far.

Both answer from stored rows alone. Tokens grow over all claims for ever, so any two can be put in
order: a fence keeps the highest one a resource has seen and refuses what is lower. A token that no
claim of the tenant has is never kept, or one wrong number would lock everybody out.
"""

from msgspec import Struct
from msgspec.json import decode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import principals
from feltd.mesh import events, refusal
from feltd.mesh.states import LIVE_STATES
from feltd.model.base import Ask
from feltd.model.fence import Fence, Raise, Valid, Validate
from feltd.store.tx import Row, Tx

#: Fences of a tenant, some 100 bytes each; those that can refuse nothing any more are pruned.
FENCES_MAX = 1_000_000
#: Above every token.
TOKEN_END = 2**53

CLAIM = """
SELECT c.fencing_token, c.workload_id, c.worker_id, c.tenant_id, c.application_id,
       w.tenant_id AS work_tenant_id, w.application_id AS work_application_id, w.state,
       w.fencing_token AS newest, w.claim_worker_id, w.claim_incarnation, w.expires_at_ms,
       w.capability_snapshot, k.tenant_id AS worker_tenant_id,
       k.application_id AS worker_application_id, k.incarnation, k.granted_capabilities,
       k.authority_live, k.authority_unsettled, k.authority_expires_at_ms,
       d.at_ms AS timeout_at_ms
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
  JOIN workers k ON k.worker_id = c.worker_id
  LEFT JOIN deadlines d ON d.workload_id = c.workload_id
 WHERE c.fencing_token = :fencing_token
"""

ISSUED = """
SELECT c.workload_id, c.application_id, c.worker_id
  FROM claims c
 WHERE c.fencing_token = :fencing_token
   AND c.tenant_id = :tenant_id
"""

NEWEST = """
SELECT coalesce(max(c.fencing_token), 0) AS fencing_token
  FROM claims c
"""

FENCE = """
SELECT f.highest
  FROM fences f
 WHERE f.tenant_id = :tenant_id
   AND f.resource = :resource
"""

LIFT = """
UPDATE fences
   SET highest = :fencing_token,
       at_ms = :now_ms
 WHERE tenant_id = :tenant_id
   AND resource = :resource
   AND highest < :fencing_token
"""

SET_UP = """
INSERT INTO fences (tenant_id, resource, highest, at_ms)
VALUES (:tenant_id, :resource, :fencing_token, :now_ms)
"""

OPEN_COUNT = """
INSERT INTO fence_counts (tenant_id)
VALUES (:tenant_id)
ON CONFLICT (tenant_id) DO NOTHING
"""

COUNT_UP = """
UPDATE fence_counts
   SET fences = fences + 1
 WHERE tenant_id = :tenant_id
   AND fences < :fences_max
"""

# Below the oldest claim that is kept no token is known any more, so none could pass there anyhow.
SPENT = """
SELECT f.tenant_id, f.resource
  FROM fences f
 WHERE f.highest < (SELECT coalesce(min(c.fencing_token), :token_end)
                      FROM claims c)
 ORDER BY f.highest, f.tenant_id, f.resource
 LIMIT :limit
"""

DROP = """
DELETE FROM fences
 WHERE tenant_id = :tenant_id
   AND resource = :resource
"""

COUNT_DOWN = """
UPDATE fence_counts
   SET fences = fences - :dropped
 WHERE tenant_id = :tenant_id
"""


class Raising(Struct, frozen=True):
    """A token for a resource of a tenant, as the handler found the tenant."""

    tenant_id: str
    body: Raise


def validate(tx: Tx, ask: Ask[Validate], now: Now) -> Valid:
    """The claim `ask.id`, if it holds at this instant under the token that came.

    Writes nothing; repeating asks again. Refuses, in this order: MESH_STALE_FENCE for one made up
    or of another tenant, MESH_CLAIM_SCOPE_DENIED where claim, worker and workload are not of one
    tenant and application, MESH_STALE_FENCE when it is over (ended, expired, superseded) or the
    token is another's, MESH_CAPABILITY_DENIED when its worker's grant no longer covers it.
    """
    principals.confirm(tx, ask.caller, now)
    token = refusal.token_of(ask.id) or 0
    row = tx.row(CLAIM, {"fencing_token": token})
    if (
        row is not None
        and row["authority_unsettled"]
        and refusal.settled(tx, now, row["worker_id"])
    ):
        row = tx.row(CLAIM, {"fencing_token": token})
    if row is None or not ask.caller.may_see(row["tenant_id"]):
        raise _stale()
    _require_one_scope(row)
    if ask.body.fencing_token != token or not _holds(row, now):
        raise _stale()
    _require_covered(row, now)
    return Valid(
        claim_id=f"claim_{token}",
        workload_id=row["workload_id"],
        attempt_id=f"attempt_{token}",
        worker_id=row["worker_id"],
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        fencing_token=token,
        state=row["state"],
        expires_at_ms=row["expires_at_ms"],
        server_time_ms=now.lease_ms,
    )


def fence(tx: Tx, ask: Ask[Raising], now: Now) -> Fence:
    """Let a token write to the resource `ask.id` unless a higher one has been there.

    The highest token is kept for ever higher ones; an equal one passes, so repeating is safe.
    Whether the claim still lives is not asked: see `validate`. Refuses REQUEST_INVALID for a
    token above every one issued, MESH_STALE_FENCE (with `highest` where there is one) for a lower
    one and for one that no claim of the tenant has, QUOTA_EXCEEDED beyond FENCES_MAX resources.
    """
    principals.confirm(tx, ask.caller, now)
    tenant_id, token = ask.body.tenant_id, ask.body.body.fencing_token
    at = {
        "tenant_id": tenant_id,
        "resource": ask.id,
        "fencing_token": token,
        "now_ms": now.lease_ms,
    }
    claim = tx.row(ISSUED, at)
    if claim is not None and tx.change(LIFT, at):
        _tell(tx, ask, now, claim)
        return Fence(ask.id, token)
    kept = tx.row(FENCE, at)
    if claim is None:
        raise _unknown(tx, token, kept)
    if kept is None:
        _count_up(tx, tenant_id)
        tx.change(SET_UP, at)
        _tell(tx, ask, now, claim)
        return Fence(ask.id, token)
    if kept["highest"] > token:
        raise Refused(
            "MESH_STALE_FENCE",
            "the resource has seen a higher token: do not apply the write",
            highest=kept["highest"],
        )
    return Fence(ask.id, kept["highest"])


def prune(tx: Tx, limit: int, now: Now) -> int:
    """Forget fences that can refuse nothing: every claim below them is forgotten. How many."""
    dropped: dict[str, int] = {}
    spent = tx.rows(SPENT, {"limit": limit, "token_end": TOKEN_END})
    for row in spent:
        tx.change(DROP, {"tenant_id": row["tenant_id"], "resource": row["resource"]})
        dropped[row["tenant_id"]] = dropped.get(row["tenant_id"], 0) + 1
    for tenant_id, count in dropped.items():
        tx.change(COUNT_DOWN, {"tenant_id": tenant_id, "dropped": count})
    return len(spent)


def _stale() -> Refused:
    return Refused("MESH_STALE_FENCE", "claim is expired or fenced")


def _require_one_scope(row: Row) -> None:
    owner = (row["tenant_id"], row["application_id"])
    if (
        owner != (row["work_tenant_id"], row["work_application_id"])
        or owner != (row["worker_tenant_id"], row["worker_application_id"])
    ):  # fmt: skip
        raise Refused("MESH_CLAIM_SCOPE_DENIED", "claim crosses worker/workload scope")


def _holds(row: Row, now: Now) -> bool:
    return (
        row["state"] in LIVE_STATES
        and row["newest"] == row["fencing_token"]
        and row["claim_worker_id"] == row["worker_id"]
        and row["claim_incarnation"] == row["incarnation"]
        and row["expires_at_ms"] > now.lease_ms
        and (row["timeout_at_ms"] is None or row["timeout_at_ms"] > now.lease_ms)
    )


def _require_covered(row: Row, now: Now) -> None:
    ends_at_ms = row["authority_expires_at_ms"]
    live = row["authority_live"] and not row["authority_unsettled"]
    granted = set(decode(row["granted_capabilities"]))
    if (
        not live
        or (ends_at_ms is not None and ends_at_ms <= now.wall_ms)
        or not granted.issuperset(decode(row["capability_snapshot"]))
    ):
        raise Refused("MESH_CAPABILITY_DENIED", "claim capability snapshot is invalid")


def _unknown(tx: Tx, token: int, kept: Row | None) -> Refused:
    newest = tx.rows(NEWEST)[0]["fencing_token"]
    if token > newest:
        return Refused(
            "REQUEST_INVALID",
            "no claim has this token yet",
            errors=[{"pointer": "/fencing_token", "detail": "is above every token issued"}],
        )
    facts = {} if kept is None else {"highest": kept["highest"]}
    return Refused("MESH_STALE_FENCE", "no claim of the tenant has this token", **facts)


def _count_up(tx: Tx, tenant_id: str) -> None:
    tx.change(OPEN_COUNT, {"tenant_id": tenant_id})
    if not tx.change(COUNT_UP, {"tenant_id": tenant_id, "fences_max": FENCES_MAX}):
        raise Refused(
            "QUOTA_EXCEEDED",
            f"the tenant has {FENCES_MAX} fences already: name fewer resources",
            quota="fences",
            limit=FENCES_MAX,
            used=FENCES_MAX,
        )


def _tell(tx: Tx, ask: Ask[Raising], now: Now, claim: Row) -> None:
    events.tell(
        tx,
        now,
        "fence",
        tenant_id=ask.body.tenant_id,
        application_id=claim["application_id"],
        workload_id=claim["workload_id"],
        worker_id=claim["worker_id"],
        fencing_token=ask.body.body.fencing_token,
        actor=str(ask.caller.subject),
    )
