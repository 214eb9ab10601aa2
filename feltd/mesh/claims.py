"""How work comes to a worker: pulled by rank, or taken by its id.

What fits is sought here, whether it may be taken is decided in taking.py by the one statement that
issues claims. A worker without work is told why. Never takes work for anybody but the caller.
"""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.json import decode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import principals
from feltd.mesh import (
    affinity,
    demands,
    gates,
    heartbeat,
    holding,
    holds,
    idle,
    lifecycle,
    matching,
    placement,
    pools,
    refusal,
    taking,
    workers,
)
from feltd.mesh.taking import Taking
from feltd.model.base import Ask, Caller
from feltd.model.channel import Credit
from feltd.model.claim import Claim, ClaimById, Pull, Pulled, Reason
from feltd.store.tx import Row, Tx

PULLER = """
SELECT k.worker_id, k.tenant_id, k.application_id, k.incarnation, k.content_version,
       k.capability_version, k.granted_capabilities, k.workload_kinds, k.resource_profile,
       k.labels, k.concurrency, k.health, k.lifecycle, k.offline_reason, k.drain_at_ms,
       k.last_seen_at_ms, k.heartbeat_timeout_ms, k.authority_live, k.authority_unsettled,
       k.authority_expires_at_ms, k.removed_at_ms, k.quarantined_at_ms, k.quarantined_until_at_ms,
       (SELECT count(*)
          FROM claims c
         WHERE c.worker_id = k.worker_id
           AND c.ended_at_ms IS NULL) AS active,
       (SELECT count(*)
          FROM claims c
         WHERE c.worker_id = k.worker_id
           AND c.request_id = :request_id
           AND c.incarnation = k.incarnation) AS answered,
       a.demand_generation, a.gate_generation,
       (:key_id = ''
        OR EXISTS (SELECT 1
                     FROM keys y
                    WHERE y.key_id = :key_id
                      AND y.revoked_at_ms IS NULL
                      AND coalesce(y.expires_at_ms, :wall_ms + 1) > :wall_ms)) AS key_live
  FROM workers k
  LEFT JOIN applications a ON a.tenant_id = k.tenant_id AND a.application_id = k.application_id
 WHERE k.worker_id = :worker_id
"""

WANTED = """
SELECT w.workload_id, w.tenant_id, w.application_id, w.state, w.fencing_token, w.claim_worker_id,
       w.claim_incarnation, w.expires_at_ms, w.eligible_at_ms, w.definition_id,
       w.definition_revision, w.capability_snapshot, w.placement, w.resources,
       d.at_ms AS timeout_at_ms
  FROM workloads w
  LEFT JOIN deadlines d ON d.workload_id = w.workload_id
 WHERE w.workload_id = :workload_id
"""

OF_REQUEST = """
SELECT c.fencing_token
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.worker_id = :worker_id
   AND c.request_id = :request_id
   AND c.incarnation = :incarnation
   AND c.ended_at_ms IS NULL
   AND w.expires_at_ms > :now_ms
   AND NOT EXISTS (SELECT 1
                     FROM deadlines d
                    WHERE d.workload_id = w.workload_id
                      AND d.at_ms <= :now_ms)
 ORDER BY c.fencing_token
"""

#: An answer up to so many bytes has room for one claim more.
ANSWER_ROOM_BYTES = holding.ANSWER_BYTES_MAX - holding.CLAIM_BYTES_MAX
#: Heads one pull meets in vain, each of which closes a slice of lanes: some 30 ms at most. It is
#: woken to go on with the rest.
VAIN_MAX = 64
#: Claims of one pull once it has to look through all heads for each.
CHOOSY_MAX = 16

#: The reason a worker is told for each rule that keeps it from any work.
REASONS: Mapping[str, Reason] = {
    "draining": Reason("WORKER_DRAINING", "the worker is draining: it gets no new work"),
    "quarantined": Reason("WORKER_QUARANTINED", "the worker is quarantined: it gets no new work"),
    "not_ready": Reason("WORKER_NOT_READY", "send a heartbeat first"),
    "full": Reason("WORKER_FULL", "the worker holds as many claims as its concurrency"),
    "unhealthy": Reason("WORKER_UNHEALTHY", "the worker does not report HEALTHY"),
}
NOT_THROUGH = Reason("KEY_FULL", "many keys at their limit stand before what may fit: ask again")
ANSWERED = Reason("REQUEST_REPEATED", "the claims of this request_id have ended: ask anew")
#: What placement.unfit compares of a worker.
OFFER = ("granted_capabilities", "workload_kinds", "resource_profile", "labels")


class Post(NamedTuple):
    """Where a worker waits: `queue` is the tenant/application whose "ready" signals matter to it.

    Work that fits one worker fits every other one of the queue with an equal `offer`. Some of what
    it left for others may be its own after `again_ms`. `wants`: its credit is not filled.
    """

    queue: str
    offer: tuple[str, ...]
    again_ms: int | None = None
    wants: bool = False


def pull(tx: Tx, ask: Ask[Pull], now: Now) -> Pulled:
    """Take up to `max` workloads that fit the worker `ask.id`, best rank first.

    Each under a lease of lease_ms from now, within the worker's grant chain; with `start` they
    are RUNNING at once. A repeated `request_id` gives what still lives of its first claims, never
    others. Nothing taken: `reasons` say why. Refuses WORKER_RECOVERY_REQUIRED for an OFFLINE or
    RECOVERING worker, WORKER_UNAUTHORIZED when its grant has ended.
    """
    return pull_for(tx, ask, now)[1]


def pull_for(tx: Tx, ask: Ask[Pull], now: Now, *, heard: bool = True) -> tuple[Post, Pulled]:
    """As `pull`, with where its worker stands if it has to wait."""
    row = puller(tx, ask.caller, now, ask.id, ask.body.request_id, heard=heard)
    pulled, again_ms = _pull(tx, ask, now, row)
    return post_of(tx, row, ask.body)._replace(again_ms=again_ms), pulled


def post_of(tx: Tx, row: Row, pull: Pull | Credit | None) -> Post:
    """Where the worker of a PULLER row waits with this pull."""
    kinds = sorted(set(pull.workload_kinds or ())) if pull is not None else ()
    # A pool that lists workers has work for one of two that are alike in all else.
    offer = (*(str(row[name]) for name in OFFER), *kinds, *pools.listing(tx, row))
    return Post(f"{row['tenant_id']}/{row['application_id']}", offer)


def _pull(tx: Tx, ask: Ask[Pull], now: Now, row: Row) -> tuple[Pulled, int | None]:
    """The answer, and after how long of waiting an empty one may become another."""
    if row["answered"]:
        claims = _of_request(tx, row, ask.body.request_id, now)
        reasons = [] if claims else [ANSWERED]
        return _pulled(row, claims, row["active"], reasons, now), None
    _require_standing(row, now)
    standing = _standing(row, now)
    if standing:
        reasons = [REASONS[rule] for rule in standing]
        return _pulled(row, [], row["active"], reasons, now), None
    fit = matching.fitting(tx, row, tuple(sorted(set(ask.body.workload_kinds or ()))))
    look = _Look(tx, now, row, fit)
    claims = _take(tx, ask, now, row, look)
    if claims:
        return _pulled(row, claims, row["active"] + len(claims), [], now), None
    again_at_ms = look.waits.again_at_ms
    again_ms = None if again_at_ms is None else again_at_ms - now.lease_ms
    reasons = [NOT_THROUGH] if look.vain == VAIN_MAX else idle.reasons(tx, fit)
    return _pulled(row, [], row["active"], reasons, now), again_ms


def claim(tx: Tx, ask: Ask[ClaimById], now: Now) -> tuple[Claim, bool]:
    """Take the workload `ask.id` for the calling worker; the claim, and whether it is new.

    Repeated by the holder of the live claim: that claim. Refuses, in this order:
    WORKLOAD_NOT_FOUND, WORKER_NOT_FOUND, WORKLOAD_CAPABILITY_DENIED, WORKLOAD_NOT_READY,
    WORKLOAD_NOT_YET_ELIGIBLE (with eligible_at_ms), MESH_PLACEMENT_DENIED (with rules).
    """
    worker_id = _claimant(ask.caller, ask.body.worker_id)
    wanted = tx.row(WANTED, {"workload_id": ask.id})
    if wanted is None or not ask.caller.may_see(wanted["tenant_id"]):
        raise principals.not_found("WORKLOAD_NOT_FOUND")
    row = puller(tx, ask.caller, now, worker_id, None)
    if wanted["tenant_id"] != row["tenant_id"]:
        raise principals.not_found("WORKLOAD_NOT_FOUND")
    if (
        wanted["claim_worker_id"] == worker_id
        and wanted["claim_incarnation"] == row["incarnation"]
        and wanted["expires_at_ms"] > now.lease_ms
        and not _timed_out(wanted, now)
    ):
        held = holding.live_claim(tx, wanted["fencing_token"])
        assert held is not None
        return held, False
    _require_claimable(tx, row, wanted, now)
    met = affinity.met(decode(wanted["placement"]).get("affinity", {}), decode(row["labels"]))
    wish = Taking(ask.caller, row, ask.id, ask.body.lease_ms, "id", affinity=met)
    taken = taking.take(tx, now, wish)
    if taken is None:
        raise RuntimeError(f"{ask.id} could not be claimed although nothing speaks against it")
    return taken, True


def puller(
    tx: Tx, caller: Caller, now: Now, worker_id: str, request_id: str | None, *, heard: bool = True
) -> Row:
    """The worker a call takes work for, as PULLER gives it: known, its own, settled, heard.

    `heard` is False where it is the daemon that looks, not the worker that calls. Refuses
    UNAUTHENTICATED with reasons, FORBIDDEN, WORKER_NOT_FOUND.
    """
    principals.acting_worker(caller, worker_id)
    params: dict[str, object] = {
        "worker_id": worker_id,
        "request_id": request_id,
        "key_id": caller.key_id,
        "wall_ms": now.wall_ms,
    }
    row = tx.row(PULLER, params)
    if row is None or row["removed_at_ms"] is not None:
        principals.confirm(tx, caller, now)
        raise principals.not_found("WORKER_NOT_FOUND")
    if not row["key_live"] or caller.incarnation not in (None, row["incarnation"]):
        principals.confirm(tx, caller, now)
        raise principals.ended(principals.Ending(*principals.ENDINGS["taken_over"]))
    if row["authority_unsettled"] and refusal.settled(tx, now, worker_id):
        row = tx.row(PULLER, params)
        assert row is not None
    if heard and row["last_seen_at_ms"] + workers.HEARD_EVERY_MS <= now.lease_ms:
        workers.heard(tx, worker_id, now)
    return row


def _claimant(caller: Caller, named: str | None) -> str:
    if caller.open:
        if named is None:
            raise Refused(
                "WORKLOAD_INVALID",
                "worker_id says which worker takes it",
                errors=[{"pointer": "/worker_id", "detail": "missing"}],
            )
        return named
    if caller.worker_id is None:
        raise Refused("FORBIDDEN", "this needs the key of the worker that takes the workload")
    return principals.acting_worker(caller, named or caller.worker_id)


def _require_standing(row: Row, now: Now) -> None:
    """Refuse a worker that must reconcile first, or whose grant has ended."""
    heartbeat.require_present(row)
    if "grant" in placement.standing(row, now, active=row["active"]):
        raise Refused("WORKER_UNAUTHORIZED", "the grant this worker registered with has ended")


def _standing(row: Row, now: Now) -> list[str]:
    # The call itself shows that the worker lives, so it cannot be stale.
    rules = placement.standing(row, now, active=row["active"])
    return [rule for rule in rules if rule in REASONS]


def _timed_out(wanted: Row, now: Now) -> bool:
    at_ms = wanted["timeout_at_ms"]
    return at_ms is not None and at_ms <= now.lease_ms


def _require_claimable(tx: Tx, row: Row, wanted: Row, now: Now) -> None:
    owner = (row["tenant_id"], row["application_id"], row["gate_generation"])
    rules = placement.failing(
        row,
        wanted,
        now,
        active=row["active"],
        pools=pools.of_application(tx, *owner),
        holds=holds.of_application(tx, *owner),
        full=gates.full(tx, now, wanted["workload_id"]),
    )
    if "capabilities" in rules or "grant" in rules:
        raise Refused(
            "WORKLOAD_CAPABILITY_DENIED",
            "the worker was not granted every capability of the workload",
        )
    if wanted["state"] != "READY":
        raise Refused("WORKLOAD_NOT_READY", f"the workload is {wanted['state']}")
    if _timed_out(wanted, now):
        raise Refused("WORKLOAD_NOT_READY", "a timeout of the workload has passed")
    if wanted["eligible_at_ms"] > now.lease_ms:
        raise Refused(
            "WORKLOAD_NOT_YET_ELIGIBLE",
            "the workload may not run yet",
            eligible_at_ms=wanted["eligible_at_ms"],
            server_time_ms=now.lease_ms,
        )
    rules = [rule for rule in rules if rule != "stale"]
    if rules:
        why = placement.reasons(rules)
        raise Refused("MESH_PLACEMENT_DENIED", "worker is not eligible", rules=rules, reasons=why)


class _Look:
    """What one pull passes over: work left for others, and what could not be taken."""

    def __init__(self, tx: Tx, now: Now, row: Row, fit: matching.Fit) -> None:
        self.fit = fit
        self.waits = affinity.Waits(tx, now, row)
        #: Demands of which nothing more is tried.
        self.passed: set[int] = set()
        #: Heads that could not be taken.
        self.vain = 0

    @property
    def choosy(self) -> bool:
        """Something was passed over, so that each further look may have to go through all heads."""
        return bool(self.passed) or self.waits.again_at_ms is not None

    def head(self, tx: Tx) -> Row | None:
        """The best head that this pull may take."""
        asked = self.fit.leanings or self.passed
        return matching.head(tx, self.fit, self._may if asked else None)

    def met(self, head: Row) -> int:
        """How many affinity labels of a head the worker has."""
        leaning = self.fit.leanings.get(head["demand_id"])
        return 0 if leaning is None else leaning.met

    def _may(self, head: Row) -> bool:
        if head["demand_id"] in self.passed:
            return False
        leaning = self.fit.leanings.get(head["demand_id"])
        return leaning is None or not self.waits.left(leaning, head["eligible_at_ms"])


def _take(tx: Tx, ask: Ask[Pull], now: Now, row: Row, look: _Look) -> list[Claim]:
    """Claim the best heads one after another until there are enough, or none may be taken."""
    taken: list[Claim] = []
    answer_bytes, refused = 0, ""
    free = min(ask.body.max, row["concurrency"] - row["active"])
    while len(taken) < free and answer_bytes <= ANSWER_ROOM_BYTES and look.vain < VAIN_MAX:
        head = None if look.choosy and len(taken) >= CHOOSY_MAX else look.head(tx)
        if head is None:
            break
        held = taking.take(tx, now, _wish(ask, row, head, look.met(head)))
        if held is not None:
            taken.append(held)
            answer_bytes += holding.claim_bytes(held)
            continue
        look.vain += 1
        if gates.shut(tx, now, head["workload_id"]):
            continue
        # A head that cannot be taken is out of date: found again, it is another. The same one
        # again is kept back by something else, and its demand waits for that.
        demands.withdraw(tx, head["lane_id"], head["demand_id"])
        if head["workload_id"] == refused:
            look.passed.add(head["demand_id"])
        refused = head["workload_id"]
    if look.vain == VAIN_MAX:
        tx.tell("ready", f"{row['tenant_id']}/{row['application_id']}")
    return taken


def _wish(ask: Ask[Pull], row: Row, head: Row, met: int) -> Taking:
    body = ask.body
    return Taking(
        ask.caller,
        row,
        head["workload_id"],
        body.lease_ms,
        "pull",
        body.request_id,
        start=body.start,
        affinity=met,
    )


def _of_request(tx: Tx, row: Row, request_id: str | None, now: Now) -> list[Claim]:
    asked = {
        "worker_id": row["worker_id"],
        "incarnation": row["incarnation"],
        "request_id": request_id,
        "now_ms": now.lease_ms,
    }
    held = (holding.live_claim(tx, one["fencing_token"]) for one in tx.rows(OF_REQUEST, asked))
    return [claim for claim in held if claim is not None]


def _pulled(row: Row, claims: list[Claim], active: int, reasons: list[Reason], now: Now) -> Pulled:
    return Pulled(
        claims=claims,
        lifecycle=lifecycle.shown(row, active),
        reasons=reasons,
        server_time_ms=now.lease_ms,
    )
