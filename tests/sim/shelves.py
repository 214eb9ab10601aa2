"""Holds the rows of records, changes, triggers and firings against what is known of them.

Who wrote what is known from the calls alone; what had to start is decided again from it. A firing
must stand beside its workload and its cursor, in the very commit in which one of them appears.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from msgspec.json import decode

from feltd.model.workload import NewWorkload
from feltd.store.tx import Row, Tx
from tests.sim import edits, waits
from tests.sim.books import ABSENT, Books, Deed, Rec
from tests.sim.history import History, Violation, Work

LOGS = """
SELECT l.tenant_id, l.head_seq, l.floor_seq
  FROM change_logs l
"""

CHANGES = """
SELECT c.tenant_id, c.seq, c.kind, c.collection, c.record_id, c.version, c.before, c.after, c.depth
  FROM changes c
 ORDER BY c.tenant_id, c.seq
"""

RECORDS = """
SELECT r.tenant_id, r.collection, r.record_id, r.version, r.value, r.updated_key, r.change_seq
  FROM records r
"""

TRIGGERS = """
SELECT t.tenant_id, t.trigger_id, t.application_id, t.kind, t.enabled, t.cursor_seq, t.failures,
       t.failure, t.authorization_grant_id, t.next_at_ms, t.last_at_ms, t.anchor_at_ms, t.every_ms
  FROM triggers t
"""

FIRINGS = """
SELECT f.tenant_id, f.trigger_id, f.seq, f.workload_id, f.depth
  FROM trigger_firings f
 ORDER BY f.tenant_id, f.seq, f.trigger_id
"""

INSTANTS = """
SELECT f.tenant_id, f.trigger_id, f.scheduled_at_ms, f.by_hand, f.workload_id
  FROM schedule_firings f
 ORDER BY f.tenant_id, f.trigger_id, f.scheduled_at_ms
"""

CONSUMERS = """
SELECT c.tenant_id, c.name, c.ack_seq, c.dropped_at_ms
  FROM consumers c
"""

MADE = """
SELECT w.definition_id, w.definition_revision, w.idempotency_key, w.capability_snapshot, w.labels,
       w.trigger
  FROM workloads w
 WHERE w.workload_id = :workload_id
"""

#: Failures that somebody has caused.
CAUSED = ("WORKLOAD_IDEMPOTENCY_CONFLICT", "WORKLOAD_UNAUTHORIZED")

TOMBSTONE = """
SELECT t.workload_id
  FROM tombstones t
 WHERE t.workload_id = :workload_id
"""


def compare(history: History, tx: Tx, reached: Counter[str]) -> None:
    """Nothing acknowledged is missing or different, and what it must start has been started."""
    if not history.books:
        return
    for work in history.works.values():
        if work.max_attempts == 0:
            _begun(history, work, tx)
    _forgotten(history, tx)
    _logs(history, tx)
    _records(history, tx)
    _triggers(history, tx, reached)
    _schedules(history, tx, reached)
    _consumers(history, tx)
    if history.unclaimed:
        raise Violation(f"nothing says what started {sorted(history.unclaimed)}")


def cleared(history: History, works: Iterable[str], tx: Tx) -> bool:
    """Whether this work may be cleared away: it has ended, and its key is remembered."""
    for workload_id in works:
        work = history.works[workload_id]
        kept = tx.rows(TOMBSTONE, {"workload_id": workload_id})
        if work.state not in ("COMPLETED", "CANCELLED", "DEAD_LETTERED") or not kept:
            return False
        if any(workload_id in child.needs for child in history.works.values()):
            return False
        history.gone.add(workload_id)
    return True


def _forgotten(history: History, tx: Tx) -> None:
    """Keys whose tombstone is gone too name nothing any more."""
    for name, workload_id in list(history.named.items()):
        if workload_id in history.gone and not tx.rows(TOMBSTONE, {"workload_id": workload_id}):
            del history.named[name]


def _begun(history: History, work: Work, tx: Tx) -> None:
    """Work that a trigger began: what it asks for is what its row says, and nobody waits for it."""
    row = tx.rows(MADE, {"workload_id": work.workload_id})[0]
    books = history.books.get(work.tenant_id)
    if books is None or row["trigger"] not in {*books.wishes, *books.rotas}:
        raise Violation(f"{work.workload_id} was begun by {row['trigger']}, which is nobody")
    body = NewWorkload(
        definition_id=row["definition_id"],
        idempotency_key=row["idempotency_key"],
        capability_snapshot=tuple(decode(row["capability_snapshot"])),
        labels=decode(row["labels"]),
    )
    edits.created(work, body)
    waits.created(history, work, body)
    if work.eligible_at_ms != work.born_ms:
        raise Violation(f"{work.workload_id} began at {work.born_ms}: {work}")
    work.definition = f"{body.definition_id}#{row['definition_revision']}"
    name = (work.tenant_id, work.application_id, body.idempotency_key)
    if history.named.setdefault(name, work.workload_id) != work.workload_id:
        raise Violation(f"{name} names {history.named[name]} and {work.workload_id}")
    history.unclaimed.add(work.workload_id)


def _logs(history: History, tx: Tx) -> None:
    logs = {row["tenant_id"]: row for row in tx.rows(LOGS)}
    found: dict[str, list[Deed]] = {}
    for row in tx.rows(CHANGES):
        found.setdefault(row["tenant_id"], []).append(_deed(row))
    for tenant_id, books in history.books.items():
        row = logs.get(tenant_id)
        head, floor = (0, 0) if row is None else (row["head_seq"], row["floor_seq"])
        if head != books.head or floor < books.floor:
            raise Violation(f"the log of {tenant_id} is {floor}..{head}, known {books.head}")
        books.floor = floor
        kept = [deed for deed in found.get(tenant_id, []) if deed.seq > floor]
        if kept != books.deeds[floor:]:
            raise Violation(f"changes of {tenant_id}: {kept}, known {books.deeds[floor:]}")


def _records(history: History, tx: Tx) -> None:
    found: dict[str, dict[tuple[str, str], Rec]] = {name: {} for name in history.books}
    for row in tx.rows(RECORDS):
        rec = Rec(row["version"], _value(row["value"]), row["updated_key"], row["change_seq"])
        found[row["tenant_id"]][row["collection"], row["record_id"]] = rec
    for tenant_id, books in history.books.items():
        # A record that was deleted long ago is forgotten, and begins anew.
        gone = {
            name
            for name, rec in books.records.items()
            if rec.value == ABSENT and name not in found[tenant_id]
            # As long as its last change is kept, so is its version.
            if books.forgets and rec.seq <= books.floor
        }
        for name in gone:
            del books.records[name]
        if found[tenant_id] != books.records:
            raise Violation(f"records of {tenant_id}: {found[tenant_id]}, known {books.records}")


def _triggers(history: History, tx: Tx, reached: Counter[str]) -> None:
    firings: dict[str, list[Row]] = {}
    for row in tx.rows(FIRINGS):
        firings.setdefault(row["tenant_id"], []).append(row)
    rows = [row for row in tx.rows(TRIGGERS) if row["kind"] == "state"]
    for tenant_id, books in history.books.items():
        own = {row["trigger_id"]: row for row in rows if row["tenant_id"] == tenant_id}
        if set(own) != set(books.wishes):
            raise Violation(f"triggers of {tenant_id}: {set(own)}, known {set(books.wishes)}")
        expected: dict[tuple[str, int], bool] = {}
        for trigger_id, row in own.items():
            expected |= _passed(books, trigger_id, row)
        fired = _fired(history, books, expected, firings.get(tenant_id, []))
        reached.update(fired)
        for row in own.values():
            reached[f"failure {row['failures']}"] += 1


def _passed(books: Books, trigger_id: str, row: Row) -> dict[tuple[str, int], bool]:
    """What a trigger has judged since the last look, and whether each of it was to fire."""
    wish, cursor = books.wishes[trigger_id], row["cursor_seq"]
    expected: dict[tuple[str, int], bool] = {}
    if trigger_id in books.moved:
        books.moved.discard(trigger_id)
    elif cursor < wish.cursor or cursor > books.head:
        raise Violation(f"{trigger_id} went from {wish.cursor} to {cursor} of {books.head}")
    elif cursor > wish.cursor:
        judged = books.wanted(trigger_id, wish.cursor, cursor)
        expected = {(trigger_id, seq): fires for seq, fires in judged}
    wish.cursor, wish.enabled = cursor, bool(row["enabled"])
    # A disabled one holds the log for seven days: no schedule is that long.
    if cursor < books.floor:
        raise Violation(f"{trigger_id} stands at {cursor}, the log is cut up to {books.floor}")
    caused = books.troubled and str(row["failure"]).startswith(CAUSED)
    if row["failures"] and not caused:
        raise Violation(f"{trigger_id} fails without cause: {row['failure']}")
    return expected


def _fired(
    history: History,
    books: Books,
    expected: dict[tuple[str, int], bool],
    rows: Iterable[Row],
) -> list[str]:
    new = {
        (row["trigger_id"], row["seq"]): row
        for row in rows
        if (row["trigger_id"], row["seq"]) not in books.fired
    }
    wanted = {pair: fires for pair, fires in expected.items() if pair not in books.fired}
    if set(new) != set(wanted):
        raise Violation(f"fired {sorted(new)}, to be fired were {sorted(wanted)}")
    for (trigger_id, seq), row in new.items():
        workload_id, fires = row["workload_id"], wanted[trigger_id, seq]
        deed = books.deeds[seq - 1]
        if (workload_id is not None) != fires or row["depth"] != deed.depth + 1:
            raise Violation(f"{trigger_id} made {tuple(row)} of {deed}")
        _claims(history, workload_id, books.wishes[trigger_id].application_id)
        books.fired[trigger_id, seq] = workload_id or ""
        if workload_id is not None:
            books.depth_of[workload_id] = row["depth"]
    return ["too deep" if row["workload_id"] is None else "fired" for row in new.values()]


def _claims(history: History, workload_id: str | None, application_id: str) -> None:
    """A firing names the workload that began with it, in its own application."""
    if workload_id is None:
        return
    if workload_id not in history.unclaimed:
        raise Violation(f"a firing names {workload_id}, which did not begin with it")
    history.unclaimed.discard(workload_id)
    if history.works[workload_id].application_id != application_id:
        raise Violation(f"{workload_id} began in another application than {application_id}")


def _schedules(history: History, tx: Tx, reached: Counter[str]) -> None:
    rows = [row for row in tx.rows(TRIGGERS) if row["kind"] == "schedule"]
    for row in tx.rows(INSTANTS):
        books = history.books[row["tenant_id"]]
        sign = -1 if row["by_hand"] else 1
        pair = (row["trigger_id"], sign * row["scheduled_at_ms"])
        if pair in books.fired:
            continue
        rota = books.rotas.get(row["trigger_id"])
        if rota is None:
            raise Violation(f"{tuple(row)} of a schedule that nobody defined")
        if sign > 0 and row["scheduled_at_ms"] <= rota.last_ms:
            raise Violation(f"{tuple(row)} comes after {rota.last_ms}")
        _claims(history, row["workload_id"], rota.application_id)
        waits = rota.overlap == "skip" and _is_unfinished(history, rota.last_workload_id)
        if not row["by_hand"] and waits != (row["workload_id"] is None):
            raise Violation(f"{tuple(row)}, the last run is {rota.last_workload_id}")
        rota.last_workload_id = row["workload_id"] or rota.last_workload_id
        books.fired[pair] = row["workload_id"] or ""
        what = "an instant" if row["workload_id"] else "an overlap"
        reached["a run by hand" if row["by_hand"] else what] += 1
    for row in rows:
        books = history.books[row["tenant_id"]]
        rota = books.rotas.get(row["trigger_id"])
        if rota is None:
            raise Violation(f"schedule {row['trigger_id']} was never defined")
        last_ms = row["last_at_ms"] or 0
        if last_ms < rota.last_ms or (row["next_at_ms"] or last_ms + 1) <= last_ms:
            raise Violation(f"{row['trigger_id']} went back from {rota.last_ms}: {tuple(row)}")
        on_time = (last_ms - row["anchor_at_ms"]) % row["every_ms"] == 0
        if last_ms != rota.last_ms and not on_time and not books.moved_rotas:
            raise Violation(f"{row['trigger_id']} ran between its instants: {tuple(row)}")
        rota.last_ms = last_ms


def _is_unfinished(history: History, workload_id: str | None) -> bool:
    work = history.works.get(workload_id or "")
    return work is not None and work.state not in ("COMPLETED", "CANCELLED", "DEAD_LETTERED")


def _consumers(history: History, tx: Tx) -> None:
    for row in tx.rows(CONSUMERS):
        books = history.books[row["tenant_id"]]
        if books.acks.get(row["name"]) != row["ack_seq"]:
            raise Violation(f"{tuple(row)}, acknowledged was {books.acks}")
        if row["dropped_at_ms"] is None and row["ack_seq"] < books.floor:
            raise Violation(f"{tuple(row)} is waited for, the log is cut up to {books.floor}")


def _deed(row: Row) -> Deed:
    name = (row["collection"], row["record_id"])
    values = (_value(row["before"]), _value(row["after"]))
    return Deed(row["seq"], row["kind"], *name, row["version"], *values, row["depth"])


def _value(text: str | None) -> Any:
    return ABSENT if text is None else decode(text)
