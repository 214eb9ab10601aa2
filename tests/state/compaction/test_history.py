"""Events, the audit chain, decisions, tombstones: what is left can be proven to its last digit."""

import pytest

from feltd.mesh import feed, requeue
from feltd.mesh.chain import START, Link
from feltd.model.event import Following
from feltd.model.workload import Requeue
from feltd.state import promises
from feltd.store.tx import Tx
from tests.state.compaction.world import DAY_MS, HOUR_MS, Kept

MONTH_MS = 30 * DAY_MS


def read(kept: Kept, after: int | None = None) -> list[int]:
    """The numbers of the feed of acme."""
    page = kept.run(feed.page, Following(tenants=("acme",), after=after, limit=500))
    return [event.seq for event in page.items]


def broken(kept: Kept) -> set[str]:
    """The promises that do not hold."""
    tx = Tx(kept.conn)
    return {one.id for one in [*promises.ask(tx), *promises.walk(tx)[1]]}


def test_events_go_after_a_month_and_a_feed_behind_them_is_told(kept: Kept) -> None:
    kept.keeps(workloads_ms=0)
    job = kept.done()
    last = read(kept)[-1]
    kept.later(MONTH_MS)
    fresh = kept.workload()
    assert kept.compact()["events"] == last
    assert kept.refused(lambda: read(kept, 0)) == "EVENTS_COMPACTED"
    assert read(kept, last) == read(kept) == [last + 1]
    assert kept.state(job) == "COMPLETED"
    assert kept.state(fresh) == "READY"


@pytest.mark.parametrize("limit", [1, 2, 5, 500])
def test_each_slice_leaves_a_feed_without_a_gap(kept: Kept, limit: int) -> None:
    for _ in range(3):
        kept.done()
        kept.later(DAY_MS)
    kept.keeps(events_ms=DAY_MS + 1, workloads_ms=0)
    told = read(kept)
    while kept.slice("events", limit).more:
        kept.check()
        assert read(kept) == told[len(told) - len(read(kept)) :]
    assert 0 < len(read(kept)) < len(told)


def test_work_from_before_the_floor_may_go_on(kept: Kept) -> None:
    """Its first event that is kept has nothing before it, and is believed."""
    old = kept.workload()
    running = kept.workload()
    held = kept.claims(running, kept.crew(), lease_ms=3_600_000, start=True)
    dead = kept.workload(retry_policy={"max_attempts": 1})
    kept.say("fail", kept.claims(dead, kept.crew(), start=True))
    kept.keeps(events_ms=1_000)
    kept.later(2_000)
    assert kept.compact()["events"] > 5
    kept.say("complete", held)
    kept.say("complete", kept.claims(old, kept.crew(), start=True))
    kept.ask(requeue.requeue, Requeue(), dead)
    kept.say("complete", kept.claims(dead, kept.crew(), start=True))
    kept.check()
    kept.later(2_000)
    kept.compact()


def test_what_is_wrong_above_the_floor_is_still_found(kept: Kept) -> None:
    kept.done()
    kept.keeps(events_ms=1_000)
    kept.later(2_000)
    kept.compact()
    kept.later(2_000)
    job = kept.done()
    assert broken(kept) == set()
    seq = kept.row("SELECT max(seq) AS seq FROM events WHERE workload_id = :job", job=job)["seq"]
    kept.conn.execute("SAVEPOINT here")
    kept.hand("DELETE FROM events WHERE seq = :seq", seq=seq)
    assert {"I7", "I20"} <= broken(kept)
    kept.conn.execute("ROLLBACK TO here")
    first = kept.row("SELECT min(seq) AS seq FROM events WHERE workload_id = :job", job=job)["seq"]
    kept.hand("DELETE FROM events WHERE seq = :seq", seq=first)
    assert {"I7", "I8", "I20"} & broken(kept) >= {"I7", "I20"}
    kept.conn.execute("ROLLBACK TO here")
    kept.conn.execute("DELETE FROM claims WHERE workload_id = ?", [job])
    kept.hand("DELETE FROM workloads WHERE workload_id = :job", job=job)
    assert "I7" in broken(kept)
    kept.conn.execute("ROLLBACK TO here")
    assert broken(kept) == set()


def test_the_chain_goes_on_from_its_floor(kept: Kept) -> None:
    for _ in range(4):
        kept.done()
        kept.later(DAY_MS)
    kept.keeps(events_ms=HOUR_MS, audit_ms=2 * DAY_MS)
    cleared = kept.compact()
    assert cleared["audit"] > 0
    assert kept.count("audit") > 0
    floor = kept.row("SELECT seq, hash, event_seq FROM floors WHERE name = 'audit'")
    assert kept.row("SELECT min(seq) AS seq FROM audit")["seq"] == floor["seq"] + 1
    link, wrong = promises.walk(Tx(kept.conn), START)
    assert not wrong
    assert promises.walk(Tx(kept.conn), Link(floor["seq"], floor["hash"], floor["event_seq"])) == (
        link,
        [],
    )
    kept.hand("UPDATE floors SET hash = 'x' WHERE name = 'audit'")
    assert "I20" in broken(kept)


def test_the_newest_audit_row_and_its_last_minutes_stay_for_ever(kept: Kept) -> None:
    kept.done()
    kept.keeps(events_ms=1, audit_ms=1)
    kept.later(1_000)
    kept.compact()
    assert kept.row("SELECT min(seq) AS seq FROM audit")["seq"] == 1
    kept.later(10 * 365 * DAY_MS)
    kept.compact()
    assert kept.count("audit") >= 1
    kept.workload()
    kept.check()


def test_audit_rows_stay_while_their_events_do(kept: Kept) -> None:
    kept.done()
    kept.keeps(events_ms=0, audit_ms=DAY_MS)
    kept.later(2 * DAY_MS)
    kept.compact()
    first = kept.row("SELECT min(seq) AS seq FROM audit WHERE kind = 'commit'")["seq"]
    assert kept.row("SELECT seq FROM floors WHERE name = 'audit'")["seq"] < first


def test_an_audit_of_its_own_traces_ends(kept: Kept) -> None:
    """Clearing events writes no event, or an idle daemon would clear and write for ever."""
    kept.done()
    kept.keeps(events_ms=1_000, workloads_ms=0)
    kept.later(10_000)
    kept.compact()
    kept.later(10_000)
    kept.compact()
    kept.later(10_000)
    assert kept.compact() == {}
    # The newest audit row, which stays, is the one that tells of the last clearing.
    assert kept.count("events") == 0
    kept.check()


def test_a_workload_whose_tombstone_went_is_not_called_lost(kept: Kept) -> None:
    """Its events are kept a month, its tombstone a week."""
    kept.done()
    kept.later(7 * DAY_MS)
    assert kept.compact()["workloads"] == 1
    kept.later(7 * DAY_MS)
    assert kept.compact()["tombstones"] == 1
    kept.check()
    assert kept.count("events", "kind = 'create'") == 1


def test_decisions_go_after_a_week_but_not_while_their_claim_lives(kept: Kept) -> None:
    crew = kept.crew()
    kept.claims(kept.workload(), crew)
    kept.conn.execute(
        "INSERT INTO decisions (tenant_id, application_id, workload_id, selected_worker_id,"
        " fencing_token, reason, candidates, refused, inputs, inputs_digest, decided_by, at_ms)"
        " SELECT 'acme', 'docs', workload_id, NULL, NULL, 'nobody fits', '[]', '[]', '{}',"
        " hex(seq), 'human:ann', created_at_ms FROM workloads"
    )
    kept.later(7 * DAY_MS - 1)
    assert kept.slice("decisions").counts == {}
    kept.later(1)
    assert kept.slice("decisions").counts == {"decisions": 1}
    assert kept.row("SELECT seq FROM floors WHERE name = 'decisions'")["seq"] == 1
