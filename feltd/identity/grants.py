"""Grants: issued, read, used. What a grant allows is read from its row, where the change commits.

A token only proves that its bearer was given the grant. Live means: neither it nor an ancestor is
revoked or past its end by wall time. How a grant changes and ends is in regrants.py; what of it
reaches workers and claims is mesh/authority.py.
"""

from collections.abc import Iterable

import msgspec

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity.audit import act
from feltd.identity.keyring import Keyring, Signed
from feltd.identity.pages import fill
from feltd.identity.principals import (
    confirm,
    not_found,
    require_scope,
    require_tenant,
    stored,
    texts,
)
from feltd.identity.subsets import Extent, excess, holds, inherited, sort_scopes, stem, tidied
from feltd.identity.unfit import unfit
from feltd.model.base import Ask, Caller, Subject
from feltd.model.grant import (
    ASK,
    DEPTH_MAX,
    DESCENDANTS_MAX,
    DO,
    Grant,
    GrantConstraints,
    IssueGrant,
    ResourceScope,
)
from feltd.model.page import Page, PageAsk
from feltd.store.tx import Row, Tx

SCOPE = "grants:issue"

READ = """
SELECT grant_id, issuer, subject_kind, subject_id, tenant_id, application_id, capabilities,
       resources, constraints, issued_at_ms, expires_at_ms, chain_expires_at_ms, chain_live,
       parent_grant_id, depth, revision, status
  FROM grants
 WHERE grant_id = :grant_id
"""

PAGE = """
SELECT grant_id, issuer, subject_kind, subject_id, tenant_id, application_id, capabilities,
       resources, constraints, issued_at_ms, expires_at_ms, chain_expires_at_ms, chain_live,
       parent_grant_id, depth, revision, status
  FROM grants
 WHERE (issued_at_ms, grant_id) < (:at_ms, :id)
 ORDER BY issued_at_ms DESC, grant_id DESC
 LIMIT :rows
"""

PAGE_OF_TENANT = """
SELECT grant_id, issuer, subject_kind, subject_id, tenant_id, application_id, capabilities,
       resources, constraints, issued_at_ms, expires_at_ms, chain_expires_at_ms, chain_live,
       parent_grant_id, depth, revision, status
  FROM grants
 WHERE tenant_id = :tenant_id
   AND (issued_at_ms, grant_id) < (:at_ms, :id)
 ORDER BY issued_at_ms DESC, grant_id DESC
 LIMIT :rows
"""

INSERT = """
INSERT INTO grants (grant_id, issuer, subject_kind, subject_id, tenant_id, application_id,
                    capabilities, resources, constraints, issued_at_ms, expires_at_ms,
                    chain_expires_at_ms, parent_grant_id, depth)
VALUES (:grant_id, :issuer, :subject_kind, :subject_id, :tenant_id, :application_id,
        :capabilities, :resources, :constraints, :issued_at_ms, :expires_at_ms,
        :chain_expires_at_ms, :parent_grant_id, :depth)
"""

# From a grant up to its root, then down over all that live below that.
FAMILY = """
WITH RECURSIVE above (grant_id, parent_grant_id) AS (
  SELECT grant_id, parent_grant_id
    FROM grants
   WHERE grant_id = :grant_id
   UNION ALL
  SELECT g.grant_id, g.parent_grant_id
    FROM grants g
    JOIN above a ON g.grant_id = a.parent_grant_id
), below (grant_id) AS (
  SELECT grant_id
    FROM above
   WHERE parent_grant_id IS NULL
   UNION ALL
  SELECT g.grant_id
    FROM grants g
    JOIN below b ON g.parent_grant_id = b.grant_id
   WHERE g.chain_live = 1
)
SELECT count(*) - 1 AS descendants
  FROM below
"""


def open_token(keyring: Keyring, token: str, code: str = "GRANT_DENIED") -> str:
    """The id of the grant a token proves; pure, for handlers. Refuses `code` for any other text."""
    signed = keyring.open(token)
    if signed is None:
        raise Refused(code, "the token was not made by this daemon")
    return signed.id


def token_of(keyring: Keyring, grant: Grant) -> str:
    """The token of a grant. Making it again with the same keys gives the same text."""
    return keyring.seal(
        Signed(
            contract_version=1,
            id=grant.id,
            subject=grant.subject,
            tenant_id=grant.tenant_id,
            application_id=grant.application_id,
        )
    )


def read(tx: Tx, grant_id: str) -> Grant | None:
    """The grant of an id, live or not, whoever asks."""
    row = tx.row(READ, {"grant_id": grant_id})
    return None if row is None else grant_of(row)


def usable(
    tx: Tx, caller: Caller, now: Now, grant_id: str | None, *, code: str = "GRANT_DENIED"
) -> Grant:
    """The live grant the caller acts under, by its id; None: the one his key is bound to.

    Refuses `code` unless it is there, of a tenant of the caller, live now by wall time, and its
    subject is the caller. Callers under --no-auth need no grant: do not ask for theirs.
    """
    wanted = grant_id if grant_id is not None else caller.grant_id
    if wanted is None:
        raise Refused(code, "no grant was given and the key is bound to none")
    grant = read(tx, wanted)
    if grant is None or not caller.may_see(grant.tenant_id):
        raise Refused(code, "there is no such grant")
    why = lapse(grant, now)
    if why is not None:
        raise Refused(code, why)
    if grant.subject != caller.subject:
        raise Refused(code, f"the grant is for {grant.subject}, the caller is {caller.subject}")
    return grant


def lapse(grant: Grant, now: Now) -> str | None:
    """Why a grant is not live, in a sentence; None while it is."""
    if grant.status == "REVOKED":
        return "the grant was revoked"
    if not grant.chain_live:
        return "a grant above it was revoked"
    if grant.expires_at_ms <= now.wall_ms:
        return "the grant has expired"
    if grant.chain_expires_at_ms <= now.wall_ms:
        return "a grant above it has expired"
    return None


def covers(grant: Grant, capabilities: Iterable[str]) -> bool:
    """Whether the grant lets its subject ask for work that needs all of these."""
    return all(holds(grant.capabilities, ASK + capability) for capability in capabilities)


def granted(grant: Grant, declared: Iterable[str]) -> tuple[str, ...]:
    """The capabilities of `declared` that the grant lets its subject exercise, sorted."""
    return tuple(sorted(name for name in set(declared) if DO + name in grant.capabilities))


def reaches(grant: Grant, uri: str) -> bool:
    """Whether one of the grant's resource scopes holds the URI."""
    return any(
        uri == scope.uri if scope.kind == "EXACT" else uri.startswith(stem(scope))
        for scope in grant.resources
    )


def issue(tx: Tx, ask: Ask[IssueGrant], now: Now) -> Grant:
    """Issue a grant; `ask.fresh` is its id.

    Needs grants:issue in the tenant; a child may also be made by its parent's subject. A child
    lies within its parent in every member and takes over the constraints it does not name.
    Refuses GRANT_INVALID with a pointer to what does not fit, GRANT_NOT_FOUND for the parent,
    GRANT_DENIED when the parent is not live, FORBIDDEN.
    """
    confirm(tx, ask.caller, now)
    body = ask.body
    parent = None
    if body.parent_grant is None:
        require_scope(ask.caller, SCOPE)
    else:
        parent = found(tx, ask.caller, body.parent_grant)
        if not (ask.caller.holds(SCOPE) or _is_subject(ask.caller, parent)):
            require_scope(ask.caller, SCOPE)
        why = lapse(parent, now)
        if why is not None:
            raise Refused("GRANT_DENIED", f"the parent cannot have children: {why}")
    if not ask.caller.may_see(body.tenant_id):
        raise Refused("FORBIDDEN", "the caller's key is not of this tenant")
    extent = fit(
        now, Extent(body.capabilities, body.resources, body.constraints), body.expires_at_ms, parent
    )
    if parent is not None:
        _fit_parent(tx, body, parent)
    ends = body.expires_at_ms
    tx.change(
        INSERT,
        {
            "grant_id": ask.fresh,
            "issuer": str(ask.caller.subject),
            "subject_kind": body.subject.kind,
            "subject_id": body.subject.id,
            "tenant_id": body.tenant_id,
            "application_id": body.application_id,
            **columns(extent),
            "issued_at_ms": now.wall_ms,
            "expires_at_ms": ends,
            "chain_expires_at_ms": min(ends, parent.chain_expires_at_ms) if parent else ends,
            "parent_grant_id": body.parent_grant,
            "depth": parent.depth + 1 if parent else 0,
        },
    )
    act(tx, now, str(ask.caller.subject), "issue_grant", ask.fresh, body=msgspec.json.encode(body))
    tx.tell("grant", body.tenant_id)
    return present(tx, ask.fresh)


def issue_again(tx: Tx, ask: Ask[IssueGrant], now: Now, kept: dict[str, str]) -> Grant:
    """The grant of a first answer that was lost, as it is now."""
    confirm(tx, ask.caller, now)
    return present(tx, kept["id"])


def show(tx: Tx, ask: Ask[None], now: Now) -> Grant:
    """One grant. Needs grants:issue, or for a child to be its parent's subject."""
    grant = found(tx, ask.caller, ask.id)
    require_command(tx, ask.caller, grant)
    return grant


def page(tx: Tx, ask: Ask[PageAsk], now: Now) -> Page[Grant]:
    """Grants of the caller's tenants, newest first; reads at most 20,000 rows to fill a page."""
    require_scope(ask.caller, SCOPE)
    wanted = ask.body
    tenants = ask.caller.tenants
    tenant_id = wanted.tenant_id or (tenants[0] if len(tenants) == 1 else "*")

    def keep(row: Row) -> Grant | None:
        return grant_of(row) if ask.caller.may_see(row["tenant_id"]) else None

    def read_rows(place: dict[str, object]) -> list[Row]:
        if tenant_id == "*":
            return tx.rows(PAGE, place)
        return tx.rows(PAGE_OF_TENANT, place | {"tenant_id": tenant_id})

    return fill(read_rows, keep, wanted, "issued_at_ms", "grant_id")


def found(tx: Tx, caller: Caller, grant_id: str) -> Grant:
    """The grant of an id within the caller's tenants; refuses GRANT_NOT_FOUND."""
    grant = read(tx, grant_id)
    if grant is None:
        raise not_found("GRANT_NOT_FOUND")
    require_tenant(caller, grant.tenant_id, "GRANT_NOT_FOUND")
    return grant


def present(tx: Tx, grant_id: str) -> Grant:
    """The grant of an id that this transaction has just seen."""
    row = tx.row(READ, {"grant_id": grant_id})
    if row is None:
        raise LookupError(grant_id)
    return grant_of(row)


def require_command(tx: Tx, caller: Caller, grant: Grant) -> None:
    """Refuse FORBIDDEN unless the caller may show, change and revoke this grant."""
    if caller.holds(SCOPE):
        return
    parent = read(tx, grant.parent_grant) if grant.parent_grant is not None else None
    if parent is None or not _is_subject(caller, parent):
        require_scope(caller, SCOPE)


def fit(now: Now, extent: Extent, expires_at_ms: int, parent: Grant | None) -> Extent:
    """The extent as it is stored: sets sorted, the parent's constraints taken over.

    Refuses GRANT_INVALID where it makes no sense or goes beyond the parent.
    """
    wrong: list[tuple[str, str]] = []
    for place, scope in enumerate(extent.resources):
        if scope.kind == "RESOURCE_PREFIX" and scope.uri.find("*") != len(scope.uri) - 1:
            wrong.append((f"/resources/{place}/uri", "a prefix has one *, at its end"))
    if expires_at_ms <= now.wall_ms:
        wrong.append(("/expires_at_ms", "lies in the past"))
    constraints = extent.constraints
    if parent is not None:
        constraints = inherited(constraints, parent.constraints)
        wrong += excess(extent._replace(constraints=constraints), extent_of(parent))
        if expires_at_ms > parent.expires_at_ms:
            wrong.append(("/expires_at_ms", "is later than the parent's"))
    if wrong:
        raise unfit("GRANT_INVALID", wrong)
    return Extent(
        tuple(sorted(set(extent.capabilities))), sort_scopes(extent.resources), tidied(constraints)
    )


def extent_of(grant: Grant) -> Extent:
    """What children of a grant are compared with."""
    return Extent(grant.capabilities, grant.resources, grant.constraints)


def columns(extent: Extent) -> dict[str, object]:
    """The three columns that hold an extent."""
    return {
        "capabilities": stored(extent.capabilities),
        "resources": msgspec.json.encode(extent.resources).decode(),
        "constraints": msgspec.json.encode(extent.constraints, order="deterministic").decode(),
    }


def grant_of(row: Row) -> Grant:
    """A row of `grants` as the noun."""
    kind, _, issuer_id = row["issuer"].partition(":")
    return Grant(
        contract_version=1,
        id=row["grant_id"],
        issuer=Subject(kind=kind, id=issuer_id),
        subject=Subject(kind=row["subject_kind"], id=row["subject_id"]),
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        capabilities=texts(row["capabilities"]),
        resources=msgspec.json.decode(row["resources"], type=tuple[ResourceScope, ...]),
        constraints=msgspec.json.decode(row["constraints"], type=GrantConstraints),
        issued_at_ms=row["issued_at_ms"],
        expires_at_ms=row["expires_at_ms"],
        revision=row["revision"],
        status=row["status"],
        chain_expires_at_ms=row["chain_expires_at_ms"],
        chain_live=bool(row["chain_live"]),
        depth=row["depth"],
        parent_grant=row["parent_grant_id"],
    )


def _is_subject(caller: Caller, grant: Grant) -> bool:
    # A worker's key hands nothing out, even where its worker is the subject.
    return caller.worker_id is None and caller.subject == grant.subject


def _fit_parent(tx: Tx, body: IssueGrant, parent: Grant) -> None:
    wrong = [
        (f"/{name}", "is not the parent's")
        for name in ("tenant_id", "application_id")
        if getattr(body, name) != getattr(parent, name)
    ]
    if parent.depth >= DEPTH_MAX:
        wrong.append(("/parent_grant", f"already has {DEPTH_MAX} grants above it"))
    family = tx.row(FAMILY, {"grant_id": parent.id})
    if family is not None and family["descendants"] >= DESCENDANTS_MAX:
        wrong.append(("/parent_grant", f"its root already has {DESCENDANTS_MAX} live grants below"))
    if wrong:
        raise unfit("GRANT_INVALID", wrong)
