"""Random scenes of placement, and an oracle that judges them from the words of the law alone.

The oracle reads plain Python values and shares no code with the rules: it is the second opinion.
"""

import random
from typing import Any

from feltd.mesh.choosing import Inputs, Limit, Rate, Seen, Work
from feltd.mesh.placement import Hold, Pool
from feltd.model.policy import Placement

LEASE_MS, WALL_MS = 1_790_000_000_000, 1_790_000_003_000
CAPABILITIES = ("docs.extract", "docs.render", "gpu")
LABELS = {"zone": ("a", "b", "c"), "disk": ("ssd", "hdd"), "trusted/site": ("x", "y")}
KINDS = ("extract", "render", "extract#1", "extract#2", "render#1")

Rng = random.Random


def labels(rng: Rng, chance: float) -> dict[str, str]:
    return {key: rng.choice(texts) for key, texts in LABELS.items() if rng.random() < chance}


def some(rng: Rng, of: tuple[str, ...], chance: float) -> tuple[str, ...]:
    return tuple(sorted(one for one in of if rng.random() < chance))


def worker(rng: Rng, number: int) -> Seen:
    concurrency = rng.choice((1, 2, 2, 4, 8))
    quarantined = rng.random() < 0.1
    return Seen(
        worker_id=f"worker_{number:02d}",
        tenant_id="other" if rng.random() < 0.03 else "acme",
        application_id="mail" if rng.random() < 0.03 else "docs",
        lifecycle=rng.choices(("READY", "DRAINING", "OFFLINE", "REGISTERED"), (20, 1, 1, 1))[0],
        health=rng.choices(("HEALTHY", "DEGRADED"), (20, 1))[0],
        concurrency=concurrency,
        active=rng.randint(0, concurrency),
        last_seen_at_ms=LEASE_MS
        - rng.choices((0, 9_000, 29_999, 30_000, 99_000), (9, 9, 5, 1, 1))[0],
        heartbeat_timeout_ms=30_000,
        authority_live=int(rng.random() < 0.96),
        authority_unsettled=int(rng.random() < 0.03),
        authority_expires_at_ms=rng.choice((None, None, WALL_MS + 1, WALL_MS + 60_000, WALL_MS)),
        granted_capabilities=some(rng, CAPABILITIES, 0.85),
        workload_kinds=some(rng, KINDS, 0.5) if rng.random() < 0.3 else (),
        resource_profile={"cpu_millis": rng.choice((500, 2_000)), "gpu_count": rng.randint(0, 1)},
        labels=labels(rng, 0.8),
        drain_at_ms=LEASE_MS - 5 if rng.random() < 0.03 else None,
        quarantined_at_ms=LEASE_MS - 5 if quarantined else None,
        quarantined_until_at_ms=(rng.choice((None, WALL_MS, WALL_MS + 1)) if quarantined else None),
    )


def scene(rng: Rng) -> Inputs:
    """One placement: a workload, its policy, up to a dozen workers, and what may be in the way."""
    workers = tuple(worker(rng, number) for number in range(rng.randint(0, 12)))
    asks_pool = rng.random() < 0.3
    pool = ceiling = None
    if asks_pool and rng.random() < 0.9:
        listed = frozenset(one.worker_id for one in workers if rng.random() < 0.8)
        pool = Pool(
            "east",
            rng.choice((None, listed)),
            frozenset(some(rng, CAPABILITIES, 0.2)),
            labels(rng, 0.1),
        )
        ceiling = rng.choice((None, Limit("east", rng.randint(0, 5), rng.choice((5, 9)))))
    held = Hold("stop", "all", None, "backup") if rng.random() < 0.05 else None
    key = Limit("printer", rng.randint(0, 2), rng.choice((2, 3)))
    rate = Rate("mail", rng.choice((None, LEASE_MS, LEASE_MS + 1, LEASE_MS - 1)))
    return Inputs(
        work=Work(
            workload_id="workload_1",
            tenant_id="acme",
            application_id="docs",
            definition_id=rng.choice(("extract", "render")),
            definition_revision=rng.choice(("1", "2")),
            capability_snapshot=some(rng, CAPABILITIES, 0.2),
            resources=rng.choice(({}, {"cpu_millis": 1_000}, {"gpu_count": 1}, {"disk_bytes": 1})),
        ),
        policy=Placement(
            required_labels=labels(rng, 0.08),
            anti_affinity=labels(rng, 0.08),
            affinity=labels(rng, 0.5),
            pool_id="east" if asks_pool else None,
        ),
        workers=tuple(rng.sample(workers, len(workers))),
        lease_ms=LEASE_MS,
        wall_ms=WALL_MS,
        pool=pool,
        hold=held,
        ceiling=ceiling,
        concurrency=key if rng.random() < 0.1 else None,
        rate=rate if rng.random() < 0.1 else None,
    )


#: The order of the rules as the documents tell it.
ORDER = (
    *("tenant", "application", "not_ready", "draining", "quarantined", "full", "unhealthy"),
    *("stale", "held", "capabilities", "grant", "workload_kinds", "resources"),
    *("required_labels", "anti_affinity", "pool", "pool_full", "key_full", "rate_full"),
)


def oracle(told: dict[str, Any]) -> tuple[dict[str, list[str]], str | None]:
    """Each worker's rules in order (none: it is eligible), and who gets the work.

    `told` are the inputs as plain JSON values.
    """
    work, policy, pool = told["work"], told["policy"], told.get("pool")
    wall, lease = told["wall_ms"], told["lease_ms"]
    verdicts: dict[str, list[str]] = {}
    places: list[tuple[tuple[int, int, int], str]] = []
    for one in told["workers"]:
        bad = set(_standing(one, lease, wall)) | set(_unfit(one, work, policy, pool))
        if told.get("hold"):
            bad.add("held")
        ceiling, key = told.get("ceiling"), told.get("concurrency")
        if ceiling and not ceiling["active"] < ceiling["claims_max"]:
            bad.add("pool_full")
        if key and not key["active"] < key["claims_max"]:
            bad.add("key_full")
        opens = (told.get("rate") or {}).get("opens_at_ms")
        if opens and lease < opens:
            bad.add("rate_full")
        verdicts[one["worker_id"]] = [rule for rule in ORDER if rule in bad]
        if not bad:
            met = len(policy["affinity"].items() & one["labels"].items())
            places.append(((-met, one["active"], -one["concurrency"]), one["worker_id"]))
    places.sort()
    return verdicts, places[0][1] if places else None


def _standing(one: dict[str, Any], lease: int, wall: int) -> list[str]:
    bad = []
    if one.get("drain_at_ms") or one["lifecycle"] == "DRAINING":
        bad.append("draining")
    elif one["lifecycle"] != "READY":
        bad.append("not_ready")
    ends = one.get("quarantined_until_at_ms")
    if one.get("quarantined_at_ms") and not (ends and ends <= wall):
        bad.append("quarantined")
    if not one["active"] < one["concurrency"]:
        bad.append("full")
    if one["health"] != "HEALTHY":
        bad.append("unhealthy")
    if lease - one["last_seen_at_ms"] >= one["heartbeat_timeout_ms"]:
        bad.append("stale")
    ends = one.get("authority_expires_at_ms")
    if not one["authority_live"] or one["authority_unsettled"] or (ends and ends <= wall):
        bad.append("grant")
    return bad


def _unfit(
    one: dict[str, Any], work: dict[str, Any], policy: dict[str, Any], pool: dict[str, Any] | None
) -> list[str]:
    bad = []
    if one["tenant_id"] != work["tenant_id"]:
        bad.append("tenant")
    if one["application_id"] != work["application_id"]:
        bad.append("application")
    granted, has = set(one["granted_capabilities"]), one["labels"].items()
    if set(work["capability_snapshot"]) - granted:
        bad.append("capabilities")
    name = work["definition_id"]
    kinds = one["workload_kinds"]
    if kinds and name not in kinds and f"{name}#{work['definition_revision']}" not in kinds:
        bad.append("workload_kinds")
    profile = one["resource_profile"]
    if [what for what, amount in work["resources"].items() if amount > profile.get(what, 0)]:
        bad.append("resources")
    if policy["required_labels"].items() - has:
        bad.append("required_labels")
    if policy["anti_affinity"].items() & has:
        bad.append("anti_affinity")
    if policy["pool_id"] and not (
        pool
        and (pool["worker_ids"] is None or one["worker_id"] in pool["worker_ids"])
        and set(pool["capabilities"]) <= granted
        and pool["required_labels"].items() <= has
    ):
        bad.append("pool")
    return bad
