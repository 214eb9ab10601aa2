"""How one workload is taken in: who may ask for it, whether its key is known, its row, its offer.

What one operation makes shares what was looked up for it.
"""

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from msgspec.json import encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import grants
from feltd.mesh import (
    asked,
    deadlines,
    demands,
    events,
    groups,
    ownership,
    parents,
    pools,
    secrets,
)
from feltd.mesh.asked import digest as body_digest
from feltd.model.base import Ask, Caller
from feltd.model.grant import Grant
from feltd.model.workload import (
    INPUT_BYTES_MAX,
    Creation,
    Made,
    NewWorkload,
    Tombstone,
)
from feltd.store.tx import Row, Tx

#: What is refused here: codes begin with it.
NOUN = "WORKLOAD"
_invalid = partial(ownership.invalid, NOUN)
#: 80 bits beside the milliseconds: ids of one millisecond never meet.
RANDOM_DIGITS = 20

#: Dependencies that the items of one batch name together: each costs the writer some 10 µs.
NAMED_MAX = 8_000
#: What the keys of work begin with that triggers and schedules make.
OF_TRIGGERS = "trigger/"

NAMED = """
SELECT w.workload_id, w.state, w.body_sha256, w.result_id, 0 AS pruned
  FROM workloads w
 WHERE w.tenant_id = :tenant_id
   AND w.application_id = :application_id
   AND w.idempotency_key = :idempotency_key
UNION ALL
SELECT t.workload_id, t.state, t.body_sha256, t.result_id, 1 AS pruned
  FROM tombstones t
 WHERE t.tenant_id = :tenant_id
   AND t.application_id = :application_id
   AND t.idempotency_key = :idempotency_key
"""

CREATE = """
INSERT INTO workloads (workload_id, tenant_id, application_id, idempotency_key, state, lane_id,
                       demand_id, rank, due, eligible_at_ms, max_attempts, priority,
                       not_before_at_ms, ready_at_ms, created_at_ms, environment, definition_id,
                       definition_revision, trigger, requested_by, authorization_grant_id,
                       capability_snapshot, connection_scopes, retry_policy, placement, resources,
                       on_worker_lost, labels, traceparent, body_sha256, input, timeouts,
                       runtime_policy, dependencies, dependency_policy, group_name, concurrency,
                       rate, pool_id, gated, finished_at_ms, failure_kind, failure_message)
VALUES (:workload_id, :tenant_id, :application_id, :idempotency_key, :state, :lane_id,
        :demand_id, :rank, :due, :eligible_at_ms, :max_attempts, :priority,
        :not_before_at_ms, :ready_at_ms, :now_ms, :environment, :definition_id,
        :definition_revision, :trigger, :requested_by, :authorization_grant_id,
        :capability_snapshot, :connection_scopes, :retry_policy, :placement, :resources,
        :on_worker_lost, :labels, :traceparent, :body_sha256, :input, :timeouts,
        :runtime_policy, :dependencies, :dependency_policy, :group_name, :concurrency,
        :rate, :pool_id, :gated, :finished_at_ms, :failure_kind, :failure_message)
RETURNING seq
"""


class Intake(NamedTuple):
    """What one operation knows while it makes work; each grant and demand is looked up once.

    `alone`: a refusal takes back the whole operation. `offered`: the best rank by lane. `started`:
    feltd itself asks, for a trigger.
    """

    tx: Tx
    now: Now
    caller: Caller
    fresh: str
    alone: bool
    named: list[str]
    grants: dict[str | None, Grant | Refused | None]
    demands: dict[tuple[object, ...], tuple[int, int]]
    offered: dict[int, int]
    started: bool = False


def intake_of(tx: Tx, ask: Ask[Any], now: Now, *, alone: bool) -> Intake:
    """The intake of one operation; `alone` as in Intake."""
    return Intake(tx, now, ask.caller, ask.fresh, alone, [], {}, {}, {})


def enter(intake: Intake, creation: Creation, place: int) -> Made | Tombstone:
    """Make the workload, or find the one that its key names; `place`: its number in the command."""
    grant = _grant(intake, creation.grant_id)
    owner = ownership.owner_of(intake.caller, creation.body, grant, NOUN)
    ownership.require(intake.caller, creation.body, grant, creation.body.definition_id, NOUN)
    secrets.screen_labels(creation.body.labels)
    text = _input(creation)
    body = asked.filled(creation.body, owner)
    digest = body_digest(body, text)
    named = intake.tx.row(NAMED, {**owner, "idempotency_key": body.idempotency_key})
    if named is not None:
        return _repeated(named, digest)
    if body.idempotency_key.startswith(OF_TRIGGERS) and not intake.started:
        # Whoever had the key of a firing to come would keep it from happening.
        raise ownership.invalid(
            NOUN, "/idempotency_key", f"begins with {OF_TRIGGERS}: triggers alone name so"
        )
    standing, demand_id, lane_id = _placed(intake, creation.body, body, owner)
    row: dict[str, Any] = {
        **owner,
        **asked.columns(body, grant, intake.now),
        "workload_id": _identity(intake.now, intake.fresh, place),
        "lane_id": lane_id,
        "demand_id": demand_id,
        "requested_by": str(intake.caller.subject),
        "authorization_grant_id": None if grant is None else grant.id,
        "traceparent": creation.traceparent,
        "body_sha256": digest,
        "input": text.decode(),
    }
    _store(intake, row, standing)
    return Made(row["workload_id"], standing.state, created=True)


def _placed(
    intake: Intake, sent: NewWorkload, body: NewWorkload, owner: Mapping[str, str]
) -> tuple[parents.Standing, int | None, int | None]:
    """What it waits for, its demand and its lane; after this nothing refuses it any more.

    `body` is what was sent, filled in; pointers are into what was sent.
    """

    def found() -> tuple[parents.Standing, int | None, int | None]:
        standing = _standing(intake, sent, owner)
        if standing.failed is not None:
            return standing, None, None
        return standing, *_demand(intake, body, owner)

    # Most of a batch is alike and writes nothing here: it needs no savepoint each.
    plain = body.group is None and not _keyed(body) and _kind(body, owner) in intake.demands
    return found() if plain or intake.alone else intake.tx.attempt(found)


def _standing(intake: Intake, body: NewWorkload, owner: Mapping[str, str]) -> parents.Standing:
    """What it waits for; its pool is there, its group is open, and made when it is the first."""
    if body.placement is not None and body.placement.pool_id is not None:
        pool_id = body.placement.pool_id
        pools.require(intake.tx, owner["tenant_id"], owner["application_id"], pool_id)
    if body.group is not None:
        groups.join(intake.tx, intake.now, owner["tenant_id"], owner["application_id"], body.group)
    if not body.dependencies:
        return parents.Standing()
    intake.named.extend(body.dependencies)
    if len(intake.named) > NAMED_MAX:
        raise ownership.invalid(
            NOUN, "/dependencies", f"the batch names {NAMED_MAX} already: send it once more"
        )
    return parents.look(
        intake.tx,
        owner["tenant_id"],
        owner["application_id"],
        body.dependencies,
        body.dependency_policy,
    )


def _grant(intake: Intake, grant_id: str | None) -> Grant | None:
    # The local operator and --no-auth need none; what they name must still be theirs to use.
    if intake.caller.local and grant_id is None:
        return None
    if grant_id not in intake.grants:
        try:
            intake.grants[grant_id] = grants.usable(
                intake.tx, intake.caller, intake.now, grant_id, code="WORKLOAD_UNAUTHORIZED"
            )
        except Refused as refused:
            intake.grants[grant_id] = refused
    found = intake.grants[grant_id]
    if isinstance(found, Refused):
        raise found
    return found


def _kind(body: NewWorkload, owner: Mapping[str, str]) -> tuple[object, ...]:
    """What makes two bodies ask for the same demand."""
    return (
        owner["tenant_id"],
        owner["application_id"],
        body.definition_id,
        body.definition_revision,
        body.capability_snapshot,
        asked.text_of([body.resources, body.placement]),
    )


def _keyed(body: NewWorkload) -> bool:
    return body.concurrency is not None or body.rate is not None


def _demand(intake: Intake, body: NewWorkload, owner: Mapping[str, str]) -> tuple[int, int]:
    assert body.resources is not None
    assert body.placement is not None
    kind, keyed = _kind(body, owner), _keyed(body)
    found = None if keyed else intake.demands.get(kind)
    if found is None:
        found = demands.find(
            intake.tx,
            tenant_id=owner["tenant_id"],
            application_id=owner["application_id"],
            definition_id=body.definition_id,
            definition_revision=body.definition_revision,
            capabilities=body.capability_snapshot,
            resources=body.resources,
            placement=body.placement,
            concurrency=body.concurrency,
            rate=body.rate,
        )
        if not keyed:
            # The newest limit of a key holds, also within a batch: those are asked each time.
            intake.demands[kind] = found
    return found


def _store(intake: Intake, row: dict[str, Any], standing: parents.Standing) -> None:
    """Insert the row in the state it begins in, offer it when it is due, write down that it came.

    What is a dead letter at once keeps no lane; what waits for others is not due.
    """
    tx, now = intake.tx, intake.now
    ready, failed = standing.state == "READY", standing.failed is not None
    row["state"] = standing.state
    row["due"] = int(ready and row["eligible_at_ms"] <= now.lease_ms)
    row["ready_at_ms"] = now.lease_ms if ready else None
    row["finished_at_ms"] = now.lease_ms if failed else None
    row["failure_kind"] = "dependency_failed" if failed else None
    row["failure_message"] = standing.failed
    made = tx.rows(CREATE, row)[0]
    if row["dependencies"] != "[]":
        parents.keep(tx, made["seq"], row["tenant_id"], row["dependencies"])
    if standing.waits:
        parents.register(tx, made["seq"], standing)
    if row["timeouts"] != deadlines.NONE:
        deadlines.arm(tx, now, row["workload_id"])
    if row["due"]:
        _offer(intake, row, made["seq"])
    elif ready:
        tx.tell("due", str(row["eligible_at_ms"]))
    events.tell(
        tx,
        now,
        "create",
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        workload_id=row["workload_id"],
        to_state=standing.state,
        eligible_at_ms=row["eligible_at_ms"] if ready else None,
        end_kind=row["failure_kind"],
        actor=row["requested_by"],
    )


def _offer(intake: Intake, row: Mapping[str, Any], seq: int) -> None:
    # Behind what this operation offered to the same lane already, a row is the head of nothing.
    best = intake.offered.get(row["lane_id"])
    if best is None or row["rank"] < best:
        demands.offer(intake.tx, row["lane_id"], row["demand_id"], row["rank"], seq)
        intake.offered[row["lane_id"]] = row["rank"]
        intake.tx.tell("ready", f"{row['tenant_id']}/{row['application_id']}")


def _repeated(named: Row, digest: str) -> Made | Tombstone:
    if named["body_sha256"] != digest:
        raise Refused(
            "WORKLOAD_IDEMPOTENCY_CONFLICT",
            "the idempotency key names a workload that asked for something else",
        )
    if named["pruned"]:
        return Tombstone(named["workload_id"], named["state"], named["result_id"])
    return Made(named["workload_id"], named["state"], created=False)


def _input(creation: Creation) -> bytes:
    text = creation.input
    if text is None:
        text = encode(creation.body.input, order="deterministic")
    if len(text) > INPUT_BYTES_MAX:
        raise ownership.invalid(
            NOUN, "/input", f"takes {len(text)} bytes, at most {INPUT_BYTES_MAX} are allowed"
        )
    return text


def _identity(now: Now, fresh: str, place: int) -> str:
    """The id of the workload at `place` of a command: milliseconds first, so that ids ascend."""
    chance = hashlib.sha256(f"{fresh}/{place}".encode()).hexdigest()
    return f"workload_{now.lease_ms:012x}{chance[:RANDOM_DIGITS]}"
