"""Clients that know nothing but the feed: read by pages, through crashes, restarts and restores.

What such a one has put together must be what the tables say at the end of every schedule; where
the feed it was reading is no more, it is told so and begins anew.
"""

from dataclasses import dataclass, field

from feltd.errors import Refused
from feltd.mesh import feed
from feltd.model.event import Following
from feltd.store.tx import Tx
from tests.mesh.rebuilt import WORKLOADS, Rebuilt, stored
from tests.sim.history import Violation
from tests.sim.image import Place
from tests.sim.people import Act
from tests.sim.world import World

OF_TENANT = """
SELECT w.workload_id
  FROM workloads w
 WHERE w.tenant_id = :tenant_id
"""

PAGES = (1, 3, 50)


@dataclass
class Follower:
    """One reader of the events of some tenants."""

    tenants: tuple[str, ...]
    known: Rebuilt = field(default_factory=Rebuilt)
    after: int | None = None

    def read(self, world: World, limit: int) -> bool:
        """One page; whether there may be more."""
        try:
            page = feed.page(Tx(world.conn), Following(self.tenants, self.after, limit), world.now)
        except Refused as refused:
            world.oracle.reached[refused.code] += 1
            if refused.code != "EVENTS_COMPACTED" or self.after is None:
                raise Violation(f"a follower behind {self.after} was refused {refused}") from None
            self.known, self.after = Rebuilt(), None
            return True
        for event in page.items:
            told = {name: getattr(event, name) for name in event.__struct_fields__}
            self.known.take(told | {"from": event.from_state or ""})
        full = len(page.items) == limit
        self.after = page.items[-1].seq if full else page.head
        return full

    def compare(self, world: World) -> None:
        """Read to the end; what is known must be what the tables say."""
        while self.read(world, 500):
            pass
        rows = stored(world.rows(WORKLOADS))
        if "*" not in self.tenants:
            own = [world.rows(OF_TENANT, tenant_id=tenant_id) for tenant_id in self.tenants]
            rows = {row["workload_id"]: rows[row["workload_id"]] for some in own for row in some}
        if self.known.wrong or self.known.workloads != rows:
            differ = sorted(set(self.known.workloads.items()) ^ set(rows.items()))
            raise Violation(f"a follower of {self.tenants} {self.known.wrong[:3]}: {differ[:4]}")


def all_of(place: Place) -> list[Follower]:
    """One of everybody's events, one of a tenant's, one that merges two tenants."""
    return [Follower(("*",)), Follower((place.tenant_id,)), Follower(("acme", "zeta"))]


def follow(world: World, place: Place) -> None:
    """One of them reads on, as far as it comes."""
    rng = world.rng
    if world.followers:
        one = rng.choice(world.followers)
        for _ in range(rng.choice((1, 2, 5))):
            if not one.read(world, rng.choice(PAGES)):
                break


ACTS: tuple[tuple[Act, int], ...] = ((follow, 4),)
