"""What tells of the past: events, the audit chain, decisions.

Events go with the audit row that sealed them, so that what is left can be proven to its last digit;
an audit row goes when the events it sealed are gone, and the floor keeps what the chain goes on
from. The newest audit row stays for ever. A row of the chain tells of every floor that is raised:
who deletes rows and raises a floor himself is found out.
"""

from feltd.clock import Now
from feltd.mesh import chain
from feltd.model.compaction import Policy, Pruned
from feltd.state import places
from feltd.state.places import Place
from feltd.store.tx import Row, Tx

#: Audit rows read at a time.
ROWS_AT_ONCE = 100
#: Decisions read at a time: one has up to half a megabyte, and its instant behind that.
DECISIONS_AT_ONCE = 8
#: Where the events' floor stands in the audit chain.
WALK = "events"
#: The sidecar names an audit row that is at most a tick old; far more than any tick stays.
AUDIT_MS_MIN = 600_000

FLOOR = """
SELECT f.seq, f.at_ms, f.event_seq, f.hash
  FROM floors f
 WHERE f.name = :name
"""

# No instant is asked for: past the last old one that would read the rest of the table.
CHAIN = """
SELECT a.seq, a.kind, a.at_ms, a.action, a.subject, a.first_event_seq, a.last_event_seq, a.hash
  FROM audit a
  JOIN ledger l ON l.id = 1
 WHERE a.seq > :after
   AND a.seq < l.audit_seq
 ORDER BY a.seq
 LIMIT :rows
"""

RAISE_EVENTS = """
UPDATE floors
   SET seq = :seq,
       at_ms = max(at_ms, :at_ms)
 WHERE name = 'events'
"""

DROP_EVENTS = """
DELETE FROM events
 WHERE seq IN (SELECT e.seq
                 FROM events e
                WHERE e.seq <= :seq
                ORDER BY e.seq
                LIMIT :rows)
"""

RAISE_AUDIT = """
UPDATE floors
   SET seq = :seq,
       at_ms = max(at_ms, :at_ms),
       event_seq = :event_seq,
       hash = :hash
 WHERE name = 'audit'
"""

DROP_AUDIT = """
DELETE FROM audit
 WHERE seq <= :seq
"""

# Who repeats a directed claim is told from its decision as long as the claim lives.
NEXT_DECISIONS = """
SELECT d.decision_id, d.at_ms,
       EXISTS (SELECT 1
                 FROM claims c
                WHERE c.fencing_token = d.fencing_token
                  AND c.ended_at_ms IS NULL) AS live
  FROM decisions d
 WHERE d.decision_id > :after
 ORDER BY d.decision_id
 LIMIT :rows
"""

DROP_DECISION = """
DELETE FROM decisions
 WHERE decision_id = :decision_id
"""

RAISE_DECISIONS = """
UPDATE floors
   SET seq = max(seq, :seq),
       at_ms = max(at_ms, :at_ms)
 WHERE name = 'decisions'
"""


def prune_events(tx: Tx, limit: int, policy: Policy, now: Now) -> Pruned:
    """Raise the events' floor over whole commits past their time; take up to `limit` rows below it.

    Readers of the feed are told of the floor at once, before the rows are gone.
    """
    if not policy.events_ms:
        return Pruned({}, more=False)
    floor = _floor(tx, "events")
    before_ms = now.lease_ms - policy.events_ms
    gone = tx.change(DROP_EVENTS, {"seq": floor["seq"], "rows": limit})
    went_on = False
    if gone < limit:
        seq, went_on = _raise_events(tx, floor, limit - gone, before_ms)
        if seq > floor["seq"]:
            chain.tell_cleared(tx, now)
            gone += tx.change(DROP_EVENTS, {"seq": seq, "rows": limit - gone})
    return Pruned({"events": gone} if gone else {}, more=went_on or gone >= limit)


def prune_audit(tx: Tx, limit: int, policy: Policy, now: Now) -> Pruned:
    """Take up to `limit` audit rows past their time whose events are gone, the oldest first.

    The newest row stays, and none is taken that is younger than AUDIT_MS_MIN.
    """
    if not policy.audit_ms:
        return Pruned({}, more=False)
    floor, kept_from = _floor(tx, "audit"), _floor(tx, "events")["seq"]
    before_ms = now.lease_ms - max(policy.audit_ms, AUDIT_MS_MIN)
    rows = tx.rows(CHAIN, {"after": floor["seq"], "rows": limit})
    last: Row | None = None
    event_seq = floor["event_seq"]
    traces = 0
    for row in rows:
        if row["at_ms"] > before_ms:
            break
        traces += row["action"] == chain.CLEAR
        if row["kind"] == "commit":
            if row["last_event_seq"] > kept_from:
                break
            event_seq = row["last_event_seq"]
        elif (skipped := chain.skipped_to(row)) is not None:
            event_seq = skipped
        last = row
    if last is None or traces == last["seq"] - floor["seq"] < limit:
        # To clear the traces of clearing alone would leave another one, for ever.
        return Pruned({}, more=False)
    at = {"seq": last["seq"], "at_ms": last["at_ms"]}
    tx.change(RAISE_AUDIT, {**at, "event_seq": event_seq, "hash": last["hash"]})
    chain.tell_cleared(tx, now)
    gone = tx.change(DROP_AUDIT, {"seq": last["seq"]})
    return Pruned({"audit": gone}, more=len(rows) >= limit and last is rows[-1])


def prune_decisions(tx: Tx, limit: int, policy: Policy, now: Now) -> Pruned:
    """Take up to `limit` decisions past their time but for those whose claim lives."""
    if not policy.decisions_ms:
        return Pruned({}, more=False)
    begun = places.read(tx, "decisions")
    before_ms = now.lease_ms - policy.decisions_ms
    rows_max = min(limit, DECISIONS_AT_ONCE)
    rows = tx.rows(NEXT_DECISIONS, {"after": begun.seq, "rows": rows_max})
    old = [row for row in rows if row["at_ms"] <= before_ms]
    gone = [row for row in old if not row["live"]]
    for row in gone:
        tx.change(DROP_DECISION, {"decision_id": row["decision_id"]})
    if gone:
        tx.change(RAISE_DECISIONS, {"seq": gone[-1]["decision_id"], "at_ms": gone[-1]["at_ms"]})
    more = len(old) >= rows_max
    places.keep(tx, "decisions", begun, Place(seq=old[-1]["decision_id"]) if more else None)
    return Pruned({"decisions": len(gone)} if gone else {}, more=more)


def _floor(tx: Tx, name: str) -> Row:
    row = tx.row(FLOOR, {"name": name})
    if row is None:
        raise RuntimeError(f"the floor of {name} is missing: this file was not made by feltd init")
    return row


def _raise_events(tx: Tx, floor: Row, limit: int, before_ms: int) -> tuple[int, bool]:
    """Raise the floor over commits that sealed about `limit` events together.

    Where it stands then, and whether the walk along the chain went on.
    """
    begun = places.read(tx, WALK)
    rows = tx.rows(CHAIN, {"after": begun.seq, "rows": ROWS_AT_ONCE})
    seq, at_ms, place, count = floor["seq"], 0, begun, 0
    for row in rows:
        if count >= limit or row["at_ms"] > before_ms:
            break
        place = Place(seq=row["seq"])
        if row["kind"] == "commit":
            count += row["last_event_seq"] - row["first_event_seq"] + 1
            seq, at_ms = max(seq, row["last_event_seq"]), row["at_ms"]
    if seq > floor["seq"]:
        tx.change(RAISE_EVENTS, {"seq": seq, "at_ms": at_ms})
    places.keep(tx, WALK, begun, place)
    return int(seq), place != begun
