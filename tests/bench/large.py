"""A file as large as a busy mesh makes it in a day, filled by SQL, on which every promise holds.

Kinds and what waits are made by the rules; the rest are copies of those rows. The schema's triggers
guard each row that is written, so they stand aside while so many are, and come back.
"""

import sqlite3
from pathlib import Path
from typing import Any

from msgspec import convert

from feltd.clock import Now, wall_ms
from feltd.identity import audit, principals
from feltd.mesh import creation, events
from feltd.model.base import Ask
from feltd.model.workload import Batch, Creation, NewWorkload
from feltd.store import connect
from feltd.store.tx import Row, Tx
from tests.bench.machine import APPLICATION, TENANT, workload

KINDS = 40
WORKERS = 200
#: Of ten workloads eight are over: of eighty, so many are done, and so many done or given up.
DONE, OVER = 74, 77
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
#: Events that one commit seals.
SEALED = 400
CAPABILITY = '["bench.work"]'

TRIGGERS = """
SELECT name, sql
  FROM sqlite_schema
 WHERE type = 'trigger'
   AND tbl_name IN ('workloads', 'claims', 'events', 'audit', 'workers')
"""

WORKER = """
INSERT INTO workers (worker_id, tenant_id, application_id, name, runtime, version,
                     capability_version, declared_capabilities, granted_capabilities,
                     workload_kinds, resource_profile, labels, concurrency, health, lifecycle,
                     lifecycle_cause, offline_reason, heartbeat_interval_ms, heartbeat_timeout_ms,
                     registered_at_ms, last_seen_at_ms)
VALUES (printf('worker_%024x', :number), :tenant_id, :application_id, printf('past-%03d', :number),
        'process', '1', 1, :capabilities, :capabilities, '[]', '{}', '{}', 64, 'UNHEALTHY',
        'OFFLINE', 'lost', 'failed', 10000, 30000, :at_ms, :at_ms)
"""

# What became of work i and when: over a day, a third of it in the last hour.
PAST = """
CREATE TEMP TABLE past AS
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows)
SELECT i,
       :token + i AS token,
       printf('worker_%024x', i % :workers) AS worker_id,
       CASE WHEN i % 80 < :done THEN 'COMPLETED'
            WHEN i % 80 < :over THEN 'DEAD_LETTERED'
            ELSE 'CANCELLED' END AS state,
       CASE WHEN i * 3 < :rows * 2
            THEN :begin_ms + CAST(1.5 * i / :rows * 23 * :hour_ms AS INTEGER)
            ELSE :begin_ms + 23 * :hour_ms
                 + CAST((3.0 * i / :rows - 2) * (:hour_ms - 60000) AS INTEGER)
            END AS at_ms,
       100 + i % :kinds * 50 + i * 7919 % 1000 AS took_ms
  FROM n
"""

COPY_WAITING = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :copies)
INSERT INTO workloads ({columns})
SELECT {values}
  FROM workloads w, n
 WHERE w.seq <= :base
"""

COPY_PAST = """
INSERT INTO workloads ({columns})
SELECT {values}
  FROM past p
  JOIN workloads w ON w.seq = 1 + p.i % :kinds
 ORDER BY p.i
"""

#: Columns of a copy that waits, and of one that is over, where they differ from the row copied.
WAITS = {
    "workload_id": "w.workload_id || printf('-%07d', n.i)",
    "idempotency_key": "w.idempotency_key || '-' || n.i",
}
IS_OVER = {
    "workload_id": "printf('workload_past%015d', p.i)",
    "idempotency_key": "'past-' || p.i",
    "state": "p.state",
    "lane_id": "NULL",
    "demand_id": "NULL",
    "due": "0",
    "fencing_token": "iif(p.state = 'CANCELLED', 0, p.token)",
    "attempt_number": "p.state <> 'CANCELLED'",
    "attempts_spent": "p.state = 'DEAD_LETTERED'",
    "max_attempts": "iif(p.state = 'DEAD_LETTERED', 1, w.max_attempts)",
    "created_at_ms": "p.at_ms",
    "eligible_at_ms": "p.at_ms",
    "ready_at_ms": "p.at_ms",
    "rank": "p.at_ms",
    "finished_at_ms": "p.at_ms + 10 + p.took_ms",
    "failure_kind": "iif(p.state = 'DEAD_LETTERED', 'kind_' || (p.i % 7), NULL)",
    "failure_message": "iif(p.state = 'DEAD_LETTERED', 'it broke', NULL)",
    "result_id": "iif(p.state = 'COMPLETED', 'result_' || p.i, NULL)",
    "result_token": "iif(p.state = 'COMPLETED', p.token, NULL)",
    "result_started_at_ms": "iif(p.state = 'COMPLETED', p.at_ms + 10, NULL)",
    "result_expires_at_ms": "iif(p.state = 'COMPLETED', p.at_ms + 60000, NULL)",
    "output": "iif(p.state = 'COMPLETED', 'null', NULL)",
}

CLAIMS = """
INSERT INTO claims (fencing_token, workload_id, tenant_id, application_id, worker_id, incarnation,
                    number, lease_ms, issued_at_ms, expires_at_ms, started_at_ms, ended_at_ms,
                    end_kind, end_state, spent, failure_message, how, rank, worker_lifecycle)
SELECT p.token, printf('workload_past%015d', p.i), :tenant_id, :application_id, p.worker_id, 1, 1,
       60000, p.at_ms + 5, p.at_ms + 60005, p.at_ms + 10, p.at_ms + 10 + p.took_ms,
       iif(p.state = 'COMPLETED', 'completed', 'kind_' || (p.i % 7)), p.state,
       p.state = 'DEAD_LETTERED', iif(p.state = 'COMPLETED', NULL, 'it broke'), 'pull', p.at_ms,
       'READY'
  FROM past p
 WHERE p.state <> 'CANCELLED'
 ORDER BY p.i
"""

CREATED = """
INSERT INTO events (at_ms, kind, tenant_id, application_id, workload_id, to_state, eligible_at_ms)
SELECT w.created_at_ms, 'create', w.tenant_id, w.application_id, w.workload_id, w.state,
       w.eligible_at_ms
  FROM workloads w
 WHERE w.seq > :base
   AND w.seq <= :waiting
 ORDER BY w.seq
"""

# Numbered in the order of time; 1 created, 2 claimed, 3 started, 4 over.
MOMENTS = """
CREATE TEMP TABLE moments AS
SELECT p.at_ms AS at_ms, p.i AS i, 1 AS step FROM past p
UNION ALL
SELECT p.at_ms + 5, p.i, 2 FROM past p WHERE p.state <> 'CANCELLED'
UNION ALL
SELECT p.at_ms + 10, p.i, 3 FROM past p WHERE p.state <> 'CANCELLED'
UNION ALL
SELECT p.at_ms + 10 + p.took_ms, p.i, 4 FROM past p
 ORDER BY 1, 2, 3
"""

HAPPENED = """
INSERT INTO events (at_ms, kind, tenant_id, application_id, workload_id, worker_id, fencing_token,
                    from_state, to_state, eligible_at_ms, expires_at_ms, end_kind, actor)
SELECT m.at_ms,
       CASE m.step WHEN 1 THEN 'create' WHEN 2 THEN 'claim' WHEN 3 THEN 'start'
            ELSE CASE p.state WHEN 'COMPLETED' THEN 'complete' WHEN 'CANCELLED' THEN 'cancel'
                      ELSE 'fail' END END,
       :tenant_id,
       :application_id,
       printf('workload_past%015d', m.i),
       iif(m.step = 1 OR p.state = 'CANCELLED', NULL, p.worker_id),
       iif(m.step = 1 OR p.state = 'CANCELLED', NULL, p.token),
       CASE m.step WHEN 1 THEN NULL WHEN 2 THEN 'READY' WHEN 3 THEN 'CLAIMED'
            ELSE iif(p.state = 'CANCELLED', 'READY', 'RUNNING') END,
       CASE m.step WHEN 1 THEN 'READY' WHEN 2 THEN 'CLAIMED' WHEN 3 THEN 'RUNNING'
            ELSE p.state END,
       iif(m.step = 1, m.at_ms, NULL),
       iif(m.step = 2, m.at_ms + 60000, NULL),
       CASE WHEN m.step < 4 OR p.state = 'CANCELLED' THEN NULL
            WHEN p.state = 'COMPLETED' THEN 'completed'
            ELSE 'kind_' || (m.i % 7) END,
       iif(m.step = 4 AND p.state = 'CANCELLED', 'human:ann', NULL)
  FROM moments m
  JOIN past p ON p.i = m.i
 ORDER BY m.rowid
"""

UNSEALED = events.UNSEALED.rstrip() + "\n LIMIT :rows\n"


def fill(rows: int, path: Path) -> None:
    """A day of so many workloads, four of five of them over."""
    conn = connect.open_local(path, read_only=False)
    conn.execute("BEGIN IMMEDIATE")
    tx = Tx(conn)
    begin = Now(wall_ms() - DAY_MS, wall_ms() - DAY_MS)
    base = _kinds(tx, begin)
    triggers = conn.execute(TRIGGERS).fetchall()
    for trigger in triggers:
        conn.execute(f"DROP TRIGGER {trigger['name']}")
    _waiting(conn, base, rows // 5)
    _past(conn, begin, rows * 4 // 5)
    for trigger in triggers:
        conn.execute(trigger["sql"])
    _seal(tx)
    conn.execute("COMMIT")
    conn.close()


def kind(number: int) -> str:
    """The definition of one kind of work."""
    return f"kind{number:02d}"


def _kinds(tx: Tx, now: Now) -> int:
    """One workload of each kind that is ready, and of some kinds others; how many."""
    shapes: tuple[dict[str, Any], ...] = (
        {},
        {"priority": 9, "concurrency": {"key": "blocked", "limit": 1}},
        {"not_before_at_ms": now.wall_ms + 2 * DAY_MS},
    )
    asked = [
        {**workload(f"{n}-{place}"), "definition_id": kind(n), **members}
        for place, members in enumerate(shapes)
        for n in range(KINDS if place == 0 else KINDS // 4)
    ]
    items = [Creation(body=convert(one, NewWorkload)) for one in asked]
    batch = Ask(caller=principals.OPEN, body=Batch(tuple(items)), fresh="base")
    creation.create_batch(tx, batch, now)
    events.seal(tx, now)
    return len(asked)


def _waiting(conn: sqlite3.Connection, base: int, rows: int) -> None:
    copies = rows // base
    _copy(conn, COPY_WAITING, WAITS, {"copies": copies, "base": base})
    conn.execute(CREATED, {"base": base, "waiting": base * (copies + 1)})


def _past(conn: sqlite3.Connection, begin: Now, rows: int) -> None:
    whose = {"tenant_id": TENANT, "application_id": APPLICATION}
    at = {"begin_ms": begin.wall_ms, "hour_ms": HOUR_MS}
    for number in range(WORKERS):
        conn.execute(
            WORKER,
            whose | {"number": number, "capabilities": CAPABILITY, "at_ms": begin.wall_ms},
        )
    (token,) = conn.execute("SELECT seq FROM sqlite_sequence WHERE name = 'claims'").fetchone() or (
        0,
    )
    many = {"rows": rows, "token": token, "workers": WORKERS, "kinds": KINDS}
    conn.execute(PAST, many | at | {"done": DONE, "over": OVER})
    conn.execute("CREATE UNIQUE INDEX temp.past_by_i ON past (i)")
    _copy(conn, COPY_PAST, IS_OVER, {"kinds": KINDS})
    conn.execute(CLAIMS, whose)
    conn.execute(MOMENTS)
    conn.execute(HAPPENED, whose)
    conn.execute("DROP TABLE temp.past")
    conn.execute("DROP TABLE temp.moments")


def _copy(
    conn: sqlite3.Connection, sql: str, own: dict[str, str], bounds: dict[str, object]
) -> None:
    columns = [
        row["name"] for row in conn.execute("SELECT name FROM pragma_table_info('workloads')")
    ]
    columns.remove("seq")
    values = ", ".join(own.get(name, f"w.{name}") for name in columns)
    conn.execute(sql.format(columns=", ".join(columns), values=values), bounds)


def _seal(tx: Tx) -> None:
    """Audit rows over all events that have none, as many commits would have written them."""
    while True:
        counts = audit.ledger(tx)
        fresh: list[Row] = tx.rows(UNSEALED, {"sealed_seq": counts["sealed_seq"], "rows": SEALED})
        if not fresh:
            return
        at = Now(fresh[-1]["at_ms"], fresh[-1]["at_ms"])
        first_seq, last_seq = fresh[0]["seq"], fresh[-1]["seq"]
        digest = events.digest_of(fresh)
        audit.append(
            tx, at, counts, "commit", digest, first_event_seq=first_seq, last_event_seq=last_seq
        )
        count = {"sealed_seq": last_seq, "lease_ms": wall_ms(), "wall_offset_ms": 0}
        tx.change(events.COUNT_COMMIT, count)
