"""Workers that nobody hears any more, and keys that ended, do not pile up (BC-028)."""

from feltd.mesh import vitals
from tests.state.compaction.world import DAY_MS, Kept

MONTH_MS = 30 * DAY_MS


def fall_silent(kept: Kept) -> None:
    """Nobody is heard for an hour; the keeper finds out."""
    kept.later(3_600_000)
    while kept.run(lambda tx, _, now: vitals.detect_failures(tx, 50, now, "end")):
        pass


def test_a_hundred_rolling_restarts_leave_no_workers_behind(kept: Kept) -> None:
    for number in range(100):
        kept.worker(f"edge-{number:03d}")
        kept.later(1_000)
    fall_silent(kept)
    kept.later(MONTH_MS - 7_200_000)
    kept.worker("today")
    assert "workers" not in kept.compact()
    kept.later(MONTH_MS)
    assert kept.compact()["workers"] == 100
    assert kept.count("workers") == 1


def test_who_comes_back_under_a_cleared_name_is_new(kept: Kept) -> None:
    first = kept.worker("edge")
    fall_silent(kept)
    kept.later(MONTH_MS)
    assert kept.compact()["workers"] == 1
    again = kept.worker("edge")
    assert again == first
    row = kept.row("SELECT incarnation, lifecycle FROM workers")
    assert (row["incarnation"], row["lifecycle"]) == (1, "READY")
    kept.check()


def test_a_worker_stays_as_long_as_a_claim_of_it_is_kept(kept: Kept) -> None:
    kept.keeps(workloads_ms=90 * DAY_MS)
    kept.done()
    fall_silent(kept)
    kept.later(MONTH_MS)
    assert "workers" not in kept.compact()
    kept.later(2 * MONTH_MS)
    cleared = kept.compact()
    assert (cleared["workloads"], cleared["workers"]) == (1, 1)


def test_what_an_operator_said_of_a_worker_outlives_its_silence(kept: Kept) -> None:
    for name in ("drained", "left", "quarantined", "listed", "plain"):
        kept.worker(name)
    fall_silent(kept)
    kept.hand(
        "UPDATE workers SET drain_by = 'human:ann', drain_at_ms = 1,"
        " drain_until = CASE name WHEN 'left' THEN 'registered' ELSE 'resumed' END"
        " WHERE name IN ('drained', 'left')"
    )
    kept.hand(
        "UPDATE workers SET quarantined_by = 'human:ann', quarantine_reason = 'smoke',"
        " quarantined_at_ms = 1 WHERE name = 'quarantined'"
    )
    listed = kept.row("SELECT worker_id FROM workers WHERE name = 'listed'")["worker_id"]
    kept.hand(
        "INSERT INTO pools (tenant_id, pool_id, name, capabilities, required_labels, worker_ids,"
        " listed, created_at_ms, updated_at_ms) VALUES ('acme', 'p', 'p', '[]', '{}', :ids, 1,"
        " 0, 0)",
        ids=f'["{listed}"]',
    )
    kept.later(MONTH_MS)
    assert kept.compact()["workers"] == 2
    names = {row["name"] for row in kept.conn.execute("SELECT name FROM workers")}
    assert names == {"drained", "quarantined", "listed"}


def test_a_removed_worker_goes_whatever_was_said_of_it(kept: Kept) -> None:
    worker_id = kept.worker("edge")
    fall_silent(kept)
    kept.hand(
        "UPDATE workers SET removed_at_ms = :now_ms, quarantined_by = 'human:ann',"
        " quarantined_at_ms = 1 WHERE worker_id = :id",
        now_ms=kept.now.lease_ms,
        id=worker_id,
    )
    kept.later(MONTH_MS)
    assert kept.compact()["workers"] == 1


def test_worker_keys_go_a_month_after_their_end_and_no_others(kept: Kept) -> None:
    worker_id = kept.worker("edge")
    for number in range(3):
        kept.key(worker_id, f"k{number}")
    kept.hand("UPDATE keys SET revoked_at_ms = :ms, revoked_reason = 'taken_over'"
              " WHERE key_id = '0000000000k0'", ms=kept.now.wall_ms)  # fmt: skip
    kept.hand("UPDATE keys SET expires_at_ms = :ms WHERE key_id = '0000000000k1'",
              ms=kept.now.wall_ms)  # fmt: skip
    kept.hand(
        "INSERT INTO keys (key_id, name, secret_digest, scopes, namespaces, tenants, subject_type,"
        " created_by, created_at_ms, revoked_at_ms, revoked_reason) VALUES ('000000person', 'p',"
        " 'sha256:' || hex(zeroblob(32)), '[]', '[]', '[]', 'service', 'service:x', 0, 1,"
        " 'revoked')"
    )
    kept.keeps(workers_ms=0)
    kept.later(MONTH_MS - 1)
    assert "keys" not in kept.compact()
    kept.later(1)
    assert kept.compact()["keys"] == 2
    left = {row["key_id"] for row in kept.conn.execute("SELECT key_id FROM keys")}
    assert left == {"0000000000k2", "000000person"}


def test_a_key_that_obtained_another_goes_after_it(kept: Kept) -> None:
    worker_id = kept.worker("edge")
    for name in ("k0", "k1"):
        kept.key(worker_id, name)
    kept.hand("UPDATE keys SET revoked_at_ms = 1, revoked_reason = 'taken_over'")
    kept.hand("UPDATE keys SET obtained_by = '0000000000k0' WHERE key_id = '0000000000k1'")
    kept.later(MONTH_MS)
    kept.slice("keys")
    assert kept.count("keys") == 1
    kept.slice("keys")
    assert kept.count("keys") == 0


def test_sessions_go_a_month_after_they_ran_out(kept: Kept) -> None:
    kept.hand(
        "INSERT INTO users (name, password_hash, created_by, created_at_ms, password_changed_at_ms)"
        " VALUES ('ada', '$argon2id$v=19$m=19456,t=2,p=1$c2FsdA$aGFzaA', 'service:x', 0, 0)"
    )
    half_a_day_ms = DAY_MS // 2
    for number in range(3):
        kept.hand(
            "INSERT INTO sessions (session_id, user_name, secret_digest, created_at_ms,"
            " expires_at_ms, last_used_at_ms) VALUES (:id, 'ada', 'sha256:' || hex(zeroblob(32)),"
            " :at_ms, :at_ms + 43200000, :at_ms)",
            id=f"session{number:05d}",
            at_ms=kept.now.wall_ms,
        )
        kept.later(1)

    kept.later(MONTH_MS + half_a_day_ms - 4)
    assert "sessions" not in kept.compact()
    kept.later(1)
    assert kept.slice("sessions", 1).counts == {"sessions": 1}
    kept.later(10)
    assert kept.compact()["sessions"] == 2
    kept.keeps(keys_ms=0)
    assert kept.slice("sessions").counts == {}
