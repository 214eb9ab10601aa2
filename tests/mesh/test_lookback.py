"""Looking back: the newest events and audit rows, one kind of them, page by page."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit
from feltd.mesh import events, lookback, stops
from feltd.mesh.lookback import AuditSought, EventsSought
from feltd.model.base import Caller, Subject
from feltd.store.tx import Tx
from tests.mesh.world import Mesh

#: Recursion goes through what it has found itself.
FOUND_ITSELF = re.compile(r"SCAN (b|below|found|first)\b|SCAN \d+ ROW")


def reader(*tenants: str, scopes: tuple[str, ...] = ("events:read", "audit:read")) -> Caller:
    return Caller(Subject("service", "reader"), scopes=frozenset(scopes), tenants=tenants)


def happen(mesh: Mesh, *told: tuple[str, str | None]) -> None:
    """One commit with an event of each kind and tenant, in this order."""

    def tell(tx: Tx, _cmd: None, now: Now) -> None:
        for kind, tenant_id in told:
            events.tell(tx, now, kind, tenant_id=tenant_id, actor=f"human:{tenant_id}")

    mesh.run(tell)


def deed(mesh: Mesh, actor: str, action: str, subject: str) -> None:
    mesh.run(lambda tx, _, now: audit.act(tx, now, actor, action, subject))


def walk(mesh: Mesh, rule: Any, shape: Any, caller: Caller, limit: int) -> Iterator[int]:
    """The numbers somebody sees who goes from page to page."""
    before: int | None = None
    while True:
        page = mesh.ask(rule, shape(before=before, limit=limit), caller=caller)
        for one in page.items:
            yield one.seq if hasattr(one, "seq") else one["seq"]
        if page.before is None:
            return
        before = page.before


def test_the_newest_event_comes_first_and_no_other_tenants(mesh: Mesh) -> None:
    happen(mesh, ("drain", "acme"), ("drain", "bolt"), ("resume", "acme"), ("start", None))

    def seen(*tenants: str) -> list[tuple[str, str | None]]:
        found = mesh.ask(lookback.newest_events, EventsSought(), caller=reader(*tenants))
        return [(one.kind, one.tenant_id) for one in found.items]

    assert seen("acme") == [("resume", "acme"), ("drain", "acme")]
    assert seen("bolt", "acme") == [("resume", "acme"), ("drain", "bolt"), ("drain", "acme")]
    assert seen("*")[0] == ("start", None)
    assert seen("nobody") == []


@pytest.mark.parametrize("tenants", [("*",), ("acme",), ("acme", "bolt", "coil")])
@pytest.mark.parametrize("limit", [1, 3, 500])
def test_no_event_is_skipped_or_seen_twice(
    mesh: Mesh, tenants: tuple[str, ...], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        happen(mesh, ("drain", ("acme", "bolt", "coil", "dart")[number * 7 % 4]))
    monkeypatch.setattr(lookback, "CHUNK_ROWS", 4)
    monkeypatch.setattr(lookback, "LOOKED_MAX", 10)
    seen = [*walk(mesh, lookback.newest_events, EventsSought, reader(*tenants), limit)]

    rows = mesh.conn.execute("SELECT seq, tenant_id FROM events ORDER BY seq DESC").fetchall()
    mine = [row["seq"] for row in rows if "*" in tenants or row["tenant_id"] in tenants]
    assert seen == mine


def test_events_are_narrowed_by_each_member(mesh: Mesh) -> None:
    edge, job = mesh.worker(), mesh.workload()
    other = mesh.workload()
    held = mesh.claims(job, by=edge, start=True)
    mesh.say("complete", held)

    def seen(**sought: Any) -> list[str]:
        found = mesh.ask(lookback.newest_events, EventsSought(**sought), caller=reader("*"))
        return [one.kind for one in found.items]

    assert seen(workload_id=job) == ["complete", "start", "claim", "create"]
    assert seen(workload_id=other) == ["create"]
    assert seen(worker_id=edge, kind="claim") == ["claim"]
    assert seen(kind="create") == ["create", "create"]
    assert seen(application_id="nothing") == []
    assert seen(tenant_id="acme", kind="complete") == ["complete"]
    assert seen(workload_id=job, tenant_id="bolt") == []


def test_a_rare_event_far_back_takes_pages_that_are_empty(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    happen(mesh, ("hold", "acme"))
    happen(mesh, *[("drain", "acme")] * 30)
    monkeypatch.setattr(lookback, "LOOKED_MAX", 10)

    sought = EventsSought(kind="hold")
    first = mesh.ask(lookback.newest_events, sought, caller=reader("acme"))
    assert first.items == []
    assert first.before is not None
    assert len([*walk(mesh, lookback.newest_events, EventsSought, reader("acme"), 7)]) == 31


def test_deeds_are_found_by_who_did_what_to_whom(mesh: Mesh) -> None:
    deed(mesh, "human:ada", "drain", "worker_1")
    deed(mesh, "human:bob", "drain", "worker_2")
    deed(mesh, "human:ada", "hold", "acme/hold_1")
    happen(mesh, ("drain", "acme"))

    def seen(**sought: Any) -> list[str]:
        found = mesh.ask(lookback.newest_audit, AuditSought(**sought), caller=reader("*"))
        return [row["action"] or "commit" for row in found.items]

    assert seen()[0] == "commit"
    assert seen(kind="act")[:3] == ["hold", "drain", "drain"]
    assert set(seen(kind="commit")) == {"commit"}
    assert seen(actor="human:ada") == ["hold", "drain"]
    assert seen(actor="human:ada", action="drain") == ["drain"]
    assert seen(subject="worker_2") == ["drain"]
    assert seen(subject="worker_2", actor="human:ada") == []
    assert seen(action="hold") == ["hold"]
    assert seen(kind="commit", actor="human:ada") == []


@pytest.mark.parametrize("limit", [1, 3, 500])
def test_no_audit_row_is_skipped_or_seen_twice(
    mesh: Mesh, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        deed(mesh, "human:ada", "drain", f"worker_{number}")
    monkeypatch.setattr(lookback, "CHUNK_ROWS", 4)
    monkeypatch.setattr(lookback, "LOOKED_MAX", 5)
    seen = [*walk(mesh, lookback.newest_audit, AuditSought, reader("*"), limit)]

    assert seen == [*range(mesh.row("SELECT max(seq) AS seq FROM audit")["seq"], 0, -1)]


def test_the_audit_is_the_whole_daemons(mesh: Mesh) -> None:
    for caller in (reader("acme"), reader("*", scopes=())):
        with pytest.raises(Refused) as refused:
            mesh.ask(lookback.newest_audit, AuditSought(), caller=caller)
        assert refused.value.code == "FORBIDDEN"
    with pytest.raises(Refused) as refused:
        mesh.ask(lookback.newest_events, EventsSought(), caller=reader("acme", scopes=()))
    assert refused.value.code == "FORBIDDEN"


@pytest.mark.parametrize("room", [lookback, stops], ids=lambda room: room.__name__)
def test_no_look_scans_a_table_or_sorts_it(mesh: Mesh, room: Any) -> None:
    for name, statement in vars(room).items():
        if not (name.isupper() and isinstance(statement, str) and "SELECT" in statement):
            continue
        asked = dict.fromkeys(re.findall(r":([a-z_]+)", statement), 1)
        plan = mesh.conn.execute(f"EXPLAIN QUERY PLAN {statement}", asked).fetchall()
        steps = [row["detail"] for row in plan]
        # A partial index over deeds holds nothing else; that of a primary key holds everything.
        deeds = [one for one in steps if "USING INDEX" in one and "autoindex" not in one]
        scans = [one for one in steps if one.startswith("SCAN") and one not in deeds]
        assert not [one for one in scans if not FOUND_ITSELF.search(one)], (name, steps)
        if room is lookback:
            assert not any("TEMP B-TREE" in step for step in steps), (name, steps)
