"""A diamond of dependencies goes from top to bottom while daemon and workers are killed at work.

One half of it is whole, in the other half one workload fails for good: what needs it dies with it,
what only waits for it runs. Every process is a real one and every kill is SIGKILL.
"""

import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.daemon.running import Daemon
from tests.worker.crew import Crew

SEED = int(os.environ.get("FELTD_SEED", "7"))
NAMES = ("north", "east", "south")
#: What one workload may name at most.
FAN_IN = 64
POLICY = {"max_attempts": 1_000, "initial_backoff_ms": 0, "jitter": 0}

ENDED = "SELECT count(*) FROM workloads WHERE state IN ('COMPLETED', 'DEAD_LETTERED')"

# A claim of a child before the end of a parent: the events stand in one order.
RAN_TOO_EARLY = """
SELECT c.workload_id, j.value AS parent
  FROM workloads c
  JOIN json_each(c.dependencies) j
 WHERE EXISTS (SELECT 1
                 FROM events k
                WHERE k.workload_id = c.workload_id
                  AND k.to_state = 'CLAIMED'
                  AND k.seq < (SELECT min(e.seq)
                                 FROM events e
                                WHERE e.workload_id = j.value
                                  AND e.to_state IN ('COMPLETED', 'DEAD_LETTERED')))
"""


class Diamond(NamedTuple):
    """Ids by layer, and the state each is to end in."""

    bottom: str
    report: str
    wanted: dict[str, str]


@pytest.fixture
def crew(daemons: Callable[..., Daemon], tmp_path: Path) -> Iterator[Crew]:
    daemon = daemons().start()
    # Workers find it at the same place after each death.
    daemon.flags = (*daemon.flags, "--port", daemon.url.rpartition(":")[2])
    made = Crew(daemon, tmp_path, "diamond")
    yield made
    made.close()


def created(crew: Crew, definition: str, layer: list[dict[str, Any]]) -> list[str]:
    """One layer, as one batch; its ids."""
    common = {
        "tenant_id": "t",
        "application_id": crew.application,
        "definition_id": definition,
        "capability_snapshot": ["extract"],
        "authorization_grant": crew.submitting(),
        "retry_policy": POLICY,
    }
    made = crew.client.create_batch([common | one for one in layer], atomic=True)
    return [one["workload_id"] for one in made]


def diamond(crew: Crew, width: int, *, fails: bool) -> Diamond:
    """A top, two rows of `width` that cross each other, joins, a bottom, and a report on it."""
    (top,) = created(crew, "echo", [{}])
    first = created(crew, "echo", [{"dependencies": [top]}] * (width - 1))
    how = {"input": {"how": "permanent"}, "dependencies": [top]}
    first += created(crew, "broken" if fails else "echo", [how])
    crossing = [{"dependencies": sorted({one, first[at - 1]})} for at, one in enumerate(first)]
    second = created(crew, "echo", crossing)
    slices = [second[at : at + FAN_IN] for at in range(0, width, FAN_IN)]
    joins = created(crew, "echo", [{"dependencies": names} for names in slices])
    (bottom,) = created(crew, "echo", [{"dependencies": joins}])
    patient = {"dependencies": [bottom], "dependency_policy": "all_finished"}
    (report,) = created(crew, "echo", [patient])
    wanted = dict.fromkeys((top, *first, *second, *joins, bottom, report), "COMPLETED")
    if fails:
        # The last of the first row stands in the first and the last of the second.
        dead = {first[-1], second[0], second[-1], joins[0], joins[-1], bottom}
        wanted |= dict.fromkeys(dead, "DEAD_LETTERED")
    return Diamond(bottom, report, wanted)


def rows(daemon: Daemon, sql: str) -> list[tuple[Any, ...]]:
    """A look into the file beside the daemon."""
    with closing(sqlite3.connect(f"file:{daemon.data}?mode=ro", uri=True)) as shell:
        return shell.execute(sql).fetchall()


def runs_under_kills(crew: Crew, width: int, kills: int, patience_s: float) -> None:
    daemon, chance = crew.daemon, random.Random(SEED)
    halves = [diamond(crew, width, fails=False), diamond(crew, width, fails=True)]
    wanted = halves[0].wanted | halves[1].wanted
    running = {name: crew.start(name) for name in NAMES}
    until_s = time.monotonic() + patience_s

    def ended() -> int:
        assert time.monotonic() < until_s, f"it does not end\n{crew.log(NAMES[0])[-2_000:]}"
        return int(rows(daemon, ENDED)[0][0])

    for number in range(1, kills + 1):
        while ended() < number * len(wanted) // (kills + 2):
            time.sleep(0.02)
        if number % 2:
            daemon.kill()
            daemon.start()
        else:
            name = chance.choice(NAMES)
            running[name].kill()
            running[name] = crew.start(name)
    while ended() < len(wanted):
        time.sleep(0.05)

    found = dict(rows(daemon, "SELECT workload_id, state FROM workloads"))
    assert Counter(found.values()) == Counter(wanted.values())
    assert found == wanted
    kinds = "SELECT failure_kind, count(*) FROM workloads WHERE state = 'DEAD_LETTERED' GROUP BY 1"
    assert dict(rows(daemon, kinds)) == {"no_such_page": 1, "dependency_failed": 5}
    assert rows(daemon, RAN_TOO_EARLY) == []
    assert rows(daemon, "SELECT * FROM dependency_waits") == []
    assert rows(daemon, "SELECT * FROM settlements") == []
    checked = daemon.check()
    assert checked.returncode == 0, checked.stdout


@pytest.mark.timeout(240)
def test_a_diamond_ends_as_it_must_under_kills(crew: Crew) -> None:
    runs_under_kills(crew, width=70, kills=4, patience_s=200)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_a_diamond_over_a_thousand_ends_as_it_must_under_many_kills(crew: Crew) -> None:
    runs_under_kills(crew, width=260, kills=16, patience_s=1_500)
