"""One behaviour under way: an application, a wire and a process of the program for it alone.

The words a behaviour is written in. Each looks at the daemon's rows or at what the wire saw, and
raises Failed with the reason when it is not as it has to be.
"""

import shlex
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from feltd.cli.verify import job
from feltd.cli.verify.ground import Ground, Program, granted
from feltd.cli.verify.wire import Call, Fault, Wire, Wires

#: The lease of a behaviour in which one lapses, or is outlived by the work; FELTD_LEASE_MS says so.
LEASE_MS = 5_000
#: The lease of the others: a slow machine must not let it lapse, nor a worker give it up.
LONG_LEASE_MS = 30_000
#: How long a worker may take for whatever it has to do next: a beat, a repeat, a start.
PATIENCE_S = 15.0
LOOK_EVERY_S = 0.05
#: Calls that were under way, or written already, when the answer that forbids them came.
GRACE_S = 2.0
#: Work that does not end by itself in any behaviour.
LONG_MS = 25_000
FINAL = ("COMPLETED", "CANCELLED", "DEAD_LETTERED")
CAPABILITIES = ("verify", "verify-more")

WORKLOAD = """
SELECT state, fencing_token, input, output, failure_message
  FROM workloads
 WHERE workload_id = :workload_id
"""

CLAIMS = """
SELECT fencing_token, end_kind, failure_message
  FROM claims
 WHERE workload_id = :workload_id
 ORDER BY number
"""

WORKER = """
SELECT worker_id, lifecycle, offline_reason, incarnation, capability_version, name, concurrency
  FROM workers
 WHERE application_id = :application_id
   AND removed_at_ms IS NULL
 ORDER BY registered_at_ms
"""


class Failed(Exception):
    """The program did not do what a worker has to do."""


class Stage:
    """What all behaviours of a run share: the daemon, the wires, the program, the word to end."""

    def __init__(self, command: Sequence[str], ground: Ground, wires: Wires, folder: Path) -> None:
        self.command = command
        self.ground = ground
        self.wires = wires
        self.folder = folder
        self.over = threading.Event()
        # Work that outlives its worker ends when this file is gone.
        self.under_way = folder / "under-way"
        self.under_way.touch()
        # A script, so that the words of FELTD_JOB hold no space, wherever feltd is installed.
        script = folder / "job.sh"
        command_line = (sys.executable, "-I", "-S", str(job.__file__), str(self.under_way))
        script.write_text(f"exec {shlex.join(command_line)}\n")
        self.job = f"sh {script}"

    def end(self) -> None:
        """Tell every behaviour, and the work of every program, that it is over."""
        self.over.set()
        self.under_way.unlink(missing_ok=True)


class Play:
    """One behaviour. A context manager that ends the program and the wire."""

    def __init__(self, stage: Stage, name: str, *, ground: Ground | None = None) -> None:
        self.stage = stage
        self.name = name
        self.ground = ground or stage.ground
        self.grant_id, self.key = self.ground.enroll(name, CAPABILITIES)
        self.wire: Wire = stage.wires.to(self.ground.url)
        self.lease_ms = LONG_LEASE_MS
        self._made = 0
        self._rows = self.ground.open()
        self.program = Program(stage.command, stage.folder / f"{name}.log", {})

    def __enter__(self) -> "Play":
        return self

    def __exit__(self, *_ended: object) -> None:
        self.program.close()
        self.wire.close()
        self._rows.close()

    # -- the program

    def start(self) -> None:
        """Start the program as a worker of this application."""
        self.program.env = {
            "FELTD_URL": self.wire.url,
            "FELTD_KEY": self.key,
            "FELTD_LEASE_MS": str(self.lease_ms),
            "FELTD_JOB": self.stage.job,
        }
        self.program.start()

    def begin(self) -> None:
        """Start the program and wait until its worker is READY."""
        self.start()
        self.until(
            lambda: self.worker is not None and self.worker["lifecycle"] == "READY",
            "it did not become READY: no registration with a heartbeat after it was accepted",
        )

    def ends(self, code: int, when: str, *, told: str = "") -> None:
        """Wait until the program has ended, and compare its exit code. `told`: by what `next`."""
        ignored = f"ignored next: {told} — " if told else ""
        why = f"{ignored}it did not end {when}"
        self.until(lambda: self.program.code is not None, why, living=False)
        if self.program.code != code:
            raise Failed(f"it ended {when} with exit code {self.program.code}, not {code}")

    # -- what the daemon holds

    @property
    def worker(self) -> sqlite3.Row | None:
        """The row of the application's worker, None before it registered."""
        row: sqlite3.Row | None = self._rows.execute(
            WORKER, {"application_id": self.name}
        ).fetchone()
        return row

    @property
    def worker_id(self) -> str:
        """The worker's id."""
        assert self.worker is not None
        return str(self.worker["worker_id"])

    def row(self, workload_id: str) -> sqlite3.Row:
        """The row of a workload."""
        row: sqlite3.Row = self._rows.execute(WORKLOAD, {"workload_id": workload_id}).fetchone()
        return row

    def claims(self, workload_id: str) -> list[sqlite3.Row]:
        """Every claim of a workload, the first one first."""
        return self._rows.execute(CLAIMS, {"workload_id": workload_id}).fetchall()

    def ended(self, workload_id: str) -> list[str]:
        """How each claim of a workload ended."""
        return [one["end_kind"] or "live" for one in self.claims(workload_id)]

    # -- work

    def work(
        self, sleep_ms: int, *, backoff_ms: int = 600_000,
        policy: Mapping[str, object] | None = None, **given: Any,
    ) -> str:  # fmt: skip
        """A workload that sleeps; by default one that is not tried again within the behaviour.

        `policy` is its runtime_policy.
        """
        self._made += 1
        made = self.ground.client.create(
            {
                "tenant_id": "verify",
                "application_id": self.name,
                "definition_id": "verify",
                "idempotency_key": f"{self.name}/{self._made}",
                "input": {"sleep_ms": sleep_ms, "mark": self._made, **given},
                "capability_snapshot": ["verify"],
                "runtime_policy": dict(policy or {}),
                "retry_policy": {
                    "max_attempts": 2,
                    "initial_backoff_ms": backoff_ms,
                    "max_backoff_ms": 600_000,
                },
            }
        )
        return str(made["workload_id"])

    def running(self, workload_id: str) -> int:
        """Wait until a workload runs; the token of its claim."""
        self.until(
            lambda: self.row(workload_id)["state"] in ("RUNNING", "CHECKPOINTED"),
            "work that was waiting was not taken and started",
        )
        return int(self.row(workload_id)["fencing_token"])

    def completes(self, workload_id: str, within_s: float = PATIENCE_S, why: str = "") -> None:
        """Wait until a workload is COMPLETED, with its input as the output."""
        self.until(
            lambda: self.row(workload_id)["state"] in FINAL,
            why or "the work was not completed",
            within_s=within_s,
        )
        row = self.row(workload_id)
        if row["state"] != "COMPLETED":
            ends = ", ".join(self.ended(workload_id))
            said = f" ({row['failure_message']})" if row["failure_message"] else ""
            raise Failed(
                f"work became {row['state']}, not COMPLETED; its claims ended {ends}{said}"
            )
        if msgspec.json.decode(row["output"]) != msgspec.json.decode(row["input"]):
            raise Failed(f"the output is not the input but {row['output'][:100]}")

    def first_try(self, workload_id: str, what: str) -> None:
        """Require that a workload was completed by its first claim."""
        ends = self.ended(workload_id)
        if ends != ["completed"]:
            raise Failed(f"{what}: its claims ended {', '.join(ends)}")

    def takes_more(self, why: str) -> None:
        """Require that the worker has a free slot again and uses it."""
        self.completes(self.work(50), why=why)

    def drops(self, token: int) -> None:
        """Require that the worker lets a claim go once it was told, and does other work."""
        claim_id = f"claim_{token}"
        self.until(
            lambda: any(call.tells_lost(claim_id) for call in self.wire.calls),
            f"it never asked about {claim_id} again, which ended meanwhile: no heartbeat with it "
            "in running_claims, no call under its fence",
        )
        self.takes_more(
            "ignored next: drop_claim — told that its claim had ended, it took no other work"
        )
        told_s = min(call.answered_s for call in self.wire.calls if call.tells_lost(claim_id))
        late = [
            call
            for call in self.wire.calls
            if call.names(claim_id) and call.at_s > told_s + GRACE_S
        ]
        if late:
            raise Failed(
                f"ignored next: drop_claim — {len(late)} calls for {claim_id} after the answer "
                f"that it had ended, the last {_shown(late[-1])}"
            )

    # -- the wire

    def asked(self, verb: str, after_s: float = 0.0) -> list[Call]:
        """The calls of a verb since an instant."""
        return [call for call in self.wire.calls if verb in call.verbs and call.at_s >= after_s]

    def told(self, next: str, after_s: float = 0.0) -> list[Call]:
        """The refusals with a `next` since an instant."""
        return [call for call in self.wire.calls if next in call.next and call.at_s >= after_s]

    # -- waiting

    def until(
        self,
        done: Callable[[], bool],
        why: str,
        *,
        within_s: float = PATIENCE_S,
        living: bool = True,
    ) -> None:
        """Look until it is so. Raises Failed with `why` when it is not in time.

        `living`: the program must not end meanwhile.
        """
        ends_s = time.monotonic() + within_s
        while not done():
            if self.stage.over.is_set():
                raise KeyboardInterrupt
            if living and self.program.code is not None:
                raise Failed(f"it ended with exit code {self.program.code}: {why}")
            if time.monotonic() > ends_s:
                raise Failed(f"{why} (within {within_s:.0f} s)")
            time.sleep(LOOK_EVERY_S)

    def pause(self, seconds: float) -> None:
        """Let the worker go on for a while; it has to be there afterwards."""
        ends_s = time.monotonic() + seconds
        self.until(
            lambda: time.monotonic() >= ends_s, "it has to go on", within_s=seconds + PATIENCE_S
        )

    def kill(self) -> None:
        """SIGKILL the program and its group."""
        self.program.signal(signal.SIGKILL, group=True)
        self.until(lambda: self.program.code is not None, "it could not be killed", living=False)

    def change_grant(self, capabilities: Sequence[str]) -> None:
        """Replace what the worker's grant allows."""
        self.ground.client.replace_grant(self.grant_id, **granted(self.name, capabilities))

    def misbehave(self, fault: Fault) -> None:
        """Give the wire a fault."""
        self.wire.fault = fault


def _shown(call: Call) -> str:
    return f"{call.method} {call.path} ({call.status})"
