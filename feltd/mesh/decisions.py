"""Placement decisions that are kept: who was chosen for a directed claim, or why nobody could be.

A row holds the inputs with the answer, so that anybody can ask again later and must get the same.
A refusal is kept once for its inputs, however often it is tried; dry runs keep nothing.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import decode, encode

from feltd.clock import Now
from feltd.identity import principals
from feltd.mesh import choosing
from feltd.model.base import Ask, Caller
from feltd.model.placement import (
    Candidate,
    Decision,
    DecisionPage,
    DecisionQuery,
    RefusedWorker,
)
from feltd.model.workload import ANSWER_BYTES_MAX
from feltd.store.tx import Row, Tx

PREFIX = "placement_"
#: Above every number of a decision.
NUMBER_END = 2**53
#: A page reads at most so many rows and may be short; its cursor goes on from there.
ROWS_READ_MAX = 20_000
#: A row has up to half a megabyte: two lists of up to a thousand workers.
ROWS_AT_ONCE = 50
#: What is kept of a tenant: so many decisions of the size of the newest as fill this, within these
#: bounds. Whoever gives and gives would else fill the disk of everybody.
KEPT_BYTES_MAX = 128 * 1024 * 1024
KEPT_MIN, KEPT_MAX = 200, 10_000
#: Older ones that a new one takes the place of.
DROPPED_AT_ONCE = 8

KEEP = """
INSERT INTO decisions (tenant_id, application_id, workload_id, selected_worker_id, reason,
                       candidates, refused, inputs, inputs_digest, decided_by, at_ms)
VALUES (:tenant_id, :application_id, :workload_id, :selected_worker_id, :reason, :candidates,
        :refused, :inputs, :inputs_digest, :decided_by, :now_ms)
ON CONFLICT (workload_id, inputs_digest) WHERE selected_worker_id IS NULL DO NOTHING
RETURNING decision_id
"""

KEPT = """
SELECT d.decision_id
  FROM decisions d
 WHERE d.workload_id = :workload_id
   AND d.inputs_digest = :inputs_digest
   AND d.selected_worker_id IS NULL
"""

FOLLOWED = """
UPDATE decisions
   SET fencing_token = :fencing_token
 WHERE decision_id = :decision_id
   AND fencing_token IS NULL
"""

# Who repeats a directed claim is told from its decision as long as the claim lives.
DROP_OLD = """
DELETE FROM decisions
 WHERE decision_id IN (SELECT d.decision_id
                         FROM decisions d
                        WHERE d.tenant_id = :tenant_id
                          AND d.decision_id <= (SELECT n.decision_id
                                                  FROM decisions n
                                                 WHERE n.tenant_id = :tenant_id
                                                 ORDER BY n.decision_id DESC
                                                 LIMIT 1 OFFSET :kept)
                          AND NOT EXISTS (SELECT 1
                                            FROM claims c
                                           WHERE c.fencing_token = d.fencing_token
                                             AND c.ended_at_ms IS NULL)
                        ORDER BY d.decision_id
                        LIMIT :limit)
"""

BY_ID = """
SELECT d.decision_id, d.tenant_id, d.application_id, d.workload_id, d.selected_worker_id,
       d.fencing_token, d.reason, d.candidates, d.refused, d.inputs, d.inputs_digest,
       d.decided_by, d.at_ms
  FROM decisions d
 WHERE d.decision_id = :decision_id
"""

ALL = """
SELECT d.decision_id, d.tenant_id, d.application_id, d.workload_id, d.selected_worker_id,
       d.fencing_token, d.reason, d.candidates, d.refused, d.inputs_digest, d.decided_by, d.at_ms
  FROM decisions d
 WHERE d.decision_id < :before
 ORDER BY d.decision_id DESC
 LIMIT :limit
"""

OF_TENANT = """
SELECT d.decision_id, d.tenant_id, d.application_id, d.workload_id, d.selected_worker_id,
       d.fencing_token, d.reason, d.candidates, d.refused, d.inputs_digest, d.decided_by, d.at_ms
  FROM decisions d
 WHERE d.tenant_id = :tenant_id
   AND d.decision_id < :before
 ORDER BY d.decision_id DESC
 LIMIT :limit
"""

OF_WORKLOAD = """
SELECT d.decision_id, d.tenant_id, d.application_id, d.workload_id, d.selected_worker_id,
       d.fencing_token, d.reason, d.candidates, d.refused, d.inputs_digest, d.decided_by, d.at_ms
  FROM decisions d
 WHERE d.workload_id = :workload_id
   AND d.decision_id < :before
 ORDER BY d.decision_id DESC
 LIMIT :limit
"""

OF_WORKER = """
SELECT d.decision_id, d.tenant_id, d.application_id, d.workload_id, d.selected_worker_id,
       d.fencing_token, d.reason, d.candidates, d.refused, d.inputs_digest, d.decided_by, d.at_ms
  FROM decisions d
 WHERE d.selected_worker_id = :worker_id
   AND d.decision_id < :before
 ORDER BY d.decision_id DESC
 LIMIT :limit
"""


class Answer(Struct, frozen=True):
    """What inputs decide: everybody judged, and the one chosen, None when there is nobody."""

    inputs: choosing.Inputs
    judged: choosing.Judged
    chosen: Candidate | None

    @property
    def reason(self) -> str:
        """The decision in a sentence."""
        return choosing.UNMATCHED if self.chosen is None else choosing.MATCHED


def answer(inputs: choosing.Inputs) -> Answer:
    """Decide. Pure: the same inputs give the same answer."""
    judged = choosing.eligible_workers(inputs)
    return Answer(inputs, judged, choosing.first(judged))


def keep(tx: Tx, now: Now, caller: Caller, found: Answer) -> int:
    """Keep a decision; its number. One that chose nobody is kept once for its inputs.

    The oldest of the tenant go for it where it has more than KEPT_BYTES_MAX allows.
    """
    work = found.inputs.work
    selected = None if found.chosen is None else found.chosen.worker_id
    row = {
        "tenant_id": work.tenant_id,
        "application_id": work.application_id,
        "workload_id": work.workload_id,
        "selected_worker_id": selected,
        "reason": found.reason,
        "candidates": encode(found.judged.eligible).decode(),
        "refused": encode(found.judged.refused).decode(),
        "inputs": choosing.written(found.inputs),
        "inputs_digest": choosing.digest(found.inputs, found.judged),
        "decided_by": str(caller.subject),
        "now_ms": now.lease_ms,
    }
    kept = tx.row(KEEP, row)
    if kept is None:
        return int(tx.rows(KEPT, row)[0]["decision_id"])
    _make_room(tx, row)
    return int(kept["decision_id"])


def followed(tx: Tx, decision_id: int, fencing_token: int) -> None:
    """Note the claim that a decision led to."""
    tx.change(FOLLOWED, {"decision_id": decision_id, "fencing_token": fencing_token})


def name(decision_id: int) -> str:
    """The id of a decision on the wire."""
    return f"{PREFIX}{decision_id}"


def get(tx: Tx, ask: Ask[None], now: Now) -> Decision:
    """The decision `ask.id` with its inputs, and whether they give the same answer now.

    Refuses PLACEMENT_NOT_FOUND, alike for one of another tenant and a made-up one.
    """
    row = tx.row(BY_ID, {"decision_id": _number(ask.id)})
    if row is None or not ask.caller.may_see(row["tenant_id"]):
        raise principals.not_found("PLACEMENT_NOT_FOUND")
    return _shown(row, inputs=Raw(row["inputs"].encode()), agrees=agrees(row))


def page(tx: Tx, ask: Ask[DecisionQuery], now: Now) -> DecisionPage:
    """Decisions of the caller's tenants, newest first, without their inputs.

    Narrowed by workload and by the worker that was chosen. A page reads ROWS_READ_MAX rows at
    most, ends before its answer grows beyond ANSWER_BYTES_MAX, and so may be short.
    """
    query, caller = ask.body, ask.caller
    tenant_id = query.tenant_id or (caller.tenants[0] if len(caller.tenants) == 1 else "*")
    sql = ALL if tenant_id == "*" else OF_TENANT
    if query.workload_id is not None:
        sql = OF_WORKLOAD
    elif query.worker_id is not None:
        sql = OF_WORKER
    params: dict[str, Any] = {
        "workload_id": query.workload_id,
        "worker_id": query.worker_id,
        "tenant_id": tenant_id,
    }
    items: list[Decision] = []
    before, read, answer_bytes = query.before or NUMBER_END, 0, 0
    while read < ROWS_READ_MAX:
        rows = tx.rows(sql, {**params, "before": before, "limit": ROWS_AT_ONCE})
        for row in rows:
            if _wanted(caller, query, row):
                answer_bytes += len(row["candidates"]) + len(row["refused"])
                if items and answer_bytes > ANSWER_BYTES_MAX:
                    return DecisionPage(items=items, next_before=before)
                items.append(_shown(row))
            before = row["decision_id"]
            if len(items) == query.limit:
                return DecisionPage(items=items, next_before=before)
        read += len(rows)
        if len(rows) < ROWS_AT_ONCE:
            return DecisionPage(items=items, next_before=None)
    return DecisionPage(items=items, next_before=before)


def agrees(row: Row | Mapping[str, Any]) -> bool:
    """Whether a decisions row, decided anew from its own inputs, says what it says."""
    again = answer(choosing.read(row["inputs"]))
    chosen = None if again.chosen is None else again.chosen.worker_id
    return bool(
        row["selected_worker_id"] == chosen
        and encode(again.judged.eligible).decode() == row["candidates"]
        and encode(again.judged.refused).decode() == row["refused"]
        and choosing.digest(again.inputs, again.judged) == row["inputs_digest"]
    )


def _make_room(tx: Tx, row: Mapping[str, Any]) -> None:
    size = sum(len(row[member]) for member in ("candidates", "refused", "inputs"))
    kept = max(KEPT_MIN, min(KEPT_MAX, KEPT_BYTES_MAX // size))
    tx.change(
        DROP_OLD,
        {"tenant_id": row["tenant_id"], "kept": kept, "limit": DROPPED_AT_ONCE},
    )


def _wanted(caller: Caller, query: DecisionQuery, row: Row) -> bool:
    return (
        caller.may_see(row["tenant_id"])
        and query.tenant_id in (None, row["tenant_id"])
        and query.worker_id in (None, row["selected_worker_id"])
    )


def _number(decision_id: str) -> int:
    digits = decision_id.removeprefix(PREFIX)
    if digits == decision_id or not (digits.isascii() and digits.isdigit()) or len(digits) > 15:
        return 0
    return int(digits) if name(int(digits)) == decision_id else 0


def _shown(row: Row, **members: Any) -> Decision:
    candidates = decode(row["candidates"], type=list[Candidate])
    token = row["fencing_token"]
    return Decision(
        decision_id=name(row["decision_id"]),
        workload_id=row["workload_id"],
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        eligible_workers=[one.worker_id for one in candidates],
        reason=row["reason"],
        candidates=candidates,
        refused=decode(row["refused"], type=list[RefusedWorker]),
        inputs_digest=row["inputs_digest"],
        decided_by=row["decided_by"],
        evaluated_at_ms=row["at_ms"],
        selected_worker=row["selected_worker_id"],
        claim_id=None if token is None else f"claim_{token}",
        **members,
    )
