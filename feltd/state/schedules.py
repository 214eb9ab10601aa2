"""Schedules: each instant is dealt with once, in order, in the transaction that moves on behind it.

Wall time alone decides what is due. `last_at_ms` only rises and the next instant lies behind it, so
a clock that steps back waits and never doubles; one that steps forward is an outage. `missed` says
what becomes of instants that another due one has followed, or that are later than a minute; what it
drops is counted, not written. An instant that fires, or meets an unfinished run, is a row.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from msgspec.json import encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.model.trigger import Define
from feltd.state import firing, instants, mapping
from feltd.state.instants import Spec
from feltd.store.tx import Row, Tx

#: An instant this late is still on time: a daemon restarts in less.
LATE_MS = 60_000
#: Instants of a cron that one look passes over, and those of one operation: some 5 ms. An outage
#: of days takes several.
WALKED_MAX = 100
WALKED_TOGETHER = 1_000

#: Of what a schedule says, what decides when it is due: another one is another calendar.
TIMING = ("cron", "every_ms", "timezone")

FIRST = """
SELECT t.next_at_ms
  FROM triggers t
 WHERE t.next_at_ms IS NOT NULL
   AND (t.retry_at_ms IS NULL OR t.retry_at_ms <= :now_ms)
 ORDER BY t.next_at_ms, t.tenant_id, t.trigger_id
 LIMIT 1
"""

RETRY = """
SELECT t.retry_at_ms
  FROM triggers t
 WHERE t.retry_at_ms > :now_ms
   AND t.next_at_ms IS NOT NULL
 ORDER BY t.retry_at_ms, t.tenant_id, t.trigger_id
 LIMIT 1
"""

DUE = """
SELECT t.tenant_id, t.trigger_id
  FROM triggers t
 WHERE t.next_at_ms > :after_ms
   AND t.next_at_ms <= :until_ms
   AND (t.retry_at_ms IS NULL OR t.retry_at_ms <= :now_ms)
 ORDER BY t.next_at_ms, t.tenant_id, t.trigger_id
 LIMIT :rows
"""

READ = """
SELECT t.tenant_id, t.trigger_id, t.application_id, t.target_capability, t.work, t.requested_by,
       t.authorization_grant_id, t.cron, t.every_ms, t.timezone, t.missed, t.overlap,
       t.anchor_at_ms, t.next_at_ms, t.last_at_ms, t.last_workload_id, l.instance_id
  FROM triggers t
  JOIN ledger l ON l.id = 1
 WHERE t.tenant_id = :tenant_id
   AND t.trigger_id = :trigger_id
   AND t.kind = 'schedule'
"""

# The schedule may have been deleted and defined anew since.
DEALT_WITH = """
SELECT f.outcome
  FROM schedule_firings f
 WHERE f.tenant_id = :tenant_id
   AND f.trigger_id = :trigger_id
   AND f.scheduled_at_ms = :at_ms
   AND f.by_hand = 0
"""

# A dead letter has ended; what is gone had ended before.
UNFINISHED = """
SELECT w.workload_id
  FROM workloads w
 WHERE w.workload_id = :workload_id
   AND w.state NOT IN ('COMPLETED', 'CANCELLED', 'DEAD_LETTERED')
"""

DEAL = """
INSERT INTO schedule_firings (tenant_id, trigger_id, scheduled_at_ms, by_hand, instance_id,
                              outcome, workload_id, at_ms)
VALUES (:tenant_id, :trigger_id, :at_ms, :by_hand, :instance_id, :outcome, :workload_id, :now_ms)
"""

MOVE = """
UPDATE triggers
   SET last_at_ms = :last_at_ms,
       next_at_ms = :next_at_ms,
       passed_over = passed_over + :passed_over
 WHERE tenant_id = :tenant_id
   AND trigger_id = :trigger_id
   AND next_at_ms IS NOT NULL
"""


class Step(NamedTuple):
    """What one look at a due schedule does.

    It passes over `dropped` instants, deals with `at_ms` unless that is None, and stands behind
    `last_at_ms` then, before `next_at_ms`.
    """

    dropped: int
    at_ms: int | None
    last_at_ms: int
    next_at_ms: int | None


# -- as it is defined ------------------------------------------------------------------------------


def columns(body: Define, known: Row | Mapping[str, Any] | None, now: Now) -> dict[str, Any]:
    """The columns of a schedule's timing as a definition leaves them; `known` is its row before.

    The same timing goes on where it stood, also with another policy. Another one, or one that was
    disabled, begins behind both now and the last instant dealt with. Refuses TRIGGER_INVALID for
    what cannot be read, and where nothing is due within five years.
    """
    said: dict[str, Any] = {
        "cron": None if body.cron is None else " ".join(body.cron.split()),
        "every_ms": body.every_ms,
        "timezone": body.timezone or "UTC",
        "missed": body.missed or "skip",
        "overlap": body.overlap or "allow",
        "last_at_ms": None if known is None else known["last_at_ms"],
    }
    same = known is not None and all(known[name] == said[name] for name in TIMING)
    if same and known is not None:
        said |= {"anchor_at_ms": known["anchor_at_ms"], "next_at_ms": known["next_at_ms"]}
    else:
        anchor_at_ms = None if body.every_ms is None else now.wall_ms
        said |= {"anchor_at_ms": anchor_at_ms, "next_at_ms": None}
        instants.check(spec_of(said), now.wall_ms)
    if not body.enabled:
        said["next_at_ms"] = None
    elif said["next_at_ms"] is None:
        said["next_at_ms"] = begin(said, now)
    return said


def begin(row: Row | Mapping[str, Any], now: Now) -> int:
    """The first instant of a schedule that is enabled now: what passed meanwhile is not missed.

    Refuses TRIGGER_INVALID when nothing is due any more.
    """
    next_at_ms = instants.following(spec_of(row), max(now.wall_ms, row["last_at_ms"] or 0))
    if next_at_ms is None:
        raise Refused("TRIGGER_INVALID", "no instant of this schedule is left")
    return next_at_ms


def expect(tx: Tx, now: Now, next_at_ms: int) -> None:
    """Have the keeper look when an instant comes, not at its next tick."""
    tx.tell("instant", str(now.lease_from_wall(next_at_ms)))


def spec_of(row: Row | Mapping[str, Any]) -> Spec:
    """When a row of kind schedule is due."""
    return Spec(row["cron"], row["every_ms"], row["timezone"], row["anchor_at_ms"])


# -- when it is due --------------------------------------------------------------------------------


def fire_due(tx: Tx, limit: int, now: Now) -> tuple[int, int | None]:
    """Deal with some `limit` due instants; how many, and the lease time of the next one.

    At most half of them are of schedules that catch up after an outage, so that those keep no
    other waiting. Each schedule is guarded alone. Where nothing is due it
    reads one index and writes nothing.
    """
    first = _next(tx, now)
    if first is None or first > now.lease_ms:
        return 0, first
    fresh_ms = now.wall_ms - LATE_MS
    due = _due(tx, now, -1, fresh_ms, limit // 2)
    due += _due(tx, now, fresh_ms, now.wall_ms, limit - len(due))
    share = max(1, limit // max(1, len(due)))
    walked = WALKED_TOGETHER // max(1, len(due))
    done = sum(_serve(tx, now, row, share, walked) for row in due)
    return done, _next(tx, now)


def deal(tx: Tx, now: Now, row: Row, at_ms: int, workload_id: str | None, *, by_hand: bool) -> None:
    """Write down that an instant was dealt with: by a workload, or (None) by an unfinished one."""
    tx.change(
        DEAL,
        {
            **_name(row),
            "at_ms": at_ms,
            "by_hand": int(by_hand),
            "instance_id": row["instance_id"],
            "outcome": "overlap" if workload_id is None else "fired",
            "workload_id": workload_id,
            "now_ms": now.lease_ms,
        },
    )


def fire(tx: Tx, now: Now, row: Row, at_ms: int, instant: object) -> str:
    """Make the workload of an instant; its id. `instant` ends its key, at_ms is its label."""
    key = mapping.key_of(row, row["instance_id"], instant)
    text = encode(mapping.work_of(row).input, order="deterministic")
    workload_id = firing.fire(tx, now, row, key, text, {"scheduled_at_ms": str(at_ms)})
    firing.went_well(tx, now, row, workload_id)
    return workload_id


def row_of(tx: Tx, tenant_id: str, trigger_id: str) -> Row:
    """The row of a schedule that is there, as `fire` and `deal` take it."""
    return tx.rows(READ, {"tenant_id": tenant_id, "trigger_id": trigger_id})[0]


def _next(tx: Tx, now: Now) -> int | None:
    """When something is to be done next, lease time: an instant, or another try of one."""
    first = tx.row(FIRST, {"now_ms": now.lease_ms})
    found = [] if first is None else [now.lease_from_wall(first["next_at_ms"])]
    if not found or found[0] > now.lease_ms:
        retry = tx.row(RETRY, {"now_ms": now.lease_ms})
        found += [] if retry is None else [retry["retry_at_ms"]]
    return min(found, default=None)


def _due(tx: Tx, now: Now, after_ms: int, until_ms: int, rows: int) -> list[Row]:
    place = {"after_ms": after_ms, "until_ms": until_ms, "rows": rows}
    return tx.rows(DUE, {**place, "now_ms": now.lease_ms})


def _serve(tx: Tx, now: Now, name: Row, most: int, walked_max: int) -> int:
    """Up to `most` steps of one schedule, none more once they have passed over `walked_max`
    instants; how many. Its failure is its own.
    """
    walked = 0
    for done in range(most):
        row = row_of(tx, name["tenant_id"], name["trigger_id"])
        if row["next_at_ms"] is None or row["next_at_ms"] > now.wall_ms:
            return done
        try:
            walked += tx.attempt(partial(_take, tx, now, row))
        except Exception as error:
            if firing.is_storage(tx, error):
                raise
            firing.failed(tx, now, row, error)
            return done + 1
        if walked >= walked_max:
            return done + 1
    return most


def _take(tx: Tx, now: Now, row: Row) -> int:
    """One step: the instant, its workload and the move behind it stand together or not at all.

    How many instants it passed over.
    """
    step = _step(row, now)
    if step.next_at_ms is None:
        raise Refused("TRIGGER_INVALID", "no instant of this schedule is left")
    passed_over = step.dropped
    if step.at_ms is not None and not _dealt_with(tx, row, step.at_ms):
        workload_id = None
        if row["overlap"] == "allow" or not _is_unfinished(tx, row):
            workload_id = fire(tx, now, row, step.at_ms, step.at_ms)
        deal(tx, now, row, step.at_ms, workload_id, by_hand=False)
        passed_over += workload_id is None
    behind = {"last_at_ms": step.last_at_ms, "next_at_ms": step.next_at_ms}
    tx.change(MOVE, {**_name(row), **behind, "passed_over": passed_over})
    return step.dropped


def _step(row: Row, now: Now) -> Step:
    """What `missed` makes of the instants up to now; the first of them is due."""
    spec, first_ms = spec_of(row), row["next_at_ms"]
    if row["missed"] == "all":
        return Step(0, first_ms, first_ms, instants.following(spec, first_ms))
    ahead = instants.passed(spec, first_ms, now.wall_ms, WALKED_MAX)
    if ahead.more:
        # Each but the newest one counted has a later one that is due; go on from there.
        return Step(ahead.number, None, ahead.before or first_ms, ahead.newest)
    newest_ms = first_ms if ahead.newest is None else ahead.newest
    next_at_ms = instants.following(spec, newest_ms)
    if row["missed"] == "skip" and newest_ms < now.wall_ms - LATE_MS:
        return Step(ahead.number + 1, None, newest_ms, next_at_ms)
    return Step(ahead.number, newest_ms, newest_ms, next_at_ms)


def _dealt_with(tx: Tx, row: Row, at_ms: int) -> bool:
    return tx.row(DEALT_WITH, {**_name(row), "at_ms": at_ms}) is not None


def _is_unfinished(tx: Tx, row: Row) -> bool:
    return tx.row(UNFINISHED, {"workload_id": row["last_workload_id"]}) is not None


def _name(row: Row) -> dict[str, object]:
    return {"tenant_id": row["tenant_id"], "trigger_id": row["trigger_id"]}
