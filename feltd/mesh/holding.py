"""What is held: claims as a worker gets them, and as lists show them.

Everything here only reads. The changing part of a live claim is read from its workload, because
that is where it stands; an ended one has all of it in its own row.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Raw

from feltd.clock import Now
from feltd.mesh import policies
from feltd.model.base import Ask, Caller
from feltd.model.claim import Claim, ClaimPage, ClaimQuery, ListedClaim
from feltd.store.tx import Row, Tx

LIVE = """
SELECT w.workload_id, w.tenant_id, w.application_id, w.state, c.fencing_token,
       w.claim_worker_id, c.number AS attempt_number, c.issued_at_ms, w.expires_at_ms,
       w.definition_id, w.definition_revision, w.environment, w.capability_snapshot,
       w.connection_scopes, w.timeouts, w.runtime_policy, w.traceparent, w.input,
       (SELECT g.constraints
          FROM workers k
          JOIN grants g ON g.grant_id = k.authorization_grant_id
         WHERE k.worker_id = w.claim_worker_id) AS constraints
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.fencing_token = :fencing_token
   AND c.ended_at_ms IS NULL
"""

CHECKPOINT = """
SELECT x.state
  FROM checkpoints x
 WHERE x.workload_id = :workload_id
"""

# Live and ended claims of a worker stand in an index each, so that counting the live ones never
# walks through its history.
OF_WORKER = """
SELECT c.fencing_token, c.workload_id, c.number, c.worker_id, c.tenant_id, c.application_id, c.how,
       c.issued_at_ms, c.expires_at_ms, c.started_at_ms, c.ended_at_ms, c.end_kind, c.spent,
       w.state, w.expires_at_ms AS live_expires_at_ms, w.started_at_ms AS live_started_at_ms
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.fencing_token IN (SELECT live.fencing_token
                             FROM (SELECT l.fencing_token
                                     FROM claims l
                                    WHERE l.worker_id = :worker_id
                                      AND l.fencing_token < :before
                                      AND l.ended_at_ms IS NULL
                                    ORDER BY l.fencing_token DESC
                                    LIMIT :limit) AS live
                            UNION ALL
                           SELECT past.fencing_token
                             FROM (SELECT e.fencing_token
                                     FROM claims e
                                    WHERE e.worker_id = :worker_id
                                      AND e.fencing_token < :before
                                      AND e.ended_at_ms IS NOT NULL
                                    ORDER BY e.fencing_token DESC
                                    LIMIT :limit) AS past)
 ORDER BY c.fencing_token DESC
 LIMIT :limit
"""

LIVE_OF_WORKER = """
SELECT c.fencing_token, c.workload_id, c.number, c.worker_id, c.tenant_id, c.application_id, c.how,
       c.issued_at_ms, c.expires_at_ms, c.started_at_ms, c.ended_at_ms, c.end_kind, c.spent,
       w.state, w.expires_at_ms AS live_expires_at_ms, w.started_at_ms AS live_started_at_ms
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.worker_id = :worker_id
   AND c.fencing_token < :before
   AND c.ended_at_ms IS NULL
 ORDER BY c.fencing_token DESC
 LIMIT :limit
"""

OF_WORKLOAD = """
SELECT c.fencing_token, c.workload_id, c.number, c.worker_id, c.tenant_id, c.application_id, c.how,
       c.issued_at_ms, c.expires_at_ms, c.started_at_ms, c.ended_at_ms, c.end_kind, c.spent,
       w.state, w.expires_at_ms AS live_expires_at_ms, w.started_at_ms AS live_started_at_ms
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.workload_id = :workload_id
   AND c.fencing_token < :before
 ORDER BY c.fencing_token DESC
 LIMIT :limit
"""

ALL = """
SELECT c.fencing_token, c.workload_id, c.number, c.worker_id, c.tenant_id, c.application_id, c.how,
       c.issued_at_ms, c.expires_at_ms, c.started_at_ms, c.ended_at_ms, c.end_kind, c.spent,
       w.state, w.expires_at_ms AS live_expires_at_ms, w.started_at_ms AS live_started_at_ms
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.fencing_token < :before
 ORDER BY c.fencing_token DESC
 LIMIT :limit
"""

#: A page reads at most so many rows and may be short; its cursor goes on from there.
ROWS_READ_MAX = 20_000
#: Rows read at a time while most of them are passed over.
ROWS_AT_ONCE = 500
#: Above every token.
TOKEN_END = 2**53
#: An answer ends early so that it stays under 4 MiB: input, checkpoint and their frame are at most
#: 256 KiB + 256 KiB + 64 KiB a claim.
ANSWER_BYTES_MAX = 4 * 1024 * 1024
CLAIM_BYTES_MAX = 576 * 1024


def live_claim(tx: Tx, fencing_token: int) -> Claim | None:
    """The live claim of a token with everything that running it needs, or None."""
    row = tx.row(LIVE, {"fencing_token": fencing_token})
    return None if row is None else shape(tx, row, row["issued_at_ms"], row["state"])


def shape(tx: Tx, row: Row, issued_at_ms: int, state: str) -> Claim:
    """A claim from its workload's row; reads the checkpoint when there was an attempt before."""
    token = row["fencing_token"]
    kept = None
    if row["attempt_number"] > 1 or state == "CHECKPOINTED":
        kept = tx.row(CHECKPOINT, {"workload_id": row["workload_id"]})
    return Claim(
        claim_id=f"claim_{token}",
        lease_id=f"lease_{token}",
        workload_id=row["workload_id"],
        attempt_id=f"attempt_{token}",
        attempt_number=row["attempt_number"],
        worker_id=row["claim_worker_id"],
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        definition_id=row["definition_id"],
        definition_revision=row["definition_revision"],
        environment=row["environment"],
        fencing_token=token,
        capability_snapshot=_raw(row["capability_snapshot"]),
        execution_context_id=f"context_claim_{token}",
        issued_at_ms=issued_at_ms,
        expires_at_ms=row["expires_at_ms"],
        input=_raw(row["input"]),
        timeouts=_raw(row["timeouts"]),
        runtime_policy=Raw(policies.told_to(row["runtime_policy"], row["constraints"])),
        connection_scopes=_raw(row["connection_scopes"]),
        state=state,
        checkpoint=None if kept is None else _raw(kept["state"]),
        traceparent=row["traceparent"],
    )


def claim_bytes(claim: Claim) -> int:
    """About how many bytes a claim takes in an answer."""
    kept = 0 if claim.checkpoint is None else len(bytes(claim.checkpoint))
    return len(bytes(claim.input)) + kept + 1_024


def fits(answer_bytes: int) -> bool:
    """Whether an answer of so many bytes takes one claim more, however large it be."""
    return answer_bytes + CLAIM_BYTES_MAX <= ANSWER_BYTES_MAX


def list_claims(tx: Tx, ask: Ask[ClaimQuery], now: Now) -> ClaimPage:
    """Claims of the caller's tenants, newest first; `next_before` is where the next page begins.

    Narrowed by worker, workload, tenant and whether they live. A page reads ROWS_READ_MAX rows at
    most and may be short.
    """
    query = ask.body
    sql = ALL
    if query.workload_id is not None:
        sql = OF_WORKLOAD
    elif query.worker_id is not None:
        sql = LIVE_OF_WORKER if query.live else OF_WORKER
    params: dict[str, Any] = {"worker_id": query.worker_id, "workload_id": query.workload_id}
    wanted = _wanted(ask.caller, query)
    items: list[ListedClaim] = []
    before, read = query.before or TOKEN_END, 0
    while read < ROWS_READ_MAX:
        rows = tx.rows(sql, {**params, "before": before, "limit": ROWS_AT_ONCE})
        for row in rows:
            before = row["fencing_token"]
            if wanted(row):
                items.append(_listed(row))
                if len(items) == query.limit:
                    return ClaimPage(items=items, next_before=before)
        read += len(rows)
        if len(rows) < ROWS_AT_ONCE:
            return ClaimPage(items=items, next_before=None)
    return ClaimPage(items=items, next_before=before)


def _wanted(caller: Caller, query: ClaimQuery) -> Callable[[Row], bool]:
    def wanted(row: Row) -> bool:
        return (
            caller.may_see(row["tenant_id"])
            and query.tenant_id in (None, row["tenant_id"])
            and query.worker_id in (None, row["worker_id"])
            and query.live in (None, row["ended_at_ms"] is None)
        )

    return wanted


def _listed(row: Row) -> ListedClaim:
    token, live = row["fencing_token"], row["ended_at_ms"] is None
    return ListedClaim(
        claim_id=f"claim_{token}",
        fencing_token=token,
        workload_id=row["workload_id"],
        attempt_id=f"attempt_{token}",
        attempt_number=row["number"],
        worker_id=row["worker_id"],
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        live=live,
        how=row["how"],
        issued_at_ms=row["issued_at_ms"],
        expires_at_ms=row["live_expires_at_ms"] if live else row["expires_at_ms"],
        state=row["state"] if live else None,
        started_at_ms=row["live_started_at_ms"] if live else row["started_at_ms"],
        ended_at_ms=row["ended_at_ms"],
        end=row["end_kind"],
        spent=None if live else bool(row["spent"]),
    )


def _raw(text: str) -> Raw:
    return Raw(text.encode())
