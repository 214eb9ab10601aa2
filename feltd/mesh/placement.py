"""Which worker may run which work: every condition, one after another, and nothing else.

Pure functions over rows that the caller read; nothing is stored and nothing is asked twice. The
conditions are split in three: `standing` is of the worker at this instant (never remembered);
`unfit` compares what is asked with what the worker has, the pools and the holds, changes only with
their versions and is memoised by `demands.fitting`; what a pool, key or rate has left comes in as
`full`, found by whoever counts it.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.json import decode

from feltd.clock import Now
from feltd.mesh import terms
from feltd.store.tx import Row

#: Every rule by name, in the order they are tested; the first that fails is the one to tell.
RULES: dict[str, str] = {
    "tenant": "the work is of another tenant",
    "application": "the work is of another application",
    "not_ready": "the worker is not READY",
    "draining": "the worker is draining",
    "quarantined": "the worker is quarantined",
    "full": "the worker holds as many claims as its concurrency",
    "unhealthy": "the worker does not report HEALTHY",
    "stale": "the worker was not heard within its heartbeat timeout",
    "held": "a hold keeps the work from being claimed",
    "capabilities": "the worker was not granted every capability of the work",
    "grant": "the worker's grant has ended or is being compared",
    "workload_kinds": "the worker does not take this definition",
    "resources": "the work asks for more than the worker's resource profile",
    "required_labels": "a required label differs",
    "anti_affinity": "a label matches one the work avoids",
    "pool": "the worker is no member of the pool of the work, or there is no such pool",
    "pool_full": "the pool holds as many claims as its ceiling",
    "key_full": "the concurrency key of the work is at its limit",
    "rate_full": "the rate key of the work is at its limit",
}


class Pool(Struct, frozen=True):
    """Who may run the work that names it: all three conditions together.

    `worker_ids` None: any worker that meets the others; an empty set: nobody.
    """

    pool_id: str
    worker_ids: frozenset[str] | None
    capabilities: frozenset[str]
    required_labels: dict[str, str]


class Hold(Struct, frozen=True):
    """What keeps work from being claimed: everything it can see, or one pool or definition."""

    hold_id: str
    scope: str
    value: str | None
    reason: str


class Holds(Struct, frozen=True):
    """The holds that touch one application: on all of it, by pool, by definition[#revision]."""

    whole: Hold | None = None
    pools: Mapping[str, Hold] = {}
    definitions: Mapping[str, Hold] = {}


#: No pool is known, so work that names one fits nobody.
NO_POOLS: Mapping[str, Pool] = {}
NO_HOLDS = Holds()


class Wanted(Struct, frozen=True):
    """What a demand or a workload asks of a worker."""

    definition_id: str
    definition_revision: str
    capabilities: frozenset[str]
    resources: dict[str, int | None]
    required_labels: dict[str, str]
    anti_affinity: dict[str, str]
    pool_id: str | None = None


class Offered(Struct, frozen=True):
    """What a worker has, as far as work can ask for it."""

    worker_id: str
    granted: frozenset[str]
    kinds: frozenset[str]
    profile: dict[str, int | None]
    labels: dict[str, str]


def of_demand(row: Row | Mapping[str, Any]) -> Wanted:
    """What a demands row asks for."""
    return _wanted(row, row["capabilities"])


def of_workload(row: Row | Mapping[str, Any]) -> Wanted:
    """What a workloads row asks for."""
    return _wanted(row, row["capability_snapshot"])


def of_worker(row: Row | Mapping[str, Any]) -> Offered:
    """What a workers row has to offer."""
    return Offered(
        worker_id=row["worker_id"],
        granted=frozenset(decode(row["granted_capabilities"])),
        kinds=frozenset(decode(row["workload_kinds"])),
        profile=decode(row["resource_profile"]),
        labels=decode(row["labels"]),
    )


def failing(
    worker: Row | Mapping[str, Any],
    workload: Row | Mapping[str, Any],
    now: Now,
    *,
    active: int,
    pools: Mapping[str, Pool] = NO_POOLS,
    holds: Holds = NO_HOLDS,
    full: Collection[str] = (),
) -> list[str]:
    """Every rule that keeps this worker from this workload, in the order of RULES.

    Takes a workers row and a workloads row; `active` is how many live claims the worker holds,
    `pools` and `holds` are those of the application (see pools.of_application and
    holds.of_application), `full` which of pool_full, key_full and rate_full is so at this instant.
    """
    fit = unfit(of_worker(worker), of_workload(workload), pools, holds)
    crossed = [
        *(("tenant",) if worker["tenant_id"] != workload["tenant_id"] else ()),
        *(("application",) if worker["application_id"] != workload["application_id"] else ()),
    ]
    return in_order([*crossed, *standing(worker, now, active=active), *fit, *full])


def in_order(found: Iterable[str]) -> list[str]:
    """These rules in the order of RULES, each once."""
    broken = set(found)
    return [rule for rule in RULES if rule in broken] if broken else []


def reasons(rules: Iterable[str]) -> list[dict[str, str]]:
    """What each of these rules says, as a refusal carries it."""
    return [{"code": rule, "detail": RULES[rule]} for rule in rules]


def standing(worker: Row | Mapping[str, Any], now: Now, *, active: int) -> list[str]:
    """The rules that keep the worker from any work at this instant, in the order of RULES."""
    rules: list[str] = []
    if worker["lifecycle"] == "DRAINING" or worker["drain_at_ms"] is not None:
        rules.append("draining")
    elif worker["lifecycle"] != "READY":
        rules.append("not_ready")
    if quarantined(worker, now):
        rules.append("quarantined")
    if active >= worker["concurrency"]:
        rules.append("full")
    if worker["health"] != "HEALTHY":
        rules.append("unhealthy")
    if worker["last_seen_at_ms"] + worker["heartbeat_timeout_ms"] <= now.lease_ms:
        rules.append("stale")
    ends_at_ms = worker["authority_expires_at_ms"]
    if (
        not worker["authority_live"]
        or worker["authority_unsettled"]
        or (ends_at_ms is not None and ends_at_ms <= now.wall_ms)
    ):
        rules.append("grant")
    return rules


def quarantined(worker: Row | Mapping[str, Any], now: Now) -> bool:
    """Whether a workers row is under a quarantine that is not over."""
    until_at_ms = worker["quarantined_until_at_ms"]
    return worker["quarantined_at_ms"] is not None and (
        until_at_ms is None or until_at_ms > now.wall_ms
    )


def unfit(
    offered: Offered,
    wanted: Wanted,
    pools: Mapping[str, Pool] = NO_POOLS,
    holds: Holds = NO_HOLDS,
) -> list[str]:
    """The rules by which what is asked and what is offered do not fit, in the order of RULES.

    Work that names a pool fits its members alone: a pool that is not in `pools` has none.
    """
    rules: list[str] = []
    if touching(wanted, holds) is not None:
        rules.append("held")
    if not wanted.capabilities <= offered.granted:
        rules.append("capabilities")
    if offered.kinds and not takes(offered.kinds, wanted):
        rules.append("workload_kinds")
    if _exceeds(wanted.resources, offered.profile):
        rules.append("resources")
    labels = offered.labels
    if any(labels.get(key) != text for key, text in wanted.required_labels.items()):
        rules.append("required_labels")
    if any(labels.get(key) == text for key, text in wanted.anti_affinity.items()):
        rules.append("anti_affinity")
    if wanted.pool_id is not None and not member(offered, pools.get(wanted.pool_id)):
        rules.append("pool")
    return rules


def member(offered: Offered, pool: Pool | None) -> bool:
    """Whether a worker is a member of a pool; of none, None, nobody is."""
    return (
        pool is not None
        and (pool.worker_ids is None or offered.worker_id in pool.worker_ids)
        and pool.capabilities <= offered.granted
        and pool.required_labels.items() <= offered.labels.items()
    )


def touching(wanted: Wanted, holds: Holds) -> Hold | None:
    """The hold that keeps this work from being claimed, None when none does."""
    definition_id = wanted.definition_id
    found = holds.whole or holds.definitions.get(definition_id)
    if found is None and holds.definitions:
        found = holds.definitions.get(f"{definition_id}#{wanted.definition_revision}")
    if found is None and wanted.pool_id is not None:
        found = holds.pools.get(wanted.pool_id)
    return found


def takes(kinds: Collection[str], wanted: Wanted) -> bool:
    """Whether a list of kinds holds the definition, with or without its revision."""
    return terms.admits(kinds, wanted.definition_id, wanted.definition_revision)


def _exceeds(asked: Mapping[str, int | None], profile: Mapping[str, int | None]) -> bool:
    # A resource the profile does not name is one the worker does not have.
    return any((amount or 0) > (profile.get(name) or 0) for name, amount in asked.items())


def _wanted(row: Row | Mapping[str, Any], capabilities: str) -> Wanted:
    placement = decode(row["placement"])
    return Wanted(
        definition_id=row["definition_id"],
        definition_revision=row["definition_revision"],
        capabilities=frozenset(decode(capabilities)),
        resources=decode(row["resources"]),
        required_labels=placement.get("required_labels", {}),
        anti_affinity=placement.get("anti_affinity", {}),
        pool_id=placement.get("pool_id"),
    )
