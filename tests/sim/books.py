"""What is known of a tenant's records, of their changes, and of what changes must have started.

Written from the law's own words over plain values; nothing of feltd's state is used. It is one
value: kept with a backup, put back with it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

#: A record that is not there; JSON null is a value.
ABSENT = "(absent)"
#: Firings that may lead to a change; one more starts nothing.
DEPTH_MAX = 8

Op = Literal["put", "patch", "delete"]
Name = tuple[str, str]
Judged = tuple[int, bool]


class Wanted(NamedTuple):
    """What a write expects: `version` a number, None (it is not there) or ABSENT (anything)."""

    version: int | str | None = ABSENT
    exists: bool = False


class Deed(NamedTuple):
    """One change."""

    seq: int
    kind: str
    collection: str
    record_id: str
    version: int
    before: Any
    after: Any
    depth: int


@dataclass
class Rec:
    """A record, or what is remembered of one that was deleted."""

    version: int
    value: Any
    key_id: str
    seq: int


@dataclass
class Wish:
    """A state trigger as it was last defined. `cursor` is as the rows had it at the last look."""

    application_id: str
    collection: str
    kind: str
    predicate: str
    cursor: int
    enabled: bool = True


@dataclass
class Rota:
    """A schedule: its interval, and the last instant it is known to have dealt with."""

    application_id: str
    every_ms: int
    missed: str
    overlap: str
    last_ms: int = 0
    last_workload_id: str | None = None


@dataclass
class Books:
    """Of one tenant."""

    records: dict[Name, Rec] = field(default_factory=dict)
    deeds: list[Deed] = field(default_factory=list)
    floor: int = 0
    wishes: dict[str, Wish] = field(default_factory=dict)
    rotas: dict[str, Rota] = field(default_factory=dict)
    #: (trigger, seq) or (schedule, instant), and the workload that came of it; '' for none.
    fired: dict[tuple[str, int], str] = field(default_factory=dict)
    #: How many firings led to a workload.
    depth_of: dict[str, int] = field(default_factory=dict)
    acks: dict[str, int] = field(default_factory=dict)
    #: Triggers that were given another start since the last look.
    moved: set[str] = field(default_factory=set)
    #: Schedules were given another interval: their last instants may lie between the new ones.
    moved_rotas: bool = False
    #: Records deleted long ago may be forgotten by now.
    forgets: bool = False
    #: A grant ended, or somebody took a key that firings need: they may fail.
    troubled: bool = False

    @property
    def head(self) -> int:
        """The newest change."""
        return len(self.deeds)

    def write(
        self,
        op: Op,
        name: Name,
        value: Any,
        wanted: Wanted,
        key_id: str,
        depth: int = 0,
    ) -> str:
        """Do one write; '' when it was done or changed nothing, else the code of its refusal."""
        found = self.records.get(name)
        there = found is not None and found.value != ABSENT
        version = 0 if found is None else found.version
        if op in ("patch", "delete") and not there:
            return "RECORD_NOT_FOUND"
        after = ABSENT if op == "delete" else value
        if op == "patch":
            assert found is not None
            after = merged(found.value, value)
        if wanted.exists and not there:
            return "RECORD_CONFLICT"
        if wanted.version is None and there:
            return "RECORD_CONFLICT"
        if isinstance(wanted.version, int) and (not there or wanted.version != version):
            repeat = (
                found is not None
                and found.version == wanted.version + 1
                and found.key_id == key_id != ""
                and op != "delete"
                and found.value == after
            )
            return "" if repeat else "RECORD_CONFLICT"
        if there and found is not None and found.value == after:
            return ""
        kind = "deleted" if op == "delete" else "updated" if there else "created"
        before = found.value if found is not None and there else ABSENT
        seq = self.head + 1
        self.deeds.append(Deed(seq, kind, *name, version + 1, before, after, depth))
        self.records[name] = Rec(version + 1, after, key_id, seq)
        return ""

    def wanted(self, trigger_id: str, after: int, until: int | None = None) -> list[Judged]:
        """Changes behind `after`, up to `until`, that a trigger wants, and whether each fires."""
        wish = self.wishes[trigger_id]
        wants = PREDICATES[wish.predicate]
        return [
            (deed.seq, deed.depth < DEPTH_MAX)
            for deed in self.deeds[after:until]
            if deed.collection == wish.collection
            and wish.kind in ("any", deed.kind)
            and wants(deed)
        ]


def merged(value: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    made = dict(value) if isinstance(value, dict) else {}
    for name, one in patch.items():
        if one is None:
            made.pop(name, None)
        else:
            made[name] = merged(made.get(name), one)
    return made


def _at(value: Any, name: str) -> Any:
    return value.get(name, ABSENT) if isinstance(value, dict) else ABSENT


#: Predicates by name: as they are sent, below, and what the law says of them, here.
PREDICATES: dict[str, Callable[[Deed], bool]] = {
    "every": lambda deed: True,
    "paid": lambda deed: _at(deed.after, "status") == "paid",
    "became paid": lambda deed: (
        _at(deed.after, "status") == "paid"
        and _at(deed.before, "status") != _at(deed.after, "status")
    ),
    "not paid": lambda deed: _at(deed.after, "status") != "paid",
    "large": lambda deed: (
        isinstance(_at(deed.after, "n"), int)
        and not isinstance(_at(deed.after, "n"), bool)
        and _at(deed.after, "n") >= 2
    ),
    "was there": lambda deed: _at(deed.before, "n") != ABSENT,
    "never": lambda deed: False,
}

PAID = {"op": "eq", "field": "after.status", "value": "paid"}
SENT: dict[str, Any] = {
    "every": None,
    "paid": PAID,
    "became paid": {"op": "all", "args": [PAID, {"op": "changed", "field": "status"}]},
    "not paid": {"op": "ne", "field": "after.status", "value": "paid"},
    "large": {"op": "ge", "field": "after.n", "value": 2},
    "was there": {"op": "exists", "field": "before.n", "value": True},
    "never": {"op": "any", "args": []},
}
