"""The daemon is killed while records change: each change that a trigger wants starts it once.

Wherever it dies, between commits, before one or after one, the cursor and the workload stand in
the same transaction: nothing is missing and nothing comes twice (BC-062).
"""

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.daemon.cutting import wait
from tests.daemon.running import Daemon
from tests.daemon.writers import (
    CHANGES,
    COLLECTION,
    CURSORS,
    STARTED,
    Reader,
    Writer,
    granted,
    rows,
    trigger,
)

SEED = int(os.environ.get("FELTD_SEED", "11"))
KILLS_IN_A_TEST_RUN = 6
KILLS_BY_HAND = 100
EVERY_MS = 1_000
PAID = {"op": "eq", "field": "after.status", "value": "paid"}
#: Commits of a run after which it may kill itself: a write and its evaluation make a few.
COMMITS_MAX = 9
#: A change is cleared away once the triggers and the consumer have it; nobody is given up.
CUT = ("--retain-changes-ms", "200", "--consumer-limit-ms", "0", "--compact-every-ms", "100")


def killed_while_records_change(daemon: Daemon, kills: int, *, cut: bool = False) -> None:
    """`cut`: the log goes as soon as everybody has read it, and one who reads is there."""
    daemon.start()
    # Clients find it at the same place after each death.
    daemon.flags = (*daemon.flags, "--port", daemon.url.rpartition(":")[2])
    key, chance = granted(daemon), random.Random(SEED)
    common = {"kind": "state", "source_collection": COLLECTION}
    trigger(daemon, key, "paid", **common, change_kind="any", predicate=PAID)
    trigger(daemon, key, "made", **common, change_kind="created")
    trigger(daemon, key, "each", **common, change_kind="any")
    trigger(daemon, key, "tick", kind="schedule", every_ms=EVERY_MS, missed="all")
    reader = Reader(daemon, key) if cut else None
    writer = Writer(daemon, key)
    try:
        for _ in range(kills):
            die(daemon, chance)
        settled(daemon)
    finally:
        if daemon.process is None or daemon.process.poll() is not None:
            daemon.start()
        writer.end()
        if reader is not None:
            reader.end()
    settled(daemon)
    assert writer.wrong == []
    changes = rows(daemon, CHANGES)
    if reader is not None:
        assert reader.wrong == []
        told = len(reader.told)
        wait(lambda: len(rows(daemon, CHANGES)) < told, "some of the log is gone")
        names = ("seq", "kind", "id", "version")
        changes = [
            (*(one[name] for name in names), json.dumps(one["after"])) for one in reader.told
        ]
    holds(daemon, writer, changes)
    checked = daemon.check()
    assert checked.returncode == 0, checked.stdout
    assert daemon.stop() == 0


def die(daemon: Daemon, chance: random.Random) -> None:
    """One life: it is killed from outside, or kills itself around one of its commits."""
    if daemon.process is not None and daemon.process.poll() is None and chance.random() < 0.4:
        time.sleep(chance.random())
        daemon.kill()
    else:
        daemon.close()
        point = f"{chance.choice(('before', 'after'))}:{chance.randint(1, COMMITS_MAX)}"
        daemon.spawn(env={"FELTD_TEST_CRASH_AT": point})
        assert daemon.wait() == -9, daemon.told()[-2_000:]
    if chance.random() < 0.5:
        daemon.start()


def settled(daemon: Daemon) -> None:
    """Wait until every trigger has judged every change."""
    if daemon.process is None or daemon.process.poll() is not None:
        daemon.start()
    until_s = time.monotonic() + 30
    while any(cursor < head for _, cursor, head, *_ in rows(daemon, CURSORS)):
        assert time.monotonic() < until_s, rows(daemon, CURSORS)
        time.sleep(0.05)


def holds(daemon: Daemon, writer: Writer, changes: list[tuple[Any, ...]]) -> None:
    """What was written was told, once and in order, and what follows from it is there."""
    assert [seq for seq, *_ in changes] == list(range(1, len(changes) + 1)), "gapless"
    found = [(record_id, version, json.loads(after)) for _, _, record_id, version, after in changes]
    assert found == [tuple(write) for write in writer.done]

    wanted: Counter[tuple[str, int]] = Counter()
    for seq, kind, _, _, after in changes:
        wanted["each", seq] = 1
        if kind == "created":
            wanted["made", seq] = 1
        if json.loads(after)["status"] == "paid":
            wanted["paid", seq] = 1
    assert started(daemon, changes) == wanted
    assert {"each", "made", "paid"} == {name for name, _ in wanted}
    ticks = [
        int(key.rpartition("/")[2]) for name, key, _ in rows(daemon, STARTED) if name == "tick"
    ]
    steps = {after - before for before, after in pairwise(ticks)}
    assert steps <= {EVERY_MS}, f"an instant is missing or came twice: {ticks}"
    assert all(enabled for *_, enabled, _ in rows(daemon, CURSORS)), rows(daemon, CURSORS)


def started(daemon: Daemon, changes: list[tuple[Any, ...]]) -> Counter[tuple[str, int]]:
    """Workloads by trigger and change, each with the input of its change."""
    found: Counter[tuple[str, int]] = Counter()
    values = {seq: after for seq, *_, after in changes}
    for name, key, asked in rows(daemon, STARTED):
        if name == "tick":
            continue
        given, seq = json.loads(asked), int(key.rpartition("/")[2])
        assert (given["trigger_id"], given["seq"]) == (name, seq)
        assert given["after"] == json.loads(values[seq])
        found[name, seq] += 1
    return found


@pytest.mark.timeout(240)
def test_each_change_starts_its_work_once_under_kills(daemons: Callable[..., Daemon]) -> None:
    killed_while_records_change(daemons(), KILLS_IN_A_TEST_RUN)


@pytest.mark.timeout(240)
def test_a_log_that_is_cut_all_the_while_loses_nothing_under_kills(
    daemons: Callable[..., Daemon],
) -> None:
    daemon = daemons("feltd.db", *CUT)
    killed_while_records_change(daemon, KILLS_IN_A_TEST_RUN // 2, cut=True)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("flags", [(), CUT], ids=["kept", "cut"])
def test_each_change_starts_its_work_once_under_a_hundred_kills(
    daemons: Callable[..., Daemon], flags: tuple[str, ...]
) -> None:
    killed_while_records_change(daemons("feltd.db", *flags), KILLS_BY_HAND, cut=bool(flags))
