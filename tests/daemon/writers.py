"""A service that writes records all the while the daemon dies and comes back, and what must follow.

It sends each write with If-Match and repeats a lost one with the same words, as clients do; so it
knows every change that there is, whether or not it was ever told of it.
"""

import sqlite3
import threading
import time
from contextlib import closing
from http.client import HTTPException
from typing import Any, NamedTuple

from tests.daemon.running import Daemon

#: Writes a second.
RATE = 10
RECORDS = 7
COLLECTION = "orders"

CHANGES = """
SELECT c.seq, c.kind, c.record_id, c.version, c.after
  FROM changes c
 WHERE c.tenant_id = 't'
 ORDER BY c.seq
"""

STARTED = """
SELECT w.trigger, w.idempotency_key, w.input
  FROM workloads w
 WHERE w.trigger <> 'manual'
 ORDER BY w.seq
"""

CURSORS = """
SELECT t.trigger_id, t.cursor_seq, l.head_seq, t.enabled, t.failure
  FROM triggers t
  JOIN change_logs l ON l.tenant_id = t.tenant_id
 WHERE t.kind = 'state'
"""


class Write(NamedTuple):
    """One write as it was asked for: what it made of the record, and what it was matched with."""

    record_id: str
    version: int
    value: dict[str, Any]


class Writer:
    """One thread that writes RATE records a second until `end`."""

    def __init__(self, daemon: Daemon, key: str) -> None:
        self.daemon = daemon
        self._key = key
        #: Answered 200 or 201, in order.
        self.done: list[Write] = []
        #: What must never happen and did.
        self.wrong: list[str] = []
        self.repeated = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        """Finish the write at hand; the daemon must be up."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        versions: dict[str, int] = {}
        due_s = time.monotonic()
        while not self._stop.is_set() and not self.wrong:
            number = len(self.done)
            record_id = f"order-{number % RECORDS}"
            value = {"n": number, "status": "paid" if number % 3 else "open"}
            write = Write(record_id, versions.get(record_id, 0) + 1, value)
            self._insist(write)
            versions[record_id] = write.version
            self.done.append(write)
            due_s = max(due_s + 1 / RATE, time.monotonic() - 1.0)
            time.sleep(max(0.0, due_s - time.monotonic()))

    def _insist(self, write: Write) -> None:
        path = f"/v1/collections/{COLLECTION}/records/{write.record_id}?tenant_id=t"
        match = {"If_Match": f'"{write.version - 1}"'}
        if write.version == 1:
            match = {"If_None_Match": "*"}
        first = True
        while True:
            try:
                answer = self.daemon.call("PUT", path, write.value, key=self._key, **match)
            except (OSError, HTTPException, ValueError):
                self.repeated += first
                first = False
                time.sleep(0.02)
                continue
            if answer.status == 503:
                time.sleep(0.02)
                continue
            made_before = not first and answer.status == 412 and write.version == 1
            if answer.status not in (200, 201) and not made_before:
                self.wrong.append(f"{write} was answered {answer}")
            elif not made_before and answer.body["version"] != write.version:
                self.wrong.append(f"{write} made {answer.body}")
            return


class Reader:
    """A consumer that reads every change, and acknowledges what it has until `end`."""

    def __init__(self, daemon: Daemon, key: str) -> None:
        self.daemon = daemon
        self._key = key
        #: Every change it was told, in order.
        self.told: list[dict[str, Any]] = []
        #: What must never happen and did.
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._acknowledge()
        self._thread.start()

    def end(self) -> None:
        """Read to the end; the daemon must be up and nobody write any more."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self.wrong:
            stopping = self._stop.is_set()
            try:
                if not self._read() and stopping:
                    return
            except (OSError, HTTPException, ValueError):
                time.sleep(0.05)

    def _read(self) -> bool:
        """One page and its acknowledgement; whether there was anything."""
        after = self.told[-1]["seq"] if self.told else 0
        path = f"/v1/changes?tenant_id=t&after={after}&limit=20&wait_ms=100"
        answer = self.daemon.call("GET", path, key=self._key)
        if answer.status != 200:
            if answer.status != 503:
                self.wrong.append(f"behind {after}: {answer}")
            return True
        self.told += answer.body["items"]
        self._acknowledge()
        return bool(answer.body["items"])

    def _acknowledge(self) -> None:
        ack = self.told[-1]["seq"] if self.told else 0
        path = "/v1/consumers/reader?tenant_id=t"
        answer = self.daemon.call("PUT", path, {"ack": ack}, key=self._key)
        if answer.status not in (200, 201, 503):
            self.wrong.append(f"acknowledging {ack}: {answer}")


def granted(daemon: Daemon) -> str:
    """A key that writes records and defines triggers of tenant t, application a, by its grant."""
    made = daemon.post(
        "/v1/grants",
        {
            "subject": {"kind": "service", "id": "shop"},
            "tenant_id": "t",
            "application_id": "a",
            "capabilities": ["workload:capability:documents.extract"],
            "resources": [{"kind": "RESOURCE_PREFIX", "uri": "flow://a/workers/*"}],
            "expires_at_ms": int(time.time() * 1000) + 86_400_000,
        },
    )
    scopes = ["state:read", "state:write", "triggers:read", "triggers:write"]
    answer = daemon.post(
        "/v1/keys",
        {
            "name": "shop",
            "scopes": scopes,
            "tenants": ["t"],
            "identity_id": "shop",
            "grant_id": made["grant"]["id"],
        },
    )
    return str(answer["secret"])


def trigger(daemon: Daemon, key: str, trigger_id: str, **members: Any) -> None:
    """Define one; the members say for what."""
    body = {
        "trigger_id": trigger_id,
        "target_capability": "bill",
        "capability_snapshot": ["documents.extract"],
        **members,
    }
    daemon.post("/v1/triggers", body, key=key)


def rows(daemon: Daemon, sql: str) -> list[tuple[Any, ...]]:
    """A look into the file beside the daemon."""
    with closing(sqlite3.connect(f"file:{daemon.data}?mode=ro", uri=True)) as shell:
        return shell.execute(sql).fetchall()
