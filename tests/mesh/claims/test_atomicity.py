"""Every verb is one transaction: broken off before any of its statements it leaves nothing."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from feltd.clock import Now
from feltd.mesh import attempts, claims, sweep
from feltd.model.base import Ask
from feltd.model.claim import Claim, Pull
from feltd.store.tx import NO_PARAMS, Row, Tx
from tests.mesh.world import VERBS, Mesh


class BrokenOffError(Exception):
    """The process ended here."""


class Fragile(Tx):
    """A transaction that breaks before its n-th statement."""

    __slots__ = ("_left",)

    def __init__(self, conn: Any, left: int) -> None:
        super().__init__(conn)
        self._left = left

    def _step(self) -> None:
        if self._left == 0:
            raise BrokenOffError
        self._left -= 1

    def rows(self, sql: str, params: Mapping[str, object] = NO_PARAMS) -> list[Row]:
        self._step()
        return super().rows(sql, params)

    def change(self, sql: str, params: Mapping[str, object] = NO_PARAMS) -> int:
        self._step()
        return super().change(sql, params)


def survives(mesh: Mesh, act: Callable[[Tx, Now], object]) -> int:
    """Break an operation off before each statement in turn; how many it has."""
    before = mesh.everything()
    for n in range(100):
        mesh.conn.execute("BEGIN IMMEDIATE")
        try:
            act(Fragile(mesh.conn, n), mesh.now)
        except BrokenOffError:
            mesh.conn.execute("ROLLBACK")
            assert mesh.everything() == before, n
        else:
            mesh.conn.execute("COMMIT")
            return n
    raise AssertionError("it never ends")


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_fenced_verb_happens_whole_or_not_at_all(mesh: Mesh, verb: str) -> None:
    held: Claim = mesh.claims(mesh.workload(), by=mesh.worker(), start=verb != "start")

    assert survives(mesh, lambda tx, now: mesh.fenced(tx, now, verb, held)) >= 1


def test_a_pull_happens_whole_or_not_at_all(mesh: Mesh) -> None:
    worker = mesh.worker(capacity={"concurrency": 2})
    mesh.workload()
    mesh.workload()
    ask = Ask(caller=mesh.open, body=Pull(max=2, start=True), id=worker)

    assert survives(mesh, lambda tx, now: claims.pull(tx, ask, now)) > 10
    assert mesh.row("SELECT count(*) AS n FROM claims")["n"] == 2


def test_recovery_happens_whole_or_not_at_all_for_each_claim(mesh: Mesh) -> None:
    worker = mesh.worker()
    job = mesh.workload()
    mesh.claims(job, by=worker, lease_ms=1_000)
    mesh.later(ms=1_000)
    end = attempts.End("lease_expired", lapsed=True)

    assert survives(mesh, lambda tx, now: attempts.end_claim(tx, now, job, end)) == 4
    assert mesh.state(job) == "READY"
    assert mesh.run(sweep.recover, 10) == 0
