"""Everything that can happen to work, by chance, while the daemon dies and comes back.

Nobody here remembers what he was promised: it is the feed that is tested, not the answers.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

from tests.daemon.running import Answer, Daemon, Edge, Mesh

#: Shorter than a round of some workers takes: such leases lapse.
SHORT_LEASE_MS = 1_000
RETRIES = {"max_attempts": 3, "initial_backoff_ms": 20, "max_backoff_ms": 50}


#: What an operator does to one workload, requeue oftener: only some are dead.
OF_ONE = ("cancel", "cancel by force", "requeue", "requeue", "requeue")


class Bustle:
    """A submitter, an operator and some workers, each a thread, until `end`."""

    def __init__(self, daemon: Daemon, mesh: Mesh, edges: list[Edge], seed: int) -> None:
        self.daemon = daemon
        self.mesh = mesh
        #: What was done, by verb; an answer below 300 counts.
        self.done: Counter[str] = Counter()
        self.jobs: list[str] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._submit, args=(random.Random(seed),)),
            threading.Thread(target=self._operate, args=(random.Random(seed + 1),)),
            *(
                threading.Thread(target=self._work, args=(edge, random.Random(seed + 2 + place)))
                for place, edge in enumerate(edges)
            ),
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let everybody finish."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _try(self, verb: str, call: Callable[[], Answer]) -> Any:
        """One call; what it answered, or None where it was refused or lost."""
        try:
            answer = call()
        except (OSError, HTTPException, ValueError):
            time.sleep(0.05)
            return None
        if answer.status >= 300:
            return None
        self.done[verb] += 1
        return answer.body

    def _submit(self, rng: random.Random) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            made = self._post(
                "create",
                "/v1/workloads",
                definition_id="extract",
                idempotency_key=f"bustle-{count}",
                capability_snapshot=["documents.extract"],
                retry_policy=RETRIES,
                priority=rng.randint(-3, 3),
                **_more(rng, self.jobs),
            )
            if made:
                self.jobs.append(made["workload_id"])
            time.sleep(rng.random() * 0.02)

    def _operate(self, rng: random.Random) -> None:
        while not self._stop.is_set():
            time.sleep(rng.random() * 0.03)
            if not self.jobs:
                continue
            job = rng.choice(self.jobs[-60:])
            verb = rng.choice((*OF_ONE, "evict", "edit", "bulk", "hold"))
            if verb == "evict":
                self._evict(rng)
            elif verb == "edit":
                self._call("PATCH", verb, f"/v1/workloads/{job}", priority=rng.randint(-3, 3))
            elif verb == "bulk":
                action = rng.choice(("requeue", "reprioritise"))
                more = {"priority": 1} if action == "reprioritise" else {}
                narrow = {"state": "DEAD_LETTERED" if action == "requeue" else "READY"}
                self._post(verb, "/v1/workloads/bulk", action=action, filter=narrow, **more)
            elif verb == "hold":
                # It ends by itself where the daemon dies before it can be lifted.
                until_at_ms = int(time.time() * 1_000) + 500
                body = {"scope": "tenant", "reason": "bustle", "until_at_ms": until_at_ms}
                held = self._post(verb, "/v1/holds", **body)
                if held:
                    self._call("DELETE", "lift", f"/v1/holds/{held['hold_id']}")
            else:
                force = {"force": True} if verb == "cancel by force" else {}
                self._post(verb, f"/v1/workloads/{job}/{verb.split()[0]}", **force)

    def _post(self, verb: str, path: str, **body: Any) -> Any:
        return self._call("POST", verb, path, **body)

    def _call(self, method: str, verb: str, path: str, **body: Any) -> Any:
        """A call of the submitter, who may operate too."""
        key, said = self.mesh.submitter_key, body or None
        return self._try(verb, lambda: self.daemon.call(method, path, said, key=key))

    def _evict(self, rng: random.Random) -> None:
        found = self._try("list", lambda: self.daemon.call("GET", "/v1/claims?live=true&limit=20"))
        if not found or not found["items"]:
            return
        claim_id = rng.choice(found["items"])["claim_id"]
        body = {"reason": "bustle", "to": rng.choice(("READY", "DEAD_LETTERED"))}
        path = f"/v1/claims/{claim_id}/evict"
        self._try("evict", lambda: self.daemon.call("POST", path, body))

    def _work(self, edge: Edge, rng: random.Random) -> None:
        while not self._stop.is_set():
            if self._try("beat", edge.beat) is None:
                self._try("reconcile", lambda: _reconcile(edge))
                continue
            body = {"max": 3, "lease_ms": rng.choice((SHORT_LEASE_MS, 30_000))}
            body["start"] = rng.random() < 0.5
            pulled = self._try("pull", lambda body=body: edge.call("claims", body))  # type: ignore[misc]
            for claim in pulled["claims"] if pulled else ():
                self._end(edge, claim, rng)
            time.sleep(rng.random() * 0.02)

    def _end(self, edge: Edge, claim: dict[str, Any], rng: random.Random) -> None:
        how = rng.choice(("complete", "complete", "fail", "give up", "release", "keep", "forget"))
        if how == "forget":
            return
        if how == "release":
            self._try(how, lambda: edge.fenced("release", claim))
            return
        self._try("start", lambda: edge.fenced("start", claim))
        if how == "keep":
            self._try("checkpoint", lambda: edge.fenced("checkpoint", claim, data={"page": 1}))
        elif how == "complete":
            self._try(how, lambda: edge.fenced("complete", claim, output=1))
        else:
            kind = "transient" if how == "fail" else "execution_error"
            self._try(how, lambda: edge.fenced("fail", claim, kind=kind, message="no"))


def _more(rng: random.Random, jobs: list[str]) -> dict[str, Any]:
    """Some work waits for other work, some gives up in time, some goes one by one."""
    more: dict[str, Any] = {}
    if jobs and rng.random() < 0.2:
        more["dependencies"] = rng.sample(jobs[-8:], min(2, len(jobs)))
        more["dependency_policy"] = rng.choice(("all_completed", "all_finished"))
    if rng.random() < 0.2:
        more["timeouts"] = {"queue_ms": 400, "execution_ms": 300, "total_ms": 3_000}
    if rng.random() < 0.2:
        more["concurrency"] = {"key": "one-by-one", "limit": 1}
    return more


def _reconcile(edge: Edge) -> Answer:
    body = {"worker_id": edge.id, "worker_version": "1"}
    return edge.call("reconcile", body | {"capability_version": edge.capability_version})
