"""A tenant's schedules in memory, defined and fired by the real rules, round by round."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from msgspec import convert
from msgspec.json import decode

from feltd.clock import Now
from feltd.mesh import cancel
from feltd.model.trigger import Define
from feltd.model.workload import Cancel
from feltd.state import definitions, runs, schedules
from feltd.state.definitions import Defining
from feltd.state.standing import OnTrigger
from feltd.store.tx import Row
from tests.state.world import State

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
MINUTE_MS = 60_000


def at(zone: str, *when: int) -> int:
    """The instant at which a zone's clock first shows this."""
    return int(datetime(*when, tzinfo=ZoneInfo(zone)).timestamp() * 1_000)  # type: ignore[arg-type, misc]


class Calendar(State):
    """A tenant with schedules; stories begin on the first of February 2026, midnight UTC."""

    def __init__(self) -> None:
        super().__init__()
        self.stand(at("UTC", 2026, 2, 1))

    def stand(self, wall_ms: int) -> None:
        """Both clocks show this from now on."""
        self.now = Now(wall_ms, wall_ms)

    def step(self, ms: int) -> None:
        """The wall clock alone is set forward, or back."""
        self.now = Now(self.now.lease_ms, self.now.wall_ms + ms)

    def schedule(self, trigger_id: str = "nightly", tenant_id: str = "acme", **members: Any) -> str:
        """Define a schedule of acme/docs, daily at 02:00 UTC unless said; its id."""
        if "every_ms" not in members:
            members.setdefault("cron", "0 2 * * *")
        said = {
            "trigger_id": trigger_id,
            "kind": "schedule",
            "target_capability": "report",
            "tenant_id": tenant_id,
            "application_id": "docs",
            **members,
        }
        self.ask(definitions.define, Defining(convert(said, Define)))
        return trigger_id

    def manage(self, verb: Any, trigger_id: str = "nightly", body: Any = None, **of: Any) -> Any:
        """Enable, disable, delete or preview a schedule of acme."""
        return self.ask(verb, OnTrigger("acme", body), trigger_id, **of)

    def trigger(self, trigger_id: str = "nightly", tenant_id: str = "acme") -> Row:
        """The row of a schedule."""
        return self.row(
            "SELECT * FROM triggers WHERE tenant_id = :tenant_id AND trigger_id = :trigger_id",
            tenant_id=tenant_id,
            trigger_id=trigger_id,
        )

    def fire(self, limit: int = 100) -> tuple[int, int | None]:
        """One slice of the keeper's entry."""
        return self.run(schedules.fire_due, limit)

    def rounds(self, limit: int = 100) -> int:
        """Slices until nothing is due; how many it took."""
        for number in range(1, 10_000):
            done, next_at_ms = self.fire(limit)
            if done < limit and (next_at_ms is None or next_at_ms > self.now.lease_ms):
                return number
        raise AssertionError("it never comes to rest")

    def run_now(self, trigger_id: str = "nightly", tenant_id: str = "acme", **of: Any) -> str:
        """Run a schedule by hand; the workload."""
        return self.ask(runs.run_now, OnTrigger(tenant_id), trigger_id, **of).workload_id

    def fired(self, trigger_id: str = "nightly", tenant_id: str = "acme") -> list[int]:
        """The instants of the workloads a schedule made, in the order they were made."""
        rows = self.conn.execute(
            "SELECT labels FROM workloads WHERE tenant_id = ? AND trigger = ? ORDER BY seq",
            [tenant_id, trigger_id],
        )
        return [int(decode(row["labels"])["scheduled_at_ms"]) for row in rows]

    def firings(self, trigger_id: str = "nightly") -> list[tuple[int, str]]:
        """What is written down of a schedule: instant and outcome, in order."""
        rows = self.conn.execute(
            "SELECT scheduled_at_ms, outcome FROM schedule_firings"
            " WHERE trigger_id = ? AND by_hand = 0 ORDER BY scheduled_at_ms",
            [trigger_id],
        )
        return [tuple(row) for row in rows]

    def finish(self, job: str) -> None:
        """The work ends without a worker."""
        self.ask(cancel.cancel, Cancel(), job)
