"""What has ended is cleared away while everybody goes on working."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.daemon.cutting import wait
from tests.daemon.load import crew
from tests.daemon.running import Daemon, people

ENDED = 2_000
ENDED_BY_HAND = 30_000
BATCH = 1_000

PRUNED = "SELECT count(*) FROM tombstones"
LEFT = "SELECT count(*) FROM workloads WHERE state = 'CANCELLED'"


def looks(daemon: Daemon, sql: str) -> int:
    """One number out of the file, beside the daemon."""
    with closing(sqlite3.connect(f"file:{daemon.data}?mode=ro", uri=True)) as shell:
        return int(shell.execute(sql).fetchone()[0])


def keys(count: int) -> Iterator[list[str]]:
    """Idempotency keys, a batch at a time."""
    for start in range(0, count, BATCH):
        yield [f"ended-{number}" for number in range(start, min(count, start + BATCH))]


def cleared_beside_claims(daemons: Callable[..., Daemon], count: int) -> None:
    daemon = daemons().start()
    mesh = people(daemon)
    common = {"definition_id": "extract", "input": {"text": "x" * 500}}
    for names in keys(count):
        work = [common | {"idempotency_key": name} for name in names]
        daemon.post("/v1/workloads/batch", {"workloads": work}, key=mesh.submitter_key)
    body = {"action": "cancel", "filter": {"definition_id": "extract"}}
    while daemon.post("/v1/workloads/bulk", body, key=mesh.submitter_key)["remaining"]:
        pass
    assert looks(daemon, LEFT) == count
    assert daemon.stop() == 0
    size_bytes = daemon.data.stat().st_size

    # From now on nothing that has ended is kept for long.
    daemon.start("--retain-workloads-ms", "1", "--compact-every-ms", "100")
    edge = crew(daemon, mesh, 1)[0]
    between, number = set[int](), 0
    while looks(daemon, LEFT):
        number += 1
        asked = {"definition_id": "live", "idempotency_key": f"live-{number}"}
        daemon.post("/v1/workloads", asked, key=mesh.submitter_key)
        (claim,) = edge.pull(start=True)
        assert edge.fenced("complete", claim, output=1).status == 200
        between.add(looks(daemon, PRUNED))
    wait(lambda: looks(daemon, PRUNED) >= count, "each left a tombstone")
    assert len(between) > 2, "it goes on in between"
    wait(lambda: daemon.data.stat().st_size < size_bytes, "the file gives space back")
    assert daemon.check().returncode == 0, daemon.check().stdout
    repeat = common | {"idempotency_key": "ended-0"}
    answer = daemon.call("POST", "/v1/workloads", repeat, key=mesh.submitter_key)
    assert answer.status == 200, "its key still names it"


@pytest.mark.timeout(240)
def test_thousands_that_have_ended_go_while_claims_go_on(daemons: Callable[..., Daemon]) -> None:
    """BC-070."""
    cleared_beside_claims(daemons, ENDED)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_tens_of_thousands_that_have_ended_go_while_claims_go_on(
    daemons: Callable[..., Daemon],
) -> None:
    """BC-070, ten times as many."""
    cleared_beside_claims(daemons, ENDED_BY_HAND)
