"""What a look over the rows means: work that waits, holds, workers, triggers, what ends soon.

The same for a daemon that was asked and for a file that nobody serves.
"""

from collections.abc import Iterator

from feltd.cli.doctor.findings import Finding, fail, ok, some, span, warn
from feltd.cli.output import when
from feltd.model.checkup import Checkup, Ending, Some

#: Work that could be taken should not wait longer without a person knowing why.
WAITS_MS_MAX = 60_000
#: A grant or key that ends within this is a failure of tomorrow.
SOON_MS = 86_400_000
#: Causes that pass by themselves, or that more workers mend.
PASSING = frozenset(
    {
        "ITS_TURN",
        "WORKER_FULL",
        "POOL_FULL",
        "KEY_FULL",
        "RATE_FULL",
        "BEHIND",
        "OPENING",
        "CLAIMABLE",
    }
)


def judge(found: Checkup, at_ms: int) -> Iterator[Finding]:
    """A line for each; `at_ms` is wall time."""
    yield _work(found)
    yield _holds(found.holds)
    yield _workers(found)
    yield _dead(found)
    yield _triggers(found)
    yield _ending("grants", found.grants_ending, at_ms, "feltd grants extend {id} --expires 365d")
    yield _ending("keys", found.keys_ending, at_ms, "feltd keys rotate --id {id}")


def _work(found: Checkup) -> Finding:
    oldest = found.oldest
    running = sum(found.workloads.get(state, 0) for state in ("CLAIMED", "RUNNING", "CHECKPOINTED"))
    told = f"{found.workloads.get('READY', 0)} ready, {running} in hands"
    if oldest is None:
        return ok("work", f"{told}; nothing waits")
    kind = f"{oldest.tenant_id}/{oldest.application_id} {oldest.definition_id}"
    seen = f"{told}; {kind} waits for {span(oldest.waited_ms)}: {oldest.code}, {oldest.detail}"
    if oldest.waited_ms < WAITS_MS_MAX and oldest.code in PASSING:
        return ok("work", seen)
    return warn("work", seen, f"{oldest.remedy} (feltd why)")


def _holds(holds: Some) -> Finding:
    if not holds.count:
        return ok("holds", "none")
    first = holds.first[0]
    seen = (
        f"{some(holds.count, 'hold', 'holds')}; {first.id} of {first.tenant_id} keeps back "
        f"{first.what} for {span(first.for_ms)}, by {first.by}: {first.reason}"
    )
    return warn("holds", seen, f"feltd hold delete {first.id}")


def _workers(found: Checkup) -> Finding:
    counts = found.workers
    total = sum(counts.values())
    able = counts.get("READY", 0) + counts.get("BUSY", 0)
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    seen = told or "none registered"
    helps = "feltd worker list"
    for kept, verb, way in (
        (found.quarantined, "quarantined", "feltd worker unquarantine"),
        (found.drained, "drained", "feltd worker resume"),
        (found.lapsed, "beating under a grant that has ended", "feltd worker why"),
    ):
        if kept.count:
            first = kept.first[0]
            seen += f"; {kept.count} {verb} ({first.what}"
            seen += f", by {first.by}: {first.reason})" if first.reason else ")"
            helps = f"{way} {first.id}"
    waits = found.workloads.get("READY", 0)
    usable = able - found.quarantined.count
    if waits and usable <= 0:
        if total and not (found.quarantined.count or found.drained.count or found.lapsed.count):
            seen += "; all are silent"
        if not total:
            helps = "feltd enroll, then feltd worker run"
        return fail("workers", f"{waits} workloads wait and nobody takes them: {seen}", helps)
    if found.quarantined.count or found.drained.count or found.lapsed.count:
        return warn("workers", seen, helps)
    if total and not able:
        return warn("workers", f"{seen}; none is READY", helps)
    return ok("workers", seen)


def _dead(found: Checkup) -> Finding:
    count = sum(found.dead_in_hour.values())
    ever = found.workloads.get("DEAD_LETTERED", 0)
    if not count:
        return ok("dead letters", f"none within the hour, {ever} in all")
    kinds = sorted(found.dead_in_hour.items(), key=lambda one: (-one[1], one[0]))
    told = ", ".join(f"{times} of {kind}" for kind, times in kinds[:4])
    least = "at least " if found.dead_capped else ""
    return warn(
        "dead letters",
        f"{least}{count} within the hour ({told}), {ever} in all",
        "feltd workload list --state DEAD_LETTERED, then feltd workload requeue ID",
    )


def _triggers(found: Checkup) -> Finding:
    off, behind = found.triggers_off, found.triggers_behind
    if off.count:
        first = off.first[0]
        seen = f"{off.count} disabled; {first.id} ({first.what}) for {span(first.for_ms)}"
        seen += f" by {first.by}: {first.reason}" if first.reason else ""
        return warn("triggers", seen, f"feltd trigger enable {first.id}")
    if behind.count:
        first = behind.first[0]
        seen = f"{behind.count} behind or failing; {first.id}: {first.what}"
        seen += f" ({first.reason})" if first.reason else ""
        return warn("triggers", seen, "feltd trigger status")
    return ok("triggers", "none disabled, none behind")


def _ending(check: str, ending: Ending, at_ms: int, way: str) -> Finding:
    if not ending.count:
        return ok(check, "none ends within 7 days")
    first = ending.first[0]
    left_ms = first.ends_at_ms - at_ms
    seen = (
        f"{some(ending.count, 'ends', 'end')} within 7 days; {first.id} ({first.what}) in "
        f"{span(max(0, left_ms))}, at {when(first.ends_at_ms)}"
    )
    if first.workers:
        seen += f"; {some(first.workers, 'worker stops', 'workers stop')} then: "
        seen += ", ".join(first.named)
    helps = way.format(id=first.id)
    if left_ms < SOON_MS and first.workers:
        return fail(check, seen, helps)
    return warn(check, seen, helps)
