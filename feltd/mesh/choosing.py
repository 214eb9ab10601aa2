"""Which worker gets the work: a pure function of what was read, so that it can be asked again.

`Inputs` hold everything a decision looks at, instants too; stored with it as JSON, they give the
same answer years later. Nothing here reads a row. The conditions are those of placement.py, the
order is the law's: most affinity labels, least active, greatest concurrency, least worker_id.
"""

import hashlib

from msgspec import Struct, structs
from msgspec.json import decode, encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.mesh import placement
from feltd.model.placement import Candidate, RefusedWorker
from feltd.model.policy import Placement

MATCHED = "deterministic capability and capacity match"
UNMATCHED = "no worker satisfies placement policy"
#: A refusal names so many workers; the stored decision has all of them.
REASONS_MAX = 100


class Work(Struct, frozen=True):
    """What is to be placed, as far as a worker can fit it."""

    workload_id: str
    tenant_id: str
    application_id: str
    definition_id: str
    definition_revision: str
    capability_snapshot: tuple[str, ...]
    resources: dict[str, int | None]


class Seen(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A worker as it stood; `active` is how many live claims it held."""

    worker_id: str
    tenant_id: str
    application_id: str
    lifecycle: str
    health: str
    concurrency: int
    active: int
    last_seen_at_ms: int
    heartbeat_timeout_ms: int
    authority_live: int
    authority_unsettled: int
    granted_capabilities: tuple[str, ...]
    workload_kinds: tuple[str, ...]
    resource_profile: dict[str, int | None]
    labels: dict[str, str]
    authority_expires_at_ms: int | None = None
    drain_at_ms: int | None = None
    quarantined_at_ms: int | None = None
    quarantined_until_at_ms: int | None = None


class Limit(Struct, frozen=True):
    """A ceiling that counts claims: of a pool or of a concurrency key."""

    name: str
    active: int
    claims_max: int


class Rate(Struct, frozen=True):
    """A rate key; with `opens_at_ms` it has no room before that lease time."""

    name: str
    opens_at_ms: int | None


class Inputs(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Everything a decision reads. `policy` is the workload's, narrowed by who decides.

    `unread` counts workers of the application that were not looked at.
    """

    work: Work
    policy: Placement
    workers: tuple[Seen, ...]
    lease_ms: int
    wall_ms: int
    pool: placement.Pool | None = None
    hold: placement.Hold | None = None
    ceiling: Limit | None = None
    concurrency: Limit | None = None
    rate: Rate | None = None
    unread: int = 0


class Judged(Struct, frozen=True):
    """Every worker of the inputs, in one of two lists, each by ascending id."""

    eligible: tuple[Candidate, ...]
    refused: tuple[RefusedWorker, ...]


def eligible_workers(inputs: Inputs) -> Judged:
    """Who may take the work, and by which rules each other worker may not."""
    eligible: list[Candidate] = []
    refused: list[RefusedWorker] = []
    wanted, same = _wanted(inputs), inputs.policy.affinity.items()
    for seen in sorted(inputs.workers, key=lambda one: one.worker_id):
        rules = _failing(inputs, seen, wanted)
        if rules:
            refused.append(RefusedWorker(seen.worker_id, rules[0], tuple(rules)))
        else:
            met = sum(seen.labels.get(key) == text for key, text in same)
            eligible.append(Candidate(seen.worker_id, met, seen.active, seen.concurrency))
    return Judged(tuple(eligible), tuple(refused))


def select_worker(judged: Judged) -> Candidate:
    """The one of the eligible that gets the work.

    Refuses MESH_NO_ELIGIBLE_WORKER when there is none, with the first failing rule of each.
    """
    chosen = first(judged)
    if chosen is None:
        raise Refused("MESH_NO_ELIGIBLE_WORKER", UNMATCHED, reasons=reasons(judged))
    return chosen


def first(judged: Judged) -> Candidate | None:
    """As select_worker; None when there is none."""
    return min(judged.eligible, key=lambda one: one.key, default=None)


def reasons(judged: Judged) -> list[dict[str, str]]:
    """What keeps each refused worker away, REASONS_MAX at most."""
    return [
        {"code": one.rule, "detail": placement.RULES[one.rule], "worker_id": one.worker_id}
        for one in judged.refused[:REASONS_MAX]
    ]


def exhausted(inputs: Inputs) -> tuple[str, ...]:
    """Which of pool_full, key_full and rate_full is so."""
    rules: list[str] = []
    if inputs.ceiling is not None and inputs.ceiling.active >= inputs.ceiling.claims_max:
        rules.append("pool_full")
    key = inputs.concurrency
    if key is not None and key.active >= key.claims_max:
        rules.append("key_full")
    opens_at_ms = None if inputs.rate is None else inputs.rate.opens_at_ms
    if opens_at_ms is not None and opens_at_ms > inputs.lease_ms:
        rules.append("rate_full")
    return tuple(rules)


def narrowed(policy: Placement, by: Placement | None) -> Placement:
    """The policy of a workload with what a directed claim adds to it.

    Labels to have and to avoid come together, so no worker fits that did not before; affinity
    only orders them, and a pool may be named where there was none. Refuses WORKLOAD_INVALID
    where both say something of one label, or of the pool, that cannot both hold.
    """
    if by is None:
        return policy
    for member in ("required_labels", "anti_affinity"):
        ours, theirs = getattr(policy, member), getattr(by, member)
        for key in sorted(ours.keys() & theirs.keys()):
            if ours[key] != theirs[key]:
                raise _widening(f"/placement/{member}/{key}", f"the workload says {ours[key]!r}")
    if policy.pool_id is not None and by.pool_id not in (None, policy.pool_id):
        raise _widening("/placement/pool_id", f"the workload is for the pool {policy.pool_id}")
    return structs.replace(
        policy,
        required_labels={**policy.required_labels, **by.required_labels},
        anti_affinity={**policy.anti_affinity, **by.anti_affinity},
        affinity={**policy.affinity, **by.affinity},
        pool_id=policy.pool_id or by.pool_id,
    )


def written(inputs: Inputs) -> str:
    """The inputs as they are stored."""
    return encode(inputs, order="deterministic").decode()


def read(text: str | bytes) -> Inputs:
    """Stored inputs."""
    return decode(text, type=Inputs)


def digest(inputs: Inputs, judged: Judged) -> str:
    """SHA-256, hex, of the inputs but for what moves on by itself, with the answer they give.

    The answer is in it because an instant may have turned it: a worker that fell silent.
    """
    timeless = structs.replace(
        inputs,
        lease_ms=0,
        wall_ms=0,
        workers=tuple(structs.replace(seen, last_seen_at_ms=0) for seen in inputs.workers),
    )
    return hashlib.sha256(encode((timeless, judged), order="deterministic")).hexdigest()


def _widening(pointer: str, said: str) -> Refused:
    return Refused(
        "WORKLOAD_INVALID",
        "a claim may narrow the placement of its workload, never change it",
        errors=[{"pointer": pointer, "detail": said}],
    )


def _failing(inputs: Inputs, seen: Seen, wanted: placement.Wanted) -> list[str]:
    """placement.failing, with what was read in place of rows."""
    work, pool = inputs.work, inputs.pool
    offered = placement.Offered(
        worker_id=seen.worker_id,
        granted=frozenset(seen.granted_capabilities),
        kinds=frozenset(seen.workload_kinds),
        profile=seen.resource_profile,
        labels=seen.labels,
    )
    found = [
        *placement.standing(
            structs.asdict(seen), Now(inputs.lease_ms, inputs.wall_ms), active=seen.active
        ),
        *placement.unfit(
            offered,
            wanted,
            {} if pool is None else {pool.pool_id: pool},
            placement.Holds(whole=inputs.hold),
        ),
        *exhausted(inputs),
    ]
    if seen.tenant_id != work.tenant_id:
        found.append("tenant")
    if seen.application_id != work.application_id:
        found.append("application")
    return placement.in_order(found)


def _wanted(inputs: Inputs) -> placement.Wanted:
    work, policy = inputs.work, inputs.policy
    return placement.Wanted(
        definition_id=work.definition_id,
        definition_revision=work.definition_revision,
        capabilities=frozenset(work.capability_snapshot),
        resources=work.resources,
        required_labels=policy.required_labels,
        anti_affinity=policy.anti_affinity,
        pool_id=policy.pool_id,
    )
