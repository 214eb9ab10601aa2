"""How a process becomes a worker, changes what it is, or takes a name over from another process.

The id follows from tenant, application and name, so whoever registers again meets the same row.
`process_id` alone tells a restart from an upgrade: the same process keeps its claims, another one
takes the name only from a process that fell silent, or by `takeover`.
"""

import hashlib
from typing import NamedTuple

from msgspec import Struct
from msgspec.json import decode, encode

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import audit, grants, principals, worker_keys
from feltd.mesh import attempts, authority, content, drain, lifecycle, terms, workers
from feltd.model.base import Ask, Caller
from feltd.model.grant import Grant
from feltd.model.worker import Registered, Registration
from feltd.store.tx import Row, Tx

INSERT = """
INSERT INTO workers (worker_id, tenant_id, application_id, name, runtime, version, process_id,
                     capability_version, declared_capabilities, granted_capabilities,
                     workload_kinds, resource_profile, labels, concurrency, health, lifecycle,
                     lifecycle_cause, heartbeat_interval_ms, heartbeat_timeout_ms,
                     registered_at_ms, last_seen_at_ms, authorization_grant_id,
                     authority_expires_at_ms, authority_kid)
VALUES (:worker_id, :tenant_id, :application_id, :name, :runtime, :version, :process_id,
        :capability_version, :declared_capabilities, :granted_capabilities,
        :workload_kinds, :resource_profile, :labels, :concurrency, 'UNKNOWN', 'REGISTERED',
        'register', :heartbeat_interval_ms, :heartbeat_timeout_ms,
        :registered_at_ms, :now_ms, :authorization_grant_id,
        :authority_expires_at_ms, :authority_kid)
"""

TAKE_CONTENT = """
UPDATE workers
   SET runtime = :runtime,
       version = :version,
       content_version = content_version + 1,
       capability_version = capability_version
                            + CASE WHEN granted_capabilities = :granted_capabilities THEN 0
                                   ELSE 1 END,
       declared_capabilities = :declared_capabilities,
       granted_capabilities = :granted_capabilities,
       workload_kinds = :workload_kinds,
       resource_profile = :resource_profile,
       labels = :labels,
       concurrency = :concurrency,
       heartbeat_interval_ms = :heartbeat_interval_ms,
       heartbeat_timeout_ms = :heartbeat_timeout_ms,
       authorization_grant_id = :authorization_grant_id,
       authority_live = 1,
       authority_unsettled = 0,
       authority_expires_at_ms = :authority_expires_at_ms,
       authority_kid = :authority_kid
 WHERE worker_id = :worker_id
"""

TAKE_NAME = """
UPDATE workers
   SET process_id = :process_id,
       incarnation = incarnation + 1,
       health = 'UNKNOWN',
       last_seen_at_ms = :now_ms,
       clock_skew_ms = 0,
       reported = NULL,
       removed_at_ms = NULL
 WHERE worker_id = :worker_id
"""


class Registering(Struct, frozen=True, kw_only=True):
    """A registration with the grant its token proved (None: the key's bound one), signed by `kid`.

    `namespace` is the daemon's, for a key that is issued; its secret is `ask.fresh`.
    """

    registration: Registration
    grant_id: str | None = None
    kid: str | None = None
    namespace: str = "default"


class Admitted(NamedTuple):
    """The answer, and whether the worker is a new one."""

    created: bool
    answer: Registered


def register(tx: Tx, ask: Ask[Registering], now: Now) -> Admitted:
    """Make the process behind the caller a worker, or take what changed of it.

    Same process, same content: nothing changes. Same process, other content: taken at once; live
    claims the grant still covers stay. Another process: incarnation + 1, REGISTERED, live claims
    end worker_lost, keys of earlier incarnations end. A drain until "registered" ends here, any
    other stands. Refuses in this order WORKER_INVALID, WORKER_UNAUTHORIZED, WORKER_BUSY (more
    live claims than concurrency; or `heard_ms_ago` without takeover).
    """
    told = ask.body.registration
    content.check(told)
    principals.confirm(tx, ask.caller, now)
    grant = _grant(tx, ask, now)
    place = _place(ask.caller, told, grant)
    said = content.columns(
        told,
        grant,
        interval_ms=ask.limits.heartbeat_interval_ms,
        timeout_ms=ask.limits.heartbeat_timeout_ms,
    ) | {"authority_kid": ask.body.kid}
    row = workers.find(tx, place["worker_id"])
    if (
        row is None
        or row["lifecycle"] == "OFFLINE"
        or row["authorization_grant_id"] != (grant and grant.id)
    ):
        authority.room(tx, grant, place["worker_id"])
    if row is None:
        _insert(tx, now, told, place, said, grant)
        changed = True
    elif row["process_id"] == told.process_id and row["removed_at_ms"] is None:
        changed = _same_process(tx, now, row, said, grant)
    else:
        _other_process(tx, now, row, told, said)
        changed = True
    _write_down(tx, ask, now, place["worker_id"], row, changed)
    return Admitted(
        row is None or row["removed_at_ms"] is not None, _answer(tx, ask, now, place["worker_id"])
    )


def known(tx: Tx, ask: Ask[Registering], now: Now) -> bool:
    """Whether the registration is of a worker that exists already; decides nothing but its turn.

    False where that cannot be told from the body and the named or bound grant alone.
    """
    told = ask.body.registration
    grant_id = ask.body.grant_id or ask.caller.grant_id
    grant = None if grant_id is None else grants.read(tx, grant_id)
    default = principals.OPEN_TENANT if ask.caller.open else ""
    tenant_id = told.tenant_id or (grant.tenant_id if grant else default)
    application_id = told.application_id or (grant.application_id if grant else default)
    row = workers.find(tx, id_of(tenant_id, application_id, told.name))
    return row is not None and row["removed_at_ms"] is None


def id_of(tenant_id: str, application_id: str, name: str) -> str:
    """The id of a worker: the same for the same tenant, application and name, for ever."""
    digest = hashlib.sha256(f"{tenant_id}:{application_id}:{name}".encode())
    return f"worker_{digest.hexdigest()[:24]}"


def _grant(tx: Tx, ask: Ask[Registering], now: Now) -> Grant | None:
    """The live grant of the caller; None only under --no-auth."""
    told = ask.body.registration
    if told.registered_by is not None and told.registered_by != ask.caller.subject:
        raise _mismatch()
    if ask.caller.open and ask.body.grant_id is None:
        return None
    return grants.usable(tx, ask.caller, now, ask.body.grant_id, code="WORKER_UNAUTHORIZED")


def _place(caller: Caller, told: Registration, grant: Grant | None) -> dict[str, str]:
    """Tenant, application and id, as the grant says them or agrees to."""
    if grant is None:
        tenant_id = told.tenant_id or principals.OPEN_TENANT
        application_id = told.application_id or principals.OPEN_TENANT
    else:
        tenant_id, application_id = grant.tenant_id, grant.application_id
        within = (
            told.tenant_id in (None, tenant_id)
            and told.application_id in (None, application_id)
            and caller.may_see(tenant_id)
        )
        if not within:
            raise _mismatch()
        terms.require_reach(grant, told.name)
    return {
        "worker_id": id_of(tenant_id, application_id, told.name),
        "tenant_id": tenant_id,
        "application_id": application_id,
        "name": told.name,
    }


def _insert(
    tx: Tx,
    now: Now,
    told: Registration,
    place: dict[str, str],
    said: dict[str, object],
    grant: Grant | None,
) -> None:
    at_ms = told.registered_at_ms
    tx.change(
        INSERT,
        {
            **place,
            **said,
            "process_id": told.process_id,
            "capability_version": 1 if grant is None else grant.revision,
            "registered_at_ms": now.lease_ms if at_ms is None else at_ms,
            "now_ms": now.lease_ms,
        },
    )


def _same_process(tx: Tx, now: Now, row: Row, said: dict[str, object], grant: Grant | None) -> bool:
    """The process that has the name registers again; whether anything changed."""
    changed = bool(
        any(row[name] != said[name] for name in (*content.COLUMNS, "authority_kid"))
        or row["authority_unsettled"]
        or not row["authority_live"]
    )
    if changed:
        kept, exceeding = authority.split(
            tx, row["worker_id"], decode(str(said["granted_capabilities"])), grant
        )
        concurrency = said["concurrency"]
        assert isinstance(concurrency, int)
        if len(kept) > concurrency:
            raise Refused(
                "WORKER_BUSY",
                f"the worker holds {len(kept)} live claims, more than a concurrency of"
                f" {concurrency}",
                limit=concurrency,
                used=len(kept),
            )
        tx.change(TAKE_CONTENT, {**said, "worker_id": row["worker_id"]})
        authority.end(tx, now, exceeding)
        if grant is not None:
            authority.cut(tx, now, row["worker_id"], grant)
        tx.tell("worker", row["worker_id"])
    if row["drain_until"] == "registered":
        drain.lift(tx, row["worker_id"])
        lifecycle.register_again(tx, row["worker_id"])
        changed = True
    return changed


def _other_process(tx: Tx, now: Now, row: Row, told: Registration, said: dict[str, object]) -> None:
    """Another process takes the name, or a removed worker comes back."""
    worker_id = row["worker_id"]
    heard_ms_ago = now.lease_ms - row["last_seen_at_ms"]
    # An OFFLINE process was failed, drained, left or removed: nobody is behind the name.
    there = row["lifecycle"] != "OFFLINE" and heard_ms_ago < row["heartbeat_timeout_ms"]
    if there and not told.takeover:
        raise Refused(
            "WORKER_BUSY",
            f"another process of this name was heard {heard_ms_ago} ms ago;"
            " takeover: true replaces it",
            heard_ms_ago=heard_ms_ago,
            incarnation=row["incarnation"],
        )
    tx.change(TAKE_CONTENT, {**said, "worker_id": worker_id})
    tx.change(
        TAKE_NAME,
        {"worker_id": worker_id, "process_id": told.process_id, "now_ms": now.lease_ms},
    )
    if row["drain_until"] == "registered":
        drain.lift(tx, worker_id)
    lifecycle.register_again(tx, worker_id)
    attempts.end_claims_of(tx, now, worker_id, "worker_lost")
    worker_keys.revoke_keys_of_worker(tx, now, worker_id, row["incarnation"] + 1)
    tx.tell("worker", worker_id)


def _write_down(
    tx: Tx, ask: Ask[Registering], now: Now, worker_id: str, before: Row | None, changed: bool
) -> None:
    """The event of a worker that changed; the deed also where only a key is made."""
    actor = str(ask.caller.subject)
    if changed:
        row = workers.present(tx, worker_id)
        workers.told(
            tx,
            now,
            "register",
            row,
            from_state=None if before is None else before["lifecycle"],
            to_state=row["lifecycle"],
            actor=actor,
        )
    if changed or ask.body.registration.issue_key:
        audit.act(tx, now, actor, "register", worker_id, body=encode(ask.body.registration))


def _answer(tx: Tx, ask: Ask[Registering], now: Now, worker_id: str) -> Registered:
    row = workers.present(tx, worker_id)
    key = None
    if ask.body.registration.issue_key:
        key = worker_keys.issue_worker_key(
            tx,
            now,
            caller=ask.caller,
            worker_id=row["worker_id"],
            incarnation=row["incarnation"],
            tenant_id=row["tenant_id"],
            grant_id=row["authorization_grant_id"],
            namespace=ask.body.namespace,
            fresh=ask.fresh,
        )
    return Registered(
        worker=workers.shown(tx, row),
        server_time_ms=now.lease_ms,
        wall_time_ms=now.wall_ms,
        worker_key=key,
    )


def _mismatch() -> Refused:
    return Refused("WORKER_UNAUTHORIZED", "registration grant scope mismatch")
