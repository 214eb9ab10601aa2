"""Keys of people, services and agents: created, listed, rotated, revoked.

Nobody hands out more than he has: scopes, tenants, namespaces, life and grant of a new key lie
within those of the key that makes it. A secret leaves in the answer that made it and is nowhere
else. A key is never changed, only ended or replaced by another.
"""

from collections.abc import Iterable

import msgspec

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import bearer, endings, grants, keyrows, namesakes, sessions
from feltd.identity.audit import act
from feltd.identity.keyrows import Draft
from feltd.identity.pages import fill
from feltd.identity.presets import NAMESPACES_DEFAULT, SCOPES_DEFAULT
from feltd.identity.principals import (
    KIND_OF,
    OPEN_TENANT,
    confirm,
    not_found,
    principal_of,
    require_scope,
    require_tenant,
    texts,
)
from feltd.identity.unfit import unfit
from feltd.model.base import Ask, Caller, Subject
from feltd.model.key import BoundGrant, CreateKey, Key, KeyMade, Me, Principal, RotateKey
from feltd.model.page import Page, PageAsk
from feltd.store.tx import Row, Tx

SCOPE = "keys:admin"

PAGE = """
SELECT key_id, name, scopes, namespaces, tenants, subject_type, identity_id, worker_id,
       incarnation, grant_id, obtained_by, created_by, created_at_ms, expires_at_ms,
       revoked_at_ms, revoked_reason, last_used_at_ms
  FROM keys
 WHERE (created_at_ms, key_id) < (:at_ms, :id)
 ORDER BY created_at_ms DESC, key_id DESC
 LIMIT :rows
"""

WORKER = """
SELECT tenant_id, authorization_grant_id
  FROM workers
 WHERE worker_id = :worker_id
   AND removed_at_ms IS NULL
"""

# A grant that a subject may use now or once it is extended.
GRANTED = """
SELECT tenant_id
  FROM grants
 WHERE subject_kind = :subject_kind
   AND subject_id = :subject_id
   AND chain_live = 1
 ORDER BY tenant_id
"""

EXPIRE = """
UPDATE keys
   SET expires_at_ms = :expires_at_ms
 WHERE key_id = :key_id
   AND revoked_at_ms IS NULL
   AND (expires_at_ms IS NULL OR expires_at_ms > :expires_at_ms)
"""

# What was obtained through the old key lives on with the new one.
HAND_OVER = """
UPDATE keys
   SET obtained_by = :new_key_id
 WHERE obtained_by = :key_id
   AND revoked_at_ms IS NULL
"""

USED = """
UPDATE keys
   SET last_used_at_ms = :at_ms
 WHERE key_id = :key_id
   AND (last_used_at_ms IS NULL OR last_used_at_ms < :at_ms)
"""


def create(tx: Tx, ask: Ask[CreateKey], now: Now) -> KeyMade:
    """Make a key; `ask.fresh` is what it is made of, 55 random characters.

    Repeating makes another. Refuses FORBIDDEN with `errors` for whatever the caller has not
    himself, REQUEST_INVALID, GRANT_NOT_FOUND, WORKER_NOT_FOUND.
    """
    caller, body = ask.caller, ask.body
    own = _authorized(tx, caller, now)
    draft = _draft_of_worker(tx, caller, body) if body.worker_id else _draft(caller, body)
    if body.namespaces is None and own is not None:
        held = texts(own["namespaces"])
        draft = draft._replace(
            namespaces=NAMESPACES_DEFAULT if set(NAMESPACES_DEFAULT) <= set(held) else held
        )
    if draft.expires_at_ms is None and own is not None:
        draft = draft._replace(expires_at_ms=own["expires_at_ms"])
    elif draft.expires_at_ms is not None and draft.expires_at_ms <= now.wall_ms:
        raise unfit("REQUEST_INVALID", [("/expires_at_ms", "lies in the past")])
    _refuse_more(caller, own, draft)
    _refuse_another(tx, caller, draft)
    if draft.grant_id is not None:
        _bind(tx, caller, draft, ask.fresh, now)
    made = _insert(tx, ask.fresh, caller, draft, now)
    _act(tx, caller, now, "create_key", made.key_id, msgspec.json.encode(body))
    return made


def create_again(tx: Tx, ask: Ask[CreateKey], now: Now, kept: dict[str, str]) -> KeyMade:
    """Make a key whose first answer was lost: the key of that answer (`kept`) ends."""
    made = create(tx, ask, now)
    endings.end(tx, now, [kept["key_id"]], "revoked")
    return made


def page(tx: Tx, ask: Ask[PageAsk], now: Now) -> Page[Key]:
    """Keys whose tenants are all the caller's, newest first, ended ones too.

    `tenant_id` leaves those that hold that tenant. Reads at most 20,000 rows to fill a page.
    """
    require_scope(ask.caller, SCOPE)
    wanted = ask.body

    def keep(row: Row) -> Key | None:
        tenants = texts(row["tenants"])
        mine = _sees(ask.caller, tenants) and wanted.tenant_id in (None, *tenants)
        return keyrows.key_of(row) if mine else None

    return fill(lambda place: tx.rows(PAGE, place), keep, wanted, "created_at_ms", "key_id")


def revoke(tx: Tx, ask: Ask[None], now: Now) -> None:
    """End a key and every key obtained through it; `ask.id` is its id.

    Repeating changes nothing. Refuses KEY_NOT_FOUND.
    """
    _authorized(tx, ask.caller, now)
    _found(tx, ask.caller, ask.id)
    if endings.end(tx, now, [ask.id], "revoked"):
        _act(tx, ask.caller, now, "revoke_key", ask.id, b"")


def rotate(tx: Tx, ask: Ask[RotateKey], now: Now) -> KeyMade:
    """Make a key that may do what `ask.id` may and is the same subject; the old one ends.

    It goes on for overlap_ms (0: ends at once) beside the new one, which expires when the old one
    would have and takes over the keys obtained through it. Repeating makes another. Refuses
    KEY_NOT_FOUND, FORBIDDEN as create does, REQUEST_INVALID for a key that has ended.
    """
    own = _authorized(tx, ask.caller, now)
    old = _found(tx, ask.caller, ask.id)
    expires_at_ms = old["expires_at_ms"]
    if old["revoked_at_ms"] or (expires_at_ms is not None and expires_at_ms <= now.wall_ms):
        raise Refused("REQUEST_INVALID", "the key has ended; make a new one")
    draft = Draft(
        name=old["name"],
        scopes=texts(old["scopes"]),
        namespaces=texts(old["namespaces"]),
        tenants=texts(old["tenants"]),
        subject_type=old["subject_type"],
        # A key without identity is its own subject; its successor must stay that subject.
        identity_id=old["identity_id"] or old["key_id"],
        worker_id=old["worker_id"],
        incarnation=old["incarnation"],
        grant_id=old["grant_id"],
        obtained_by=old["obtained_by"],
        expires_at_ms=expires_at_ms,
    )
    if old["key_id"] != ask.caller.key_id:
        _refuse_more(ask.caller, own, draft)
        _refuse_another(tx, ask.caller, draft)
    made = _insert(tx, ask.fresh, ask.caller, draft, now)
    tx.change(HAND_OVER, {"key_id": ask.id, "new_key_id": made.key_id})
    if ask.body.overlap_ms == 0:
        endings.end(tx, now, [ask.id], "rotated")
    else:
        until_ms = now.wall_ms + ask.body.overlap_ms
        if tx.change(EXPIRE, {"key_id": ask.id, "expires_at_ms": until_ms}):
            tx.tell("key", ask.id)
    _act(tx, ask.caller, now, "rotate_key", ask.id, msgspec.json.encode(ask.body))
    return made


def rotate_again(tx: Tx, ask: Ask[RotateKey], now: Now, kept: dict[str, str]) -> KeyMade:
    """Rotate a key whose first answer was lost: the key of that answer is replaced at once."""
    first = msgspec.structs.replace(ask, id=kept["key_id"], body=RotateKey(overlap_ms=0))
    return rotate(tx, first, now)


def public(made: KeyMade) -> Key:
    """A new key without its secret: what may be kept of the answer."""
    return Key(**{name: getattr(made, name) for name in Key.__struct_fields__})


def note_used(tx: Tx, used: Iterable[tuple[str, int]], now: Now) -> None:
    """Write down when keys and sessions were last used: (id, wall time to the minute).

    Never goes back.
    """
    for key_id, at_ms in used:
        if not tx.change(USED, {"key_id": key_id, "at_ms": at_ms}):
            sessions.note_used(tx, [(key_id, at_ms)], now)


def me(tx: Tx, ask: Ask[None], now: Now) -> Me:
    """Who the caller is, and what the grant allows that his key is bound to."""
    caller = ask.caller
    row = keyrows.read(tx, caller.own_key) if caller.own_key else None
    if row is None:
        principal = Principal(
            key_id=caller.key_id,
            scopes=tuple(sorted(caller.scopes)),
            subject_type=caller.subject.kind,
            tenants=caller.tenants,
            identity_id=caller.subject.id,
            session_id=caller.session_id,
        )
    else:
        principal = principal_of(row)
    grant = grants.read(tx, caller.grant_id) if caller.grant_id is not None else None
    return Me(
        principal=principal,
        subject=caller.subject,
        worker_id=caller.worker_id,
        incarnation=caller.incarnation,
        roles=caller.roles,
        grant=None
        if grant is None
        else BoundGrant(
            id=grant.id,
            tenant_id=grant.tenant_id,
            application_id=grant.application_id,
            capabilities=grant.capabilities,
            constraints=grant.constraints,
            expires_at_ms=grant.chain_expires_at_ms,
            revision=grant.revision,
        ),
    )


def _authorized(tx: Tx, caller: Caller, now: Now) -> Row | None:
    """The caller's own row after he was confirmed; None where no key bounds: locally, a session."""
    confirm(tx, caller, now)
    require_scope(caller, SCOPE)
    return keyrows.read(tx, caller.own_key) if caller.own_key else None


def _found(tx: Tx, caller: Caller, key_id: str) -> Row:
    row = keyrows.read(tx, key_id)
    if row is None or not _sees(caller, texts(row["tenants"])):
        raise not_found("KEY_NOT_FOUND")
    return row


def _sees(caller: Caller, tenants: tuple[str, ...]) -> bool:
    # A key that also reaches other tenants is not his to see or end.
    return all(caller.may_see(tenant) for tenant in tenants)


def _draft(caller: Caller, body: CreateKey) -> Draft:
    subject_type = body.subject_type or "service"
    if subject_type == "worker":
        raise unfit("REQUEST_INVALID", [("/worker_id", "is required for a worker's key")])
    tenants = body.tenants
    if tenants is None:
        if caller.open:
            tenants = (OPEN_TENANT,)
        elif len(caller.tenants) != 1 or caller.tenants == ("*",):
            raise unfit("REQUEST_INVALID", [("/tenants", "is required: the caller has several")])
        else:
            tenants = caller.tenants
    return Draft(
        name=body.name,
        scopes=SCOPES_DEFAULT if body.scopes is None else body.scopes,
        namespaces=body.namespaces or NAMESPACES_DEFAULT,
        tenants=tenants,
        subject_type=subject_type,
        identity_id=body.identity_id,
        grant_id=body.grant_id,
        expires_at_ms=body.expires_at_ms,
    )


def _draft_of_worker(tx: Tx, caller: Caller, body: CreateKey) -> Draft:
    wrong = [
        (f"/{name}", "does not go with worker_id")
        for name in ("scopes", "tenants", "identity_id")
        if getattr(body, name) is not None
    ]
    if body.subject_type not in (None, "worker"):
        wrong.append(("/subject_type", "does not go with worker_id"))
    if wrong:
        raise unfit("REQUEST_INVALID", wrong)
    worker = tx.row(WORKER, {"worker_id": body.worker_id})
    if worker is None:
        raise not_found("WORKER_NOT_FOUND")
    require_tenant(caller, worker["tenant_id"], "WORKER_NOT_FOUND")
    return Draft(
        name=body.name,
        scopes=(),
        namespaces=body.namespaces or NAMESPACES_DEFAULT,
        tenants=(worker["tenant_id"],),
        subject_type="worker",
        identity_id=body.worker_id,
        worker_id=body.worker_id,
        grant_id=body.grant_id,
        obtained_by=caller.own_key or None,
        expires_at_ms=body.expires_at_ms,
    )


def _refuse_more(caller: Caller, own: Row | None, draft: Draft) -> None:
    """Refuse FORBIDDEN where a key would hold more than the one that makes it."""
    beyond: list[tuple[str, str]] = []
    lacking = [scope for scope in draft.scopes if not caller.holds(scope)]
    if lacking:
        beyond.append(("/scopes", f"the caller does not hold {', '.join(sorted(lacking))}"))
    if not _sees(caller, draft.tenants):
        beyond.append(("/tenants", "the caller's key is not of all these tenants"))
    if own is not None:
        if not set(draft.namespaces) <= set(texts(own["namespaces"])):
            beyond.append(("/namespaces", "the caller's key does not list all these namespaces"))
        limit_ms = own["expires_at_ms"]
        if limit_ms is not None and (draft.expires_at_ms is None or draft.expires_at_ms > limit_ms):
            beyond.append(("/expires_at_ms", "is later than the end of the caller's key"))
    if beyond:
        raise unfit("FORBIDDEN", beyond)


def _refuse_another(tx: Tx, caller: Caller, draft: Draft) -> None:
    """Refuse FORBIDDEN to make a key that is somebody else whom a grant was given to.

    Who a key is decides which grants it may use, so that would hand out another's permissions: a
    worker's are those of the grant it registered with.
    """
    if draft.identity_id is None:
        return
    subject = Subject(kind=KIND_OF[draft.subject_type], id=draft.identity_id)
    namesakes.refuse_key(tx, caller, subject)
    if caller.holds(grants.SCOPE):
        return
    if draft.worker_id is not None:
        worker = tx.row(WORKER, {"worker_id": draft.worker_id})
        grant_id = None if worker is None else worker["authorization_grant_id"]
        grant = None if grant_id is None else grants.read(tx, grant_id)
        if grant is None or grant.subject != caller.subject:
            raise unfit("FORBIDDEN", [("/worker_id", "the worker's grant is not the caller's")])
        return
    if subject == caller.subject:
        return
    named = {"subject_kind": subject.kind, "subject_id": subject.id}
    tenants = {row["tenant_id"] for row in tx.rows(GRANTED, named)}
    if tenants if "*" in draft.tenants else tenants & set(draft.tenants):
        raise unfit("FORBIDDEN", [("/identity_id", f"grants of {subject} are not the caller's")])


def _bind(tx: Tx, caller: Caller, draft: Draft, fresh: str, now: Now) -> None:
    """Refuse to bind a grant that is not the caller's to hand out, or of no use to the key."""
    grant = grants.found(tx, caller, str(draft.grant_id))
    if not caller.holds(grants.SCOPE) and grant.subject != caller.subject:
        raise unfit("FORBIDDEN", [("/grant_id", "the grant is not the caller's to hand out")])
    why = grants.lapse(grant, now)
    if why is not None:
        raise Refused("GRANT_DENIED", why)
    wrong = []
    if "*" not in draft.tenants and grant.tenant_id not in draft.tenants:
        wrong.append(("/grant_id", f"the grant is of tenant {grant.tenant_id}, the key is not"))
    if draft.worker_id is None:
        subject = Subject(
            kind=KIND_OF[draft.subject_type], id=draft.identity_id or fresh[: bearer.ID_CHARS]
        )
        if grant.subject != subject:
            wrong.append(("/grant_id", f"the grant is for {grant.subject}, the key is {subject}"))
    if wrong:
        raise unfit("REQUEST_INVALID", wrong)


def _insert(tx: Tx, fresh: str, caller: Caller, draft: Draft, now: Now) -> KeyMade:
    key_id, secret = keyrows.insert(tx, now, draft, fresh=fresh, created_by=str(caller.subject))
    row = keyrows.read(tx, key_id)
    if row is None:
        raise LookupError(key_id)
    return KeyMade(**msgspec.structs.asdict(keyrows.key_of(row)), secret=secret)


def _act(tx: Tx, caller: Caller, now: Now, action: str, key_id: str, body: bytes) -> None:
    act(tx, now, str(caller.subject), action, key_id, body=body)
