"""What follows when a grant changes under the workers that stand on it.

A changed or revoked grant marks its workers unsettled in one statement of its own transaction:
from that commit on no fenced write of theirs passes. Settling compares a worker's live claims with
what the grant still covers and ends the rest `authority_lost`: some at once, the others in the next
rounds, and at the latest when the worker itself calls.
"""

from collections.abc import Iterable

from msgspec.json import decode, encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import grants, regrants
from feltd.identity.unfit import unfit
from feltd.mesh import attempts, terms, workers
from feltd.mesh.signing import NO_PROOF
from feltd.model.base import Ask
from feltd.model.grant import Affected, ExtendGrant, Grant, Regranted, ReplaceGrant, RevokeGrant
from feltd.store.tx import Row, Tx

#: Claims ended within the transaction that changes the grant: 500 ends take about 20 ms.
CLAIMS_AT_ONCE = 500
#: Workers settled within it, of all the grants below together; the others follow.
WORKERS_AT_ONCE = 500
#: Workers looked at in one round of the keeper.
WORKERS_A_ROUND = 200

UNSETTLE = """
UPDATE workers
   SET authority_unsettled = 1
 WHERE authorization_grant_id = :grant_id
   AND removed_at_ms IS NULL
"""

HOLDING_OF_GRANT = """
SELECT k.worker_id
  FROM workers k
 WHERE k.authorization_grant_id = :grant_id
   AND k.authority_unsettled = 1
   AND EXISTS (SELECT 1
                 FROM claims c
                WHERE c.worker_id = k.worker_id
                  AND c.ended_at_ms IS NULL)
 ORDER BY k.worker_id
 LIMIT :limit
"""

UNSETTLED_OF_GRANT = """
SELECT k.worker_id
  FROM workers k
 WHERE k.authorization_grant_id = :grant_id
   AND k.authority_unsettled = 1
 ORDER BY k.worker_id
 LIMIT :limit
"""

UNSETTLED = """
SELECT k.worker_id
  FROM workers k
 WHERE k.authority_unsettled = 1
 ORDER BY k.worker_id
 LIMIT :limit
"""

HELD_UNSETTLED = """
SELECT count(*) AS claims
  FROM workers k
  JOIN claims c ON c.worker_id = k.worker_id
               AND c.ended_at_ms IS NULL
 WHERE k.authorization_grant_id = :grant_id
   AND k.authority_unsettled = 1
"""

HELD = """
SELECT c.fencing_token, c.workload_id, w.capability_snapshot, w.definition_id,
       w.definition_revision, w.expires_at_ms
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.worker_id = :worker_id
   AND c.ended_at_ms IS NULL
 ORDER BY c.fencing_token
"""

SETTLE = """
UPDATE workers
   SET content_version = content_version + 1,
       capability_version = capability_version
                            + CASE WHEN granted_capabilities = :granted_capabilities THEN 0
                                   ELSE 1 END,
       granted_capabilities = :granted_capabilities,
       workload_kinds = :workload_kinds,
       labels = :labels,
       concurrency = :concurrency,
       authority_live = :authority_live,
       authority_unsettled = 0,
       authority_expires_at_ms = :authority_expires_at_ms
 WHERE worker_id = :worker_id
"""

CUT_LEASE = """
UPDATE workloads
   SET expires_at_ms = :ends_at_ms
 WHERE workload_id = :workload_id
   AND fencing_token = :fencing_token
   AND state IN ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
   AND expires_at_ms > :ends_at_ms
"""

COUNT_UNDER = """
WITH RECURSIVE under (grant_id) AS (
  SELECT g.grant_id
    FROM grants g
   WHERE g.grant_id = :grant_id
  UNION ALL
  SELECT g.grant_id
    FROM under u
    JOIN grants g ON g.parent_grant_id = u.grant_id
)
SELECT count(*) AS workers
  FROM under u
  JOIN workers k ON k.authorization_grant_id = u.grant_id
 WHERE k.removed_at_ms IS NULL
   AND k.lifecycle <> 'OFFLINE'
   AND k.worker_id <> :worker_id
"""


def revoke_grant(tx: Tx, ask: Ask[RevokeGrant], now: Now) -> Regranted:
    """Revoke a grant and what stands on it: descendants, keys, and the claims of its workers.

    Up to CLAIMS_AT_ONCE claims end here, `remaining` in the next rounds; none of them can write
    from this commit on. Refuses as regrants.revoke does. Repeating answers with what is still left.
    """
    return _follow(tx, now, regrants.revoke(tx, ask, now))


def replace_grant(tx: Tx, ask: Ask[ReplaceGrant], now: Now) -> Regranted:
    """Change what a grant allows, and recompute the workers bound to it and its descendants.

    One that could not be registered under it any more has no authority left: all its claims end.
    A worker whose granted set changes gets the next capability_version; claims beyond what is
    left end authority_lost as in revoke_grant; leases are cut to an earlier end of the grant.
    """
    return _follow(tx, now, regrants.replace(tx, ask, now))


def extend_grant(tx: Tx, ask: Ask[ExtendGrant], now: Now) -> Regranted:
    """Let a grant end later, with what it allows as it stands in this transaction.

    Ends no claim. Refuses GRANT_INVALID for an end that is not later, else as `replace_grant`.
    """
    stands = grants.show(tx, Ask(ask.caller, None, ask.id), now)
    if ask.body.expires_at_ms <= stands.expires_at_ms:
        raise unfit("GRANT_INVALID", [("/expires_at_ms", "would end it earlier than it does now")])
    later = ReplaceGrant(
        capabilities=stands.capabilities,
        resources=stands.resources,
        constraints=stands.constraints,
        expires_at_ms=ask.body.expires_at_ms,
    )
    return replace_grant(tx, Ask(ask.caller, later, ask.id, ask.fresh, ask.limits), now)


def sweep(tx: Tx, limit: int, now: Now) -> int:
    """Settle workers of changed grants until `limit` claims ended; how many of both.

    Keeper's: at least `limit` means that more may be left. One statement when nothing is.
    """
    settled, ended = 0, 0
    for row in tx.rows(UNSETTLED, {"limit": WORKERS_A_ROUND}):
        if ended >= limit:
            break
        ended += len(settle(tx, now, row["worker_id"], limit=limit - ended))
        settled += 1
    return settled + ended


def settle(tx: Tx, now: Now, worker_id: str, *, limit: int | None = None) -> list[str]:
    """Bring one unsettled worker in line with its grant; the ids of the claims ended.

    Claims beyond what the grant still allows end authority_lost, at most `limit` of them: then
    the worker stays unsettled. Else its granted set, kinds, labels and concurrency become what is
    left, and no lease outlives the grant. Repeating, or a settled worker: nothing.
    """
    row = workers.find(tx, worker_id)
    if row is None or not row["authority_unsettled"]:
        return []
    grant = grants.read(tx, row["authorization_grant_id"])
    left = _left(row, grant)
    beyond = _beyond(tx, row, left, grant)
    if limit is not None and len(beyond) > limit:
        return end(tx, now, beyond[: max(limit, 0)])
    ended = end(tx, now, beyond)
    tx.change(
        SETTLE,
        {
            "worker_id": worker_id,
            "granted_capabilities": row["granted_capabilities"],
            "workload_kinds": row["workload_kinds"],
            "labels": row["labels"],
            "concurrency": row["concurrency"] if left is None else _concurrency(row, grant),
            "authority_live": int(left is not None),
            "authority_expires_at_ms": None if grant is None else grant.chain_expires_at_ms,
            **({} if left is None else _columns(left)),
        },
    )
    if grant is not None:
        cut(tx, now, worker_id, grant)
    tx.tell("worker", worker_id)
    return ended


def split(
    tx: Tx, worker_id: str, granted: Iterable[str], grant: Grant | None
) -> tuple[list[Row], list[Row]]:
    """The live claims of a worker that a granted set and a grant cover, and those they do not."""
    holds = frozenset(granted)
    kinds = None if grant is None else grant.constraints.workload_kinds
    kept: list[Row] = []
    beyond: list[Row] = []
    for claim in tx.rows(HELD, {"worker_id": worker_id}):
        covered = holds.issuperset(decode(claim["capability_snapshot"])) and (
            kinds is None
            or terms.admits(kinds, claim["definition_id"], claim["definition_revision"])
        )
        (kept if covered else beyond).append(claim)
    return kept, beyond


def end(tx: Tx, now: Now, claims: Iterable[Row]) -> list[str]:
    """End these live claims authority_lost; their ids. Nothing is spent, the work is free again."""
    return [
        attempts.end_claim(
            tx,
            now,
            claim["workload_id"],
            attempts.End("authority_lost", fencing_token=claim["fencing_token"]),
        ).claim_id
        for claim in claims
    ]


def cut(tx: Tx, now: Now, worker_id: str, grant: Grant) -> None:
    """No lease of a worker outlives its grant: bring in those that a new, earlier end overtook."""
    ends_at_ms = now.lease_from_wall(grant.chain_expires_at_ms)
    for claim in tx.rows(HELD, {"worker_id": worker_id}):
        if claim["expires_at_ms"] > ends_at_ms:
            tx.change(
                CUT_LEASE,
                {
                    "workload_id": claim["workload_id"],
                    "fencing_token": claim["fencing_token"],
                    "ends_at_ms": ends_at_ms,
                },
            )


def room(tx: Tx, grant: Grant | None, worker_id: str) -> None:
    """Refuse WORKER_UNAUTHORIZED when the grant, or one above it, has all its workers already.

    Counted are the others that are neither OFFLINE nor removed, over all grants below.
    """
    while grant is not None:
        most = grant.constraints.max_workers
        if most is not None:
            found = tx.row(COUNT_UNDER, {"grant_id": grant.id, "worker_id": worker_id})
            if found is not None and found["workers"] >= most:
                raise Refused(
                    "WORKER_UNAUTHORIZED",
                    f"the grant allows {most} workers at a time, and {found['workers']} are there",
                    limit=most,
                    used=found["workers"],
                )
        grant = None if grant.parent_grant is None else grants.read(tx, grant.parent_grant)


def _follow(tx: Tx, now: Now, affected: Affected) -> Regranted:
    """Unsettle the workers of the grants, settle what fits into this transaction."""
    # A repeat names no grant as changed; what the first call left is then finished here.
    grant_ids = affected.grant_ids or (affected.grant_id,)
    for grant_id in affected.grant_ids:
        tx.change(UNSETTLE, {"grant_id": grant_id})
    fenced: list[str] = []
    room_left = WORKERS_AT_ONCE
    # Holders first: the claims of revoked authority are what may not run on.
    for statement in (HOLDING_OF_GRANT, UNSETTLED_OF_GRANT):
        for grant_id in grant_ids:
            if room_left <= 0 or len(fenced) >= CLAIMS_AT_ONCE:
                break
            found = tx.rows(statement, {"grant_id": grant_id, "limit": room_left})
            room_left -= len(found)
            for row in found:
                fenced += settle(tx, now, row["worker_id"], limit=CLAIMS_AT_ONCE - len(fenced))
    held = [tx.row(HELD_UNSETTLED, {"grant_id": grant_id}) for grant_id in grant_ids]
    return Regranted(
        grant_id=affected.grant_id,
        fenced_claims=tuple(fenced),
        remaining=sum(row["claims"] for row in held if row is not None),
    )


def _left(row: Row, grant: Grant | None) -> terms.Terms | None:
    """What the grant still lets the worker be; None: nothing."""
    if grant is None or not grant.chain_live or row["authority_kid"] == NO_PROOF:
        return None
    offer = terms.Offer(
        runtime=row["runtime"],
        declared=tuple(decode(row["declared_capabilities"])),
        workload_kinds=tuple(decode(row["workload_kinds"])),
        labels=workers.labels_of(row),
    )
    try:
        terms.require_reach(grant, row["name"])
        return terms.narrowed(grant, offer)
    except Refused:
        return None


def _beyond(tx: Tx, row: Row, left: terms.Terms | None, grant: Grant | None) -> list[Row]:
    """The claims that exceed what is left: uncovered ones, then the newest over the number."""
    if left is None:
        return tx.rows(HELD, {"worker_id": row["worker_id"]})
    kept, beyond = split(tx, row["worker_id"], left.granted, grant)
    return beyond + kept[_concurrency(row, grant) :]


def _concurrency(row: Row, grant: Grant | None) -> int:
    cap = None if grant is None else grant.constraints.max_concurrency
    return int(row["concurrency"] if cap is None else min(cap, row["concurrency"]))


def _columns(left: terms.Terms) -> dict[str, object]:
    return {
        "granted_capabilities": encode(left.granted).decode(),
        "workload_kinds": encode(left.workload_kinds).decode(),
        "labels": encode(left.labels).decode(),
    }
