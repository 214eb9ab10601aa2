"""What people, their sessions and their pages ask costs the same beside a million rows."""

import re
from types import ModuleType

import pytest

from feltd.identity import audit, namesakes, principals, sessions, standing, users
from feltd.mesh import audited, chain, credits, deadletters, ledger, pulse, signing
from feltd.state import checkup, prune_people
from tests.mesh.workloads.test_bulk import die
from tests.mesh.world import Mesh

#: Once, at the start, after a foreign write, or of a file that was put back: everybody's.
OF_EVERYBODY = {"ALL", "SESSIONS", "FORGET"}
#: Tables that diagnostics alone look through: some thousand rows.
OF_DIAGNOSTICS = {"HOLDS", "DRAINED", "QUARANTINED", "LAPSED", "TRIGGERS_OFF", "TRIGGERS_BEHIND"}
OF_DIAGNOSTICS |= {"GRANTS", "KEYS"}
#: What a bounded SELECT inside has found, or an index over what is wanted alone.
BOUNDED = re.compile(
    r"SCAN (d|r|\(subquery-\d+\))$|USING INDEX (users_without_role|workloads_waiting)"
)
ROOMS = (
    audit,
    audited,
    chain,
    checkup,
    credits,
    deadletters,
    ledger,
    namesakes,
    principals,
    prune_people,
    pulse,
    sessions,
    signing,
    standing,
    users,
)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__)
def test_nothing_is_scanned_for_a_page(mesh: Mesh, room: ModuleType) -> None:
    for name, statement in vars(room).items():
        if not (name.isupper() and isinstance(statement, str) and "\n" in statement):
            continue
        if name in OF_EVERYBODY | OF_DIAGNOSTICS:
            continue
        asked = dict.fromkeys(re.findall(r":([a-z_]+)", statement), 1)
        plan = mesh.conn.execute(f"EXPLAIN QUERY PLAN {statement}", asked).fetchall()
        steps = [row["detail"] for row in plan]
        if name == "WAITING":
            steps.remove("SCAN w")
        scans = [step for step in steps if step.startswith("SCAN") and not BOUNDED.search(step)]
        assert not scans, (name, steps)


def test_the_dead_letters_of_the_hour_are_the_newest(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many older ones there are: these were all that the doctor once looked at."""
    die(mesh, *[mesh.workload() for _ in range(5)], kind="old")
    mesh.later(ms=2 * checkup.HOUR_MS)
    die(mesh, mesh.workload(), kind="new")
    monkeypatch.setattr(checkup, "DEAD_ROWS", 3)

    found = mesh.run(checkup.look)
    assert (found.dead_in_hour, found.dead_capped) == ({"new": 1}, False)
