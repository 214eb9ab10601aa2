"""Workers that are wrong on purpose: `python wrong.py WAY --exec CMD`."""

import os
import signal
import sys
from typing import Any

from feltd.worker import alone
from feltd.worker.alone import Job, Refused, Worker


class IgnoresNext(Worker):
    """Tries again, whatever a refusal says, and runs work whatever its runtime_policy says."""

    def begin(self, claim: dict[str, Any]) -> None:
        super().begin({**claim, "runtime_policy": {"max_duration_ms": 3_600_000}})

    def obey(self, refused: Refused) -> None:
        refused.pause()

    def deliver(self, job: Job, verb: str, body: dict[str, Any]) -> None:
        while not self.over:
            try:
                self.fenced(verb, job, body)
                return
            except Refused as refused:
                refused.pause()


class GoesOn(Worker):
    """Hears that its claim has ended, and works on."""

    def begin(self, claim: dict[str, Any]) -> None:
        super().begin(claim)
        job = self.held.get(claim["claim_id"])
        if job is not None:
            job.stop = lambda why: None  # type: ignore[method-assign]


class Careless(Worker):
    """Renews nothing, asks for other work when an answer is lost, and takes its name back.

    It does not wait for Retry-After, and ends at once on SIGTERM.
    """

    def call(self, path: str, body: Any, key: str = "", wait_s: float = 0) -> dict[str, Any]:
        if path == "heartbeat":
            body = {**body, "renew_leases": False}
        if path == "claims":
            body = {**body, "request_id": os.urandom(8).hex()}
        try:
            return super().call(path, body, key, wait_s)
        except Refused as refused:
            refused.after_s = 0.01
            raise

    def obey(self, refused: Refused) -> None:
        if refused.next == "stop" and refused.told.get("reasons"):
            self.register(takeover=True)
        else:
            super().obey(refused)

    def register(self, takeover: bool) -> None:
        before = self.key
        super().register(takeover)
        if not before:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


WAYS = {one.__name__: one for one in (IgnoresNext, GoesOn, Careless)}

if __name__ == "__main__":
    sys.exit(WAYS[sys.argv[1]](lambda job: alone.run_program(sys.argv[3], job)).run())
