"""What a creation asks for: its body with the defaults filled in, its digest, its columns.

Pure but for the clock that comes in. Two bodies with one digest ask for the same, also when one of
them was sent before members were added that the other leaves at their defaults.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from msgspec import structs, to_builtins
from msgspec.json import encode

from feltd.clock import Now
from feltd.mesh import due, policies, retry
from feltd.model.capping import capped
from feltd.model.grant import Grant
from feltd.model.policy import Placement, RuntimePolicy, Timeouts, canonical, placement_text
from feltd.model.workload import NewWorkload, Resources, RetryPolicy

#: Members that a body of the first version did not have, with what they are when unsaid.
LATER: Mapping[str, object] = {
    "timeouts": {},
    "runtime_policy": to_builtins(RuntimePolicy()),
    "dependencies": (),
    "dependency_policy": "all_completed",
    "group": None,
    "concurrency": None,
    "rate": None,
}


def filled(body: NewWorkload, owner: Mapping[str, str]) -> NewWorkload:
    """What is asked: defaults filled in, sets sorted, without what a repeat may say otherwise."""
    policy = body.retry_policy or RetryPolicy()
    return structs.replace(
        body,
        tenant_id=owner["tenant_id"],
        application_id=owner["application_id"],
        input=None,
        capability_snapshot=in_order(body.capability_snapshot),
        connection_scopes=in_order(body.connection_scopes),
        retry_policy=structs.replace(policy, retry_on=in_order(policy.retry_on)),
        timeouts=body.timeouts or Timeouts(),
        runtime_policy=body.runtime_policy or RuntimePolicy(),
        dependencies=in_order(body.dependencies),
        placement=body.placement or Placement(),
        resources=body.resources or Resources(),
        authorization_grant=None,
        requested_by=None,
        created_at_ms=None,
    )


def digest(body: NewWorkload, text: bytes) -> str:
    """SHA-256, hex, of a filled body; `text` is its input as it is stored."""
    assert body.placement is not None
    told = to_builtins(body, order="deterministic")
    told["placement"] = canonical(body.placement)
    for member, unsaid in LATER.items():
        if told[member] == unsaid:
            del told[member]
    hashed = hashlib.sha256(encode(told))
    hashed.update(b"\0")
    hashed.update(text)
    return hashed.hexdigest()


def columns(body: NewWorkload, grant: Grant | None, now: Now) -> dict[str, Any]:
    """The columns of a new row that its filled body, its grant and the clock alone decide.

    The grant caps the runtime policy; what was asked beyond it is not stored.
    """
    assert body.retry_policy is not None
    assert body.placement is not None
    assert body.runtime_policy is not None
    eligible_at_ms = due.eligible_at_ms(now, body.not_before_at_ms)
    caps = None if grant is None else grant.constraints.runtime_policy
    pool_id = body.placement.pool_id
    gated = pool_id is not None or body.concurrency is not None or body.rate is not None
    return {
        "idempotency_key": body.idempotency_key,
        "rank": retry.rank(eligible_at_ms, body.priority),
        "eligible_at_ms": eligible_at_ms,
        "max_attempts": body.retry_policy.max_attempts,
        "priority": body.priority,
        "not_before_at_ms": body.not_before_at_ms,
        "now_ms": now.lease_ms,
        "environment": body.environment,
        "definition_id": body.definition_id,
        "definition_revision": body.definition_revision,
        "trigger": body.trigger,
        "capability_snapshot": text_of(body.capability_snapshot),
        "connection_scopes": text_of(body.connection_scopes),
        "retry_policy": text_of(body.retry_policy),
        "timeouts": text_of(body.timeouts),
        "runtime_policy": policies.written(capped(body.runtime_policy, caps)),
        "dependencies": text_of(body.dependencies),
        "dependency_policy": body.dependency_policy,
        "group_name": body.group,
        "concurrency": None if body.concurrency is None else text_of(body.concurrency),
        "rate": None if body.rate is None else text_of(body.rate),
        "pool_id": pool_id,
        "gated": int(gated),
        "placement": placement_text(body.placement),
        "resources": text_of(body.resources),
        "on_worker_lost": body.on_worker_lost,
        "labels": text_of(body.labels),
    }


def in_order(names: tuple[str, ...]) -> tuple[str, ...]:
    """A set: sorted, each once."""
    return names if len(names) < 2 else tuple(sorted(set(names)))


def text_of(value: object) -> str:
    """JSON as it is stored: the same text for the same value."""
    return encode(value, order="deterministic").decode()
