"""Workers pull without rest while holds come and go: no claim lies between a hold and its end."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing

from tests.daemon.running import Daemon, Edge, Mesh, create

ROUNDS = 40


def test_no_claim_lies_between_a_hold_and_its_end(daemon: Daemon, crew: Mesh) -> None:
    """The daemon's own sequence of events is the witness, whatever the answers said."""
    workers = [Edge(daemon, f"racer-{number}", crew.registrar_key) for number in range(4)]
    for worker in workers:
        assert worker.beat().status == 200
    over = threading.Event()

    def again_and_again(act: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            while not over.is_set():
                act()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def take(worker: Edge) -> Callable[[], object]:
        def act() -> None:
            for claim in worker.pull(max=4, wait_ms=50):
                worker.fenced("complete", claim, start=True)

        return act

    numbers = iter(range(1_000_000))
    threads = [again_and_again(take(worker)) for worker in workers]
    threads.append(
        again_and_again(
            lambda: create(daemon, crew, f"race-{next(numbers)}", definition_id="raced")
        )
    )
    try:
        for number in range(ROUNDS):
            scope = ({"scope": "tenant"}, {"scope": "definition", "value": "raced"})[number % 2]
            told = {**scope, "tenant_id": "t", "reason": "a race"}
            hold_id = daemon.post("/v1/holds", told)["hold_id"]
            assert daemon.call("DELETE", f"/v1/holds/{hold_id}").status == 204
    finally:
        over.set()
        for thread in threads:
            thread.join()

    with closing(sqlite3.connect(f"file:{daemon.data}?mode=ro", uri=True)) as conn:
        rows = conn.execute(
            "SELECT kind FROM events WHERE kind IN ('claim', 'hold', 'lift') AND tenant_id = 't'"
            " ORDER BY seq"
        ).fetchall()
    kinds = [kind for (kind,) in rows]
    held, passed = 0, 0
    for kind in kinds:
        held += {"hold": 1, "lift": -1}.get(kind, 0)
        passed += kind == "claim" and held > 0
    assert kinds.count("claim") > ROUNDS
    assert passed == 0
