"""Who gets given work, by the law alone: decided again from what a decision says it read.

Written from the law's own words over plain JSON; nothing of feltd's placement is used. What was
read is held against what is known as well, so that an input left out is noticed.
"""

from typing import Any

from msgspec.json import decode

from feltd.clock import Now
from tests.sim.history import History, Violation

DECISIONS = """
SELECT d.decision_id, d.workload_id, d.selected_worker_id, d.inputs, d.candidates, d.refused
  FROM decisions d
 ORDER BY d.decision_id
"""

NEWEST = """
SELECT d.decision_id, d.workload_id, d.selected_worker_id, d.inputs, d.candidates, d.refused
  FROM decisions d
 WHERE d.workload_id = :workload_id
 ORDER BY d.decision_id DESC
 LIMIT 1
"""

Json = dict[str, Any]


def decide(inputs: Json) -> tuple[str | None, list[str], dict[str, list[str]]]:
    """Who is chosen, who may have it, and by which rules each other one may not."""
    affinity = inputs["policy"].get("affinity", {})
    may: list[tuple[int, int, int, str]] = []
    may_not: dict[str, list[str]] = {}
    for one in inputs["workers"]:
        rules = [rule for rule, broken in _rules(inputs, one) if broken]
        if rules:
            may_not[one["worker_id"]] = rules
            continue
        same = sum(one["labels"].get(key) == text for key, text in affinity.items())
        may.append((-same, one["active"], -one["concurrency"], one["worker_id"]))
    chosen = min(may)[-1] if may else None
    return chosen, sorted(worker_id for *_, worker_id in may), may_not


def holds(row: Any) -> None:
    """A decision that was kept is what the law decides from its inputs."""
    chosen, may, may_not = decide(decode(row["inputs"]))
    found = [one["worker_id"] for one in decode(row["candidates"])]
    refused = {one["worker_id"]: list(one["rules"]) for one in decode(row["refused"])}
    first = {one["worker_id"]: one["rule"] for one in decode(row["refused"])}
    right = (row["selected_worker_id"], found, refused) == (chosen, may, may_not)
    if not right or any(first[worker_id] != rules[0] for worker_id, rules in may_not.items()):
        raise Violation(
            f"placement_{row['decision_id']} chose {row['selected_worker_id']} of {found}, "
            f"refused {refused}; the law chooses {chosen} of {may}, refuses {may_not}"
        )


def read(history: History, row: Any, token: int) -> None:
    """What a decision read was so; the claim that followed from it, if any, aside."""
    inputs, work = decode(row["inputs"]), history.works[row["workload_id"]]
    for one in inputs["workers"]:
        peer = history.peers[one["worker_id"]]
        active = [held for held in history.live_of(peer.worker_id) if held != token]
        seen = (one["active"], one["lifecycle"], "drain_at_ms" in one)
        # BUSY is only how a full READY worker is shown.
        lifecycle = "READY" if peer.lifecycle == "BUSY" else peer.lifecycle
        if seen != (len(active), lifecycle, peer.drained):
            raise Violation(f"a decision saw {one}, known is {peer}, which holds {active}")
        if peer.confined and "quarantined_at_ms" not in one:
            raise Violation(f"a decision saw {one}, known is {peer}")
    if history.stopped(work) is not None and "hold" not in inputs:
        raise Violation(f"a decision saw no hold, {history.stopped(work)} stands: {inputs}")
    asked, policy = work.asked.placement, inputs["policy"]
    for member in ("required_labels", "anti_affinity"):
        if not getattr(asked, member).items() <= policy.get(member, {}).items():
            raise Violation(f"a decision widened {asked} to {policy}")
    if asked.pool_id not in (None, policy.get("pool_id")):
        raise Violation(f"a decision widened {asked} to {policy}")
    if work.asked.concurrency is not None and "concurrency" not in inputs:
        raise Violation(f"a decision saw no key, the work has {work.asked.concurrency}")


def _rules(inputs: Json, one: Json) -> list[tuple[str, bool]]:
    """Every rule of the law in its order, and whether this worker breaks it."""
    work, policy, pool = inputs["work"], inputs["policy"], inputs.get("pool")
    now = Now(inputs["lease_ms"], inputs["wall_ms"])
    granted, labels = set(one["granted_capabilities"]), one["labels"]
    until_ms, ends_ms = one.get("quarantined_until_at_ms"), one.get("authority_expires_at_ms")
    drained = one["lifecycle"] == "DRAINING" or "drain_at_ms" in one
    confined = "quarantined_at_ms" in one and (until_ms is None or until_ms > now.wall_ms)
    kinds, definition = one["workload_kinds"], work["definition_id"]
    revision = f"{definition}#{work['definition_revision']}"
    required, avoided = policy.get("required_labels", {}), policy.get("anti_affinity", {})
    rate, key, ceiling = (inputs.get(name) for name in ("rate", "concurrency", "ceiling"))
    return [
        ("tenant", one["tenant_id"] != work["tenant_id"]),
        ("application", one["application_id"] != work["application_id"]),
        ("not_ready", one["lifecycle"] != "READY" and not drained),
        ("draining", drained),
        ("quarantined", confined),
        ("full", one["active"] >= one["concurrency"]),
        ("unhealthy", one["health"] != "HEALTHY"),
        ("stale", one["last_seen_at_ms"] + one["heartbeat_timeout_ms"] <= now.lease_ms),
        ("held", "hold" in inputs),
        ("capabilities", not set(work["capability_snapshot"]) <= granted),
        (
            "grant",
            not one["authority_live"]
            or bool(one["authority_unsettled"])
            or (ends_ms is not None and ends_ms <= now.wall_ms),
        ),
        ("workload_kinds", bool(kinds) and not {definition, revision} & set(kinds)),
        (
            "resources",
            any(
                (amount or 0) > (one["resource_profile"].get(name) or 0)
                for name, amount in work["resources"].items()
            ),
        ),
        ("required_labels", not required.items() <= labels.items()),
        ("anti_affinity", bool(avoided.items() & labels.items())),
        ("pool", policy.get("pool_id") is not None and not _is_member(one, pool)),
        ("pool_full", ceiling is not None and ceiling["active"] >= ceiling["claims_max"]),
        ("key_full", key is not None and key["active"] >= key["claims_max"]),
        ("rate_full", rate is not None and (rate["opens_at_ms"] or 0) > now.lease_ms),
    ]


def _is_member(one: Json, pool: Json | None) -> bool:
    if pool is None or not set(pool["capabilities"]) <= set(one["granted_capabilities"]):
        return False
    listed = pool["worker_ids"]
    named = listed is None or one["worker_id"] in listed
    return named and pool["required_labels"].items() <= one["labels"].items()
