"""The places of the console: what the navigation lists, and the scope each place asks for."""

from typing import NamedTuple


class Place(NamedTuple):
    """One entry: where it leads, what it says, and the scope without which it is not shown."""

    path: str
    label: str
    scope: str


#: Groups of places, by heading.
PLACES: tuple[tuple[str, tuple[Place, ...]], ...] = (
    (
        "Now",
        (
            Place("/console", "Overview", "workloads:read"),
            Place("/console/backlog", "Backlog", "workers:read"),
            Place("/console/events", "Events", "events:read"),
        ),
    ),
    (
        "Work",
        (
            Place("/console/workloads", "Workloads", "workloads:read"),
            Place("/console/dead-letters", "Dead letters", "workloads:read"),
            Place("/console/triggers", "Triggers", "triggers:read"),
            Place("/console/schedules", "Schedules", "triggers:read"),
        ),
    ),
    (
        "Mesh",
        (
            Place("/console/workers", "Workers", "workers:read"),
            Place("/console/pools", "Pools", "workers:read"),
            Place("/console/holds", "Holds", "workloads:operate"),
        ),
    ),
    (
        "House",
        (
            Place("/console/audit", "Audit", "audit:read"),
            Place("/console/keys", "Keys", "keys:admin"),
            Place("/console/grants", "Grants", "grants:issue"),
            Place("/console/users", "Users", "users:admin"),
            Place("/docs", "API", "workloads:read"),
        ),
    ),
)


def lies_under(path: str, place: Place) -> bool:
    """Whether a path is the place or something in it; the overview is in nothing else."""
    if place.path == "/console":
        return path == place.path
    return path == place.path or path.startswith(place.path + "/")
