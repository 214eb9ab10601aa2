"""What is asked about one worker costs the same among ten thousand."""

import re
from types import ModuleType

import pytest
from msgspec import convert

from feltd.mesh import (
    authority,
    drain,
    heartbeat,
    lifecycle,
    moves,
    reconcile,
    register,
    vitals,
    workers,
)
from feltd.model.worker import Heartbeat
from tests.mesh.world import Mesh

#: Once for an outage or a start from an older file: these are about everybody.
OF_EVERYBODY = {"CREDIT_LEASES", "CREDIT_WORKERS", "HOLDERS", "PRESENT"}
#: Its plan names the claims that a foreign key would be tested against if any were deferred.
NEVER_RUN = {"INSERT"}
#: The grants below one grant, found step by step.
FAMILY = {"SCAN u"}
ROOMS = (
    authority,
    drain,
    heartbeat,
    lifecycle,
    moves,
    reconcile,
    register,
    vitals,
    workers,
)


def statements(room: ModuleType) -> list[tuple[str, str]]:
    found = [(name, text) for name, text in vars(room).items() if name.isupper()]
    return [(name, text) for name, text in found if isinstance(text, str) and "\n" in text]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__)
def test_nothing_is_scanned_for_one_worker(mesh: Mesh, room: ModuleType) -> None:
    for name, statement in statements(room):
        if name in OF_EVERYBODY | NEVER_RUN:
            continue
        asked = dict.fromkeys(re.findall(r":([a-z_]+)", statement), 1)
        plan = mesh.conn.execute(f"EXPLAIN QUERY PLAN {statement}", asked).fetchall()
        steps = [row["detail"] for row in plan]
        scans = [step for step in steps if step.startswith("SCAN") and step not in FAMILY]
        # A partial index over what is wanted alone holds nothing else.
        assert all("USING" in step and "INDEX" in step for step in scans), (name, steps)
        assert not any("TEMP B-TREE" in step for step in steps), (name, steps)


def test_a_beat_is_five_statements(mesh: Mesh) -> None:
    worker_id = mesh.worker()
    key = mesh.key(worker_id)
    body = {
        "worker_id": worker_id,
        "version": "1",
        "capability_version": 1,
        "capacity": {"concurrency": 1},
        "health": "HEALTHY",
    }
    mesh.ask(heartbeat.heartbeat, convert(body, Heartbeat), worker_id, key)

    assert mesh.statements == 5
