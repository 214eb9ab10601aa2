"""Clients that go on while the daemon dies and comes back, and remember what they were promised.

Each repeats a lost call with the same words until it is answered, as clients of feltd do.
"""

import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

from tests.daemon.running import Answer, Daemon, Edge, Mesh, create

#: A holder's lease: longer than a restart takes, shorter than a few of them.
HOLD_LEASE_MS = 4_000


class Load:
    """Submitters, workers and one holder of a lease, each a thread."""

    def __init__(self, daemon: Daemon, mesh: Mesh, edges: list[Edge], holder: Edge) -> None:
        self.daemon = daemon
        self.mesh = mesh
        self.edges = edges
        self.holder = holder
        #: Workload ids whose creation was answered, and fencing tokens whose completion was.
        self.created: dict[str, str] = {}
        self.completed: dict[str, int] = {}
        #: Tokens in the order in which each worker was given them.
        self.tokens: list[list[int]] = []
        #: What must never happen and did.
        self.wrong: list[str] = []
        self.renewals = 0
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Start every client."""
        self._threads = [threading.Thread(target=self._submit, args=(n,)) for n in range(2)]
        self._threads += [threading.Thread(target=self._work, args=(edge,)) for edge in self.edges]
        self._threads.append(threading.Thread(target=self._hold))
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop every client; the daemon must be up."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def again(self, call: Callable[[], Answer]) -> Answer | None:
        """Repeat a call while it is lost or refused with `repeat`; None once the load ends."""
        while not self._stop.is_set():
            try:
                answer = call()
            except (OSError, HTTPException, ValueError):
                time.sleep(0.02)
                continue
            if answer.status == 503:
                time.sleep(0.02)
                continue
            if answer.status >= 500:
                self.wrong.append(f"{answer.status} {answer.body}")
            return answer
        return None

    def _submit(self, number: int) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            key = f"key-{number}-{count}"
            body = {"definition_id": "extract", "idempotency_key": key, "input": count}
            body |= {"capability_snapshot": ["documents.extract"]}
            answer = self.again(
                lambda body=body: self.daemon.call(  # type: ignore[misc]
                    "POST", "/v1/workloads", body, key=self.mesh.submitter_key
                )
            )
            if answer is None:
                return
            if answer.status not in (200, 201):
                self.wrong.append(f"create: {answer}")
                return
            self.created[answer.body["workload_id"]] = key

    def _work(self, edge: Edge) -> None:
        given: list[int] = []
        self.tokens.append(given)
        count = 0
        while not self._stop.is_set():
            if not self._alive(edge):
                return
            count += 1
            request_id = f"{edge.id}-{count}"
            pulled = self.again(
                lambda request_id=request_id: edge.call(  # type: ignore[misc]
                    "claims", {"max": 4, "start": True, "request_id": request_id, "wait_ms": 200}
                )
            )
            for claim in pulled.body["claims"] if pulled and pulled.status == 200 else ():
                given.append(claim["fencing_token"])
                self._complete(edge, claim)

    def _alive(self, edge: Edge) -> bool:
        answer = self.again(edge.beat)
        if answer is not None and answer.status != 200:
            self.wrong.append(f"heartbeat of {edge.id}: {answer}")
        return answer is not None and answer.status == 200

    def _complete(self, edge: Edge, claim: dict[str, Any]) -> None:
        answer = self.again(lambda: edge.fenced("complete", claim, output=claim["fencing_token"]))
        if answer is None:
            return
        if answer.status == 200:
            self.completed[claim["workload_id"]] = claim["fencing_token"]
        else:
            self.wrong.append(f"complete: {answer}")

    def _hold(self) -> None:
        """Hold one lease over every death of the daemon, and finish at the end."""
        lease = {"max": 1, "start": True, "lease_ms": HOLD_LEASE_MS, "request_id": "held"}
        claim = None
        while claim is None and not self._stop.is_set():
            self._alive(self.holder)
            pulled = self.again(lambda: self.holder.call("claims", lease))
            claims = pulled.body["claims"] if pulled and pulled.status == 200 else []
            claim = claims[0] if claims else None
        while claim is not None and not self._stop.is_set():
            self._alive(self.holder)
            answer = self.again(lambda: self.holder.fenced("renew", claim, lease_ms=HOLD_LEASE_MS))
            if answer is not None and answer.status != 200:
                self.wrong.append(f"renew: {answer}")
                return
            self.renewals += 1
            time.sleep(0.2)


def crew(daemon: Daemon, mesh: Mesh, workers: int, **timing: int) -> list[Edge]:
    """Workers that have told they are healthy."""
    edges = [
        Edge(daemon, f"edge-{number}", mesh.registrar_key, **timing) for number in range(workers)
    ]
    for edge in edges:
        assert edge.beat().status == 200
    return edges


def backlog(daemon: Daemon, mesh: Mesh, count: int) -> list[str]:
    """Ids of new waiting workloads."""
    return [create(daemon, mesh, f"backlog-{n}")["workload_id"] for n in range(count)]
