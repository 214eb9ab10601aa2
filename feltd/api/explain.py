"""What `GET /errors/<CODE>` tells beside the row of errors.py: why it happens and what to do next.

One row per code of errors.TABLE, no more and no less (a test compares them).
"""

from typing import NamedTuple


class Explanation(NamedTuple):
    """Two sentences for a person: the cause, and the step that helps."""

    cause: str
    remedy: str


EXPLANATIONS: dict[str, Explanation] = {
    "WORKER_INVALID": Explanation(
        "A member is missing, out of bounds or unknown; `errors` points at each.",
        "Correct the named members and send the call again.",
    ),
    "WORKER_UNAUTHORIZED": Explanation(
        "The grant is not live, belongs to another subject, tenant or application, lacks "
        "worker:register, no resource of it covers the name, or its max_workers are there. A "
        "refused reconcile has recorded accepted_results and late_results all the same.",
        "Ask whoever issued the grant for one that covers this worker.",
    ),
    "WORKER_NOT_FOUND": Explanation(
        "The id was never registered here, was removed, or belongs to another tenant.",
        "Register; a worker that was removed may register again under its name.",
    ),
    "WORKER_HEARTBEAT_REJECTED": Explanation(
        "The process was upgraded, or its grant changed, since it registered.",
        "Register again with the present version and take the answer's capability_version.",
    ),
    "WORKER_CLOCK_INVALID": Explanation(
        "timestamp_at_ms differs from the daemon's wall clock by more than 5,000 ms. The beat "
        "counted as heard.",
        "Correct timestamp_at_ms by the difference to wall_time_ms of the answer, or leave it out.",
    ),
    "WORKER_RECOVERY_REQUIRED": Explanation(
        "The daemon lost the worker, drained it, or was asked to recover it; offline_reason "
        "says which.",
        "Send reconcile with everything still held; stop when offline_reason is drained or left.",
    ),
    "WORKER_TRANSITION_DENIED": Explanation(
        "The worker's present lifecycle does not lead to the one asked for.",
        "Look at the worker's lifecycle and use drain, resume or recover.",
    ),
    "WORKER_BUSY": Explanation(
        "Live claims stand in the way, or another process of that name was heard within its "
        "timeout.",
        "Drain the worker and wait, or register with takeover: true when the other process is "
        "to be replaced.",
    ),
    "WORKER_POOL_EXISTS": Explanation(
        "The tenant has a pool of this id with other members.",
        "Change it with PUT /v1/pools/{id}, or choose another id.",
    ),
    "WORKER_POOL_NOT_FOUND": Explanation(
        "The tenant has no pool of this id for the application: it was never made, was deleted, or "
        "belongs to another tenant or application.",
        "Make the pool, or name one that GET /v1/pools lists.",
    ),
    "WORKER_RECONCILIATION_DENIED": Explanation(
        "worker_version or capability_version is not the registered one.",
        "Register again, then reconcile with the answer's values.",
    ),
    "MESH_NO_ELIGIBLE_WORKER": Explanation(
        "Each worker of the application fails at least one placement rule; `reasons` names the "
        "first of each.",
        "Meet the rule that is named: bring a worker up, lift a drain or hold, grant a capability.",
    ),
    "MESH_PLACEMENT_DENIED": Explanation(
        "At least one placement rule fails; `rules` names each.",
        "Pull instead and take what fits, or meet the rule that is named.",
    ),
    "MESH_CLAIM_SCOPE_DENIED": Explanation(
        "worker_id is not the worker the key is bound to, or the workload belongs to another "
        "application.",
        "Stop this piece of work; it is not yours.",
    ),
    "MESH_STALE_FENCE": Explanation(
        "The resource has seen a higher token (`highest`), or the claim of this token has ended, "
        "expired, or never was.",
        "Do not apply the write: whoever sent it no longer holds the work.",
    ),
    "MESH_CAPABILITY_DENIED": Explanation(
        "The grant was changed or ended since the claim was made.",
        "Stop this piece of work; ask for a grant that covers it.",
    ),
    "MESH_STORAGE_FAILURE": Explanation(
        "The database refused or lost the write.",
        "Repeat the call; `committed` says what is known of the first.",
    ),
    "GRANT_INVALID": Explanation(
        "A member is missing, out of bounds, unknown, or reaches further than the parent grant.",
        "Correct the named members.",
    ),
    "GRANT_NOT_FOUND": Explanation(
        "The id was never issued here or belongs to another tenant.",
        "List the grants of the tenant.",
    ),
    "GRANT_DENIED": Explanation(
        "The token is not genuine, has ended or was revoked, or names another subject.",
        "Ask for a new grant.",
    ),
    "KEY_NOT_FOUND": Explanation(
        "The id was never made here or belongs to another tenant.",
        "List the keys.",
    ),
    "USER_NOT_FOUND": Explanation(
        "The name was never a user here, or he has roles in other tenants alone.",
        "List the users.",
    ),
    "USER_EXISTS": Explanation(
        "A user has the name, be it in other case or disabled; names are never given twice.",
        "List the users: your first call may have made him. Else take another name.",
    ),
    "HOLD_NOT_FOUND": Explanation(
        "The id was never a hold here, or the hold is of another tenant.",
        "Look for its id with GET /v1/holds; one that has ended needs no lifting.",
    ),
    "CLAIM_NOT_FOUND": Explanation(
        "The id was never issued here, was pruned, or belongs to another tenant.",
        "List the claims of the workload.",
    ),
    "PLACEMENT_NOT_FOUND": Explanation(
        "The id was never given here, was pruned, or belongs to another tenant.",
        "List the placements of the workload.",
    ),
    "GROUP_NOT_FOUND": Explanation(
        "No workload of this tenant ever named this group.",
        "Check the name, and X-Feltd-Tenant where the key is of several tenants.",
    ),
    "WORKLOAD_NOT_FOUND": Explanation(
        "The id was never created here, was pruned, or belongs to another tenant.",
        "Check the id; on a call that carries a fence, stop that piece of work.",
    ),
    "WORKLOAD_INVALID": Explanation(
        "A member is missing, out of bounds or unknown; `errors` points at each.",
        "Correct the named members and send it again with the same idempotency_key.",
    ),
    "WORKLOAD_STALE_FENCE": Explanation(
        "It expired, was superseded by a newer claim, was ended already, or never existed. With "
        "`recorded`, this very claim ended with another body.",
        "Stop this piece of work at once; its result will not be accepted.",
    ),
    "WORKLOAD_TRANSITION_DENIED": Explanation(
        "The workload's present state does not allow the call.",
        "Read the workload's state; start before complete, or pass start: true.",
    ),
    "WORKLOAD_NOT_READY": Explanation(
        "It is held by another claim, waits for something, or is final.",
        "Pull instead.",
    ),
    "WORKLOAD_NOT_YET_ELIGIBLE": Explanation(
        "Its not_before or its backoff has not passed; eligible_at_ms says when it will.",
        "Wait until eligible_at_ms, or pull.",
    ),
    "WORKLOAD_UNAUTHORIZED": Explanation(
        "The grant is not live, belongs to another subject, tenant or application, or lacks a "
        "capability of the snapshot.",
        "Ask for a grant that holds workload:capability:<name> for each.",
    ),
    "WORKLOAD_CAPABILITY_DENIED": Explanation(
        "The snapshot is not a subset of what the worker was granted.",
        "Pull instead, or register with a grant that holds it.",
    ),
    "WORKLOAD_DEPENDENCY_INVALID": Explanation(
        "A name in `dependencies` is no workload and no sealed group of the same tenant and "
        "application; `errors` points at it. Another tenant's answers in the same words.",
        "Create what it names first, seal the group, or leave the name out.",
    ),
    "WORKLOAD_IDEMPOTENCY_CONFLICT": Explanation(
        "The idempotency_key was used in this tenant and application with another body.",
        "Use a new key for new work, or send the first body.",
    ),
    "WORKLOAD_SECRET_IN_TEXT": Explanation(
        "A rule of the secret filter matched; `rules` names it. The text itself is never echoed "
        "or stored.",
        'Remove the secret, or send on_secret: "redact".',
    ),
    "WORKLOAD_STORAGE_FAILURE": Explanation(
        "The database refused or lost the write.",
        "Repeat the call; `committed` says what is known of the first.",
    ),
    "TRIGGER_INVALID": Explanation(
        "A member is missing, out of bounds, unknown, or of the other kind of trigger; `errors` "
        "points at each. Kind and application of a trigger never change.",
        "Correct the named members and define it again.",
    ),
    "TRIGGER_UNAUTHORIZED": Explanation(
        "The grant is not live, belongs to another subject, tenant or application, or does not "
        "allow the work that the trigger would make.",
        "Define it with a grant of the caller's that holds workload:capability:<name> for each.",
    ),
    "TRIGGER_NOT_FOUND": Explanation(
        "The id was never defined in this tenant, was deleted, or belongs to another tenant.",
        "List the triggers, and check X-Feltd-Tenant where the key is of several tenants.",
    ),
    "TRIGGER_STATE_REPLAY_FAILED": Explanation(
        "The trigger was disabled longer than the log is held, or was to start at changes that "
        "were cleared away; `oldest` is the first that is kept.",
        "Decide what became of the changes between, then define it again with a start.",
    ),
    "TRIGGER_STORAGE_FAILURE": Explanation(
        "The database refused or lost the write.",
        "Repeat the call; `committed` says what is known of the first.",
    ),
    "REQUEST_MALFORMED": Explanation(
        "It is not JSON, a header is missing, doubled or contradictory, or a cursor is not one "
        "of this daemon's.",
        "Correct the request.",
    ),
    "REQUEST_INVALID": Explanation(
        "A member, parameter or header is missing, out of bounds or unknown; `errors` points at "
        "each.",
        "Correct the named members.",
    ),
    "REQUEST_TOO_LARGE": Explanation(
        "The body, the URL or the headers are over the limit; `limit` names it in bytes.",
        "Send less; keep large inputs elsewhere and pass a reference.",
    ),
    "QUOTA_EXCEEDED": Explanation(
        "`quota` names what is bounded, `limit` how many there may be, `used` how many there are.",
        "Use fewer, or wait until old ones are pruned.",
    ),
    "LOGIN_THROTTLED": Explanation(
        "Too many wrong passwords for the name or from the address, or too many logins of one "
        "user; each further one doubles the wait, up to five minutes.",
        "Wait until `eligible_at_ms`, or as Retry-After says. Keep a session: it is good for 12 h.",
    ),
    "REQUEST_TIMEOUT": Explanation(
        "The whole body must arrive within the body deadline.",
        "Send the request again, body and all.",
    ),
    "MEDIA_TYPE_UNSUPPORTED": Explanation(
        "Content-Type is not application/json, or a Content-Encoding was used.",
        "Send application/json without an encoding.",
    ),
    "UPGRADE_REQUIRED": Explanation(
        "The path is a worker's channel: it is opened as a WebSocket, not called.",
        "Open it with a WebSocket client and the subprotocol feltd.v1, or POST to .../exchange.",
    ),
    "PROTOCOL_UNSUPPORTED": Explanation(
        "Feltd-Protocol, or the subprotocol of a WebSocket, names a version this daemon does not "
        "speak; `supported` lists those it does.",
        "Leave the header out or name a supported version; a channel's subprotocol is feltd.v1.",
    ),
    "UNAUTHENTICATED": Explanation(
        "The bearer is missing, malformed, unknown or ended; `reasons` says which where the "
        "secret was right.",
        "Send Authorization: Bearer <key>, or get a new key.",
    ),
    "FORBIDDEN": Explanation(
        "The scope of the route is missing, the worker in the path is another, or more was "
        "asked for than the caller holds.",
        "Use a key that holds the scope named in the detail.",
    ),
    "RECORD_NOT_FOUND": Explanation(
        "The tenant has no record of this id in the collection: it was never made, was deleted, "
        "or is another tenant's.",
        "Make it with PUT, or list the records of the collection.",
    ),
    "RECORD_CONFLICT": Explanation(
        "If-Match, If-None-Match or if_version names another state of the record than it is in; "
        "`version` is the one it has, null where it is not there. In a transaction `errors` points "
        "at the mutation, and nothing of it was done.",
        "Read the record again, decide anew, and write with the version you then have.",
    ),
    "RECORD_INVALID": Explanation(
        "The value, a name, a header or a member does not fit; `errors` points at each. A value "
        "takes at most 256 KiB as stored, in _flow_capabilities 1 MiB; all that a transaction "
        "reads and writes 4 MiB.",
        "Correct what is named and send the call again.",
    ),
    "CONSUMER_NOT_FOUND": Explanation(
        "The tenant has no consumer of this name: it never acknowledged, was deleted, or is "
        "another tenant's.",
        "Begin one with PUT /v1/consumers/{name} and the number it has read to.",
    ),
    "CONSUMER_BEHIND": Explanation(
        "The number is lower than one acknowledged before, `ack`: a late reply, or two readers "
        "under one name.",
        "Go on from `ack`; to read again what was done, delete the consumer and begin it anew.",
    ),
    "CHANGES_COMPACTED": Explanation(
        "The log of changes begins at `oldest` by now, or ends at `head`, below the number: then "
        "an earlier state of the database was put back.",
        "Read the records themselves once, then go on from `head` as it was before you read; a "
        "consumer that was given up acknowledges that number and is waited for again.",
    ),
    "EVENTS_COMPACTED": Explanation(
        "Retention took events that the reader had not seen, or `after` lies past `head` because "
        "the database was put back to an earlier state.",
        "Read the present state of what you follow by its list, then go on after the `head` "
        "that this answer names.",
    ),
    "ROUTE_NOT_FOUND": Explanation(
        "The path is not one of this daemon's.",
        "See /v1/openapi.json.",
    ),
    "METHOD_NOT_ALLOWED": Explanation(
        "The Allow header lists the methods it has.",
        "Use one of them.",
    ),
    "SERVICE_OVERLOADED": Explanation(
        "As many calls as are allowed are at work, or this one waited past its deadline. "
        "Nothing was done.",
        "Repeat after Retry-After seconds.",
    ),
    "OUTCOME_UNKNOWN": Explanation(
        "It had begun and may or may not have been committed.",
        "Repeat the same call with the same key; the repeat tells.",
    ),
    "STORAGE_UNAVAILABLE": Explanation(
        "The database could not be read or written.",
        "Repeat; if it lasts, run feltd check.",
    ),
    "STORAGE_PROBE_FAILED": Explanation(
        "A durable write or a scoped read failed.",
        "Look at /health; if it lasts, run feltd check.",
    ),
    "STORAGE_STALLED": Explanation(
        "The probe did not end within its own second.",
        "Look at the disk; repeat later.",
    ),
    "STORAGE_BUSY": Explanation(
        "A foreign process kept the write lock past the busy timeout.",
        "Close the other shell; repeat.",
    ),
    "STORAGE_FULL": Explanation(
        "Nothing was stored.",
        "Free some space; the daemon goes on by itself.",
    ),
    "INTERNAL": Explanation(
        "An error that the daemon did not expect; it is in its log under request_id.",
        "Tell the operator the request_id.",
    ),
}
