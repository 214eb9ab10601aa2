"""The feed: what a reader of some tenants sees of what happened, and what it can make of it."""

from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.json import decode, encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity.principals import LOCAL
from feltd.mesh import cancel, chain, events, feed, promises, requeue, vitals
from feltd.model.claim import Claim
from feltd.model.event import Event, Following
from feltd.model.workload import Cancel, Requeue
from feltd.store import connect, dialect
from feltd.store.tx import Tx
from tests.mesh.rebuilt import WORKLOADS, Rebuilt, stored
from tests.mesh.workloads.stories import refusal
from tests.mesh.world import Mesh

TENANTS = ("acme", "bolt", "coil", "dart")


def happen(mesh: Mesh, *tenants: str | None) -> None:
    """One commit with an event of each of these tenants, in this order."""

    def tell(tx: Tx, _cmd: None, now: Now) -> None:
        for tenant_id in tenants:
            events.tell(tx, now, "credit", tenant_id=tenant_id)

    mesh.run(tell)


def read(mesh: Mesh, *tenants: str, after: int | None = None, limit: int = 500) -> list[Event]:
    return mesh.run(feed.page, Following(tenants, after, limit)).items


def refused(act: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as found:
        act()
    return found.value


def walk(mesh: Mesh, tenants: tuple[str, ...], limit: int) -> Iterator[int]:
    """The numbers a reader sees page by page, as the contract says to go on."""
    after: int | None = None
    while True:
        page = mesh.run(feed.page, Following(tenants, after, limit))
        yield from (one.seq for one in page.items)
        if len(page.items) < limit:
            assert page.head == mesh.row("SELECT max(seq) AS seq FROM events")["seq"]
            return
        after = page.items[-1].seq


def test_a_reader_sees_the_events_of_its_tenants_and_nobody_elses(mesh: Mesh) -> None:
    happen(mesh, "acme", "bolt", None)
    happen(mesh, "acme")

    assert [one.tenant_id for one in read(mesh, "acme")] == ["acme", "acme"]
    assert [one.tenant_id for one in read(mesh, "bolt")] == ["bolt"]
    assert read(mesh, "nobody") == []
    assert [one.tenant_id for one in read(mesh, "acme", "bolt")] == ["acme", "bolt", "acme"]


def test_a_reader_of_every_tenant_also_sees_what_is_the_daemons_own(mesh: Mesh) -> None:
    happen(mesh, "acme", None)

    assert [one.tenant_id for one in read(mesh, "*")] == ["acme", None]


@settings(max_examples=60, deadline=None)
@given(
    told=st.lists(st.sampled_from((*TENANTS, None)), min_size=1, max_size=60),
    tenants=st.sets(st.sampled_from(TENANTS), min_size=1),
    limit=st.integers(1, 20),
)
def test_pages_of_any_size_put_together_are_every_event_once_and_in_order(
    told: list[str | None], tenants: set[str], limit: int
) -> None:
    mesh = Mesh()
    try:
        happen(mesh, *told)
        wanted = [number for number, tenant in enumerate(told, 1) if tenant in tenants]

        assert list(walk(mesh, tuple(sorted(tenants)), limit)) == wanted
        assert list(walk(mesh, ("*",), limit)) == list(range(1, len(told) + 1))
    finally:
        mesh.close()


def test_many_tenants_cost_few_rows_each(mesh: Mesh) -> None:
    """A page of 50 over 200 tenants does not read 50 events of each."""
    tenants = tuple(f"tenant-{number:03}" for number in range(200))
    happen(mesh, *(tenant for tenant in tenants for _ in range(20)))

    page = mesh.run(feed.page, Following(tenants, None, 50))

    assert [one.seq for one in page.items] == list(range(1, 51))
    assert mesh.statements <= 1 + len(tenants) + 10


def test_a_reader_below_what_is_kept_is_told_where_the_feed_begins(mesh: Mesh) -> None:
    happen(mesh, *["acme"] * 10)
    mesh.hand("DELETE FROM events WHERE seq <= 4")

    assert [one.seq for one in read(mesh, "acme")] == [5, 6, 7, 8, 9, 10]
    assert [one.seq for one in read(mesh, "acme", after=4)] == [5, 6, 7, 8, 9, 10]
    for after in (0, 3):
        why = refused(lambda after=after: read(mesh, "acme", after=after))  # type: ignore[misc]
        assert why.code == "EVENTS_COMPACTED"
        assert (why.facts["oldest"], why.facts["head"]) == (5, 10)


def test_where_nothing_is_kept_a_reader_at_the_end_goes_on(mesh: Mesh) -> None:
    happen(mesh, "acme", "acme")
    mesh.hand("DELETE FROM events")

    page = mesh.run(feed.page, Following(("acme",)))
    assert (page.items, page.head, page.oldest) == ([], 2, 3)

    happen(mesh, "acme")
    assert [one.seq for one in read(mesh, "acme", after=2)] == [3]
    assert refused(lambda: read(mesh, "acme", after=1)).code == "EVENTS_COMPACTED"


def test_a_reader_past_the_end_learns_that_the_file_was_put_back(mesh: Mesh) -> None:
    """It would wait for numbers that come to mean something else."""
    happen(mesh, "acme")

    assert read(mesh, "acme", after=1) == []
    why = refused(lambda: read(mesh, "acme", after=2))
    assert why.code == "EVENTS_COMPACTED"
    assert why.facts["head"] == 1


def test_numbers_of_a_history_that_was_put_back_never_come_again(mesh: Mesh) -> None:
    """A reader of the other history is told so, also long after new events passed its number."""
    happen(mesh, "acme", "acme")

    mesh.run(lambda tx, _, now: vitals.restore(tx, now))
    happen(mesh, "acme")

    (new,) = read(mesh, "acme", after=2)
    assert new.seq > 2**32
    assert [one.kind for one in read(mesh, "*", after=2)] == ["restore", "credit"]
    assert refused(lambda: read(mesh, "acme", after=3)).code == "EVENTS_COMPACTED"
    assert read(mesh, "acme", after=new.seq) == []
    _link, wrong = chain.walk(Tx(mesh.conn))
    assert wrong == []


def test_numbers_do_not_come_again_when_one_file_is_put_back_twice(mesh: Mesh) -> None:
    """Each start raises the floor of the tokens above all there were; events begin there."""
    happen(mesh, "acme")
    image = mesh.conn.serialize()
    seen: list[int] = []
    for run in (1, 2):
        # A start opens the file anew: statements of before know nothing of it.
        mesh.conn.close()
        mesh.conn = connect.memory()
        mesh.conn.deserialize(image)
        floor = mesh.now.wall_ms * 1_000 + run * 2**20
        mesh.run(lambda tx, _, now, floor=floor: dialect.raise_sequence(tx, "claims", floor))
        mesh.run(lambda tx, _, now: vitals.restore(tx, now))
        happen(mesh, "acme")
        seen += [one.seq for one in read(mesh, "acme", after=1)]

    first, second = seen
    assert refused(lambda: read(mesh, "acme", after=first)).code == "EVENTS_COMPACTED"
    assert second > first
    _link, wrong = chain.walk(Tx(mesh.conn))
    assert wrong == []


def test_a_commit_wakes_the_readers_of_its_tenants_once(mesh: Mesh) -> None:
    happen(mesh, "acme", "bolt", "acme")

    assert mesh.signals == [("events", "acme"), ("events", "bolt"), ("events", "*")]


@pytest.mark.parametrize("seed", range(6))
def test_whoever_read_the_feed_knows_every_workload(mesh: Mesh, seed: int) -> None:
    """State, token, claim and attempts, after any deeds in any order."""
    rng = Random(seed)
    workers = [mesh.worker(name, capacity={"concurrency": 8}) for name in ("one", "two")]
    held: list[Claim] = []
    jobs: list[str] = []
    known = Rebuilt()
    for _ in range(150):
        deed = rng.choice(("create", "pull", "pull", "say", "say", "cancel", "requeue", "later"))
        if deed == "create":
            jobs.append(mesh.workload(retry_policy={"max_attempts": 2, "initial_backoff_ms": 0}))
        elif deed == "pull":
            held += mesh.pull(rng.choice(workers), start=rng.random() < 0.5).claims
        elif deed == "say" and held:
            claim = held.pop(rng.randrange(len(held)))
            for verb in ("start", rng.choice(("complete", "fail", "release", "checkpoint"))):
                mesh.refusal(verb, claim)
        elif deed == "cancel" and jobs:
            body = Cancel(force=rng.random() < 0.5)
            refusal(mesh, cancel.cancel, body, rng.choice(jobs), LOCAL)
        elif deed == "requeue" and jobs:
            refusal(mesh, requeue.requeue, Requeue(), rng.choice(jobs), LOCAL)
        elif deed == "later":
            mesh.later(rng.choice((10, 31_000)))
            mesh.run(lambda tx, _, now: vitals.credit(tx, now, 31_000, True))
            mesh.sweep()
        for event in mesh.run(feed.page, Following(("acme",), known.seq, 500)).items:
            known.take(decode(encode(event)))

    assert known.wrong == []
    assert known.workloads == stored(mesh.conn.execute(WORKLOADS).fetchall())
    assert promises.ask(Tx(mesh.conn)) == []
