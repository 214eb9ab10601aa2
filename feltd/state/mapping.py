"""From a trigger and what set it off to the workload it makes; pure, each time the same.

The same change gives the same key, the same body and the same input to the last byte: a creation
that is repeated after a crash finds what was made, and makes nothing twice.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Raw
from msgspec.json import decode, encode

from feltd.model.base import Caller, Subject
from feltd.model.trigger import Define, Predicate, Work
from feltd.model.workload import INPUT_BYTES_MAX, Creation, NewWorkload
from feltd.state import predicates
from feltd.state.paths import MISSING
from feltd.store.tx import Row


def key_of(row: Row, instance_id: str, instant: object) -> str:
    """The idempotency key of one firing: `instant` is the seq, or when a schedule was due.

    At most 190 characters. The instance keeps keys of a file that was put back from meeting.
    """
    return f"trigger/{row['trigger_id']}/{instance_id}/{instant}"


def creation_of(row: Row, key: str, text: bytes, labels: Mapping[str, str]) -> Creation:
    """The creation a row of `triggers` asks for, with this input.

    Raises msgspec.ValidationError or DecodeError for a row that somebody broke by hand.
    """
    work = work_of(row)
    body = NewWorkload(
        definition_id=row["target_capability"],
        idempotency_key=key,
        tenant_id=row["tenant_id"],
        application_id=row["application_id"],
        environment=work.environment,
        definition_revision=work.definition_revision,
        trigger=row["trigger_id"],
        capability_snapshot=work.capability_snapshot,
        connection_scopes=work.connection_scopes,
        priority=work.priority,
        retry_policy=work.retry_policy,
        timeouts=work.timeouts,
        not_before_at_ms=work.not_before_at_ms,
        placement=work.placement,
        runtime_policy=work.runtime_policy,
        labels=dict(labels),
    )
    return Creation(body, text, row["authorization_grant_id"])


def caller_of(row: Row) -> Caller:
    """In whose name a trigger makes work: its grant decides, not the key that defined it.

    That key may have ended since. Without a grant it is the local operator's.
    """
    grant_id = row["authorization_grant_id"]
    return Caller(
        subject=subject_of(row["requested_by"]),
        tenants=(row["tenant_id"],),
        grant_id=grant_id,
        local=grant_id is None,
    )


def subject_of(text: str) -> Subject:
    """A subject as it is stored, kind:id."""
    kind, _, name = text.partition(":")
    return Subject(kind=kind, id=name)  # type: ignore[arg-type]


def work_of(row: Row) -> Work:
    """What a row says of its workloads; raises msgspec.ValidationError or DecodeError."""
    return decode(row["work"], type=Work)


def work_text(body: Define) -> str:
    """What a definition says of its workloads, as it is stored: the same text for the same."""
    work = Work(
        environment=body.environment,
        definition_revision=body.definition_revision,
        capability_snapshot=tuple(sorted(set(body.capability_snapshot))),
        connection_scopes=tuple(sorted(set(body.connection_scopes))),
        priority=body.priority,
        retry_policy=body.retry_policy,
        timeouts=body.timeouts,
        not_before_at_ms=body.not_before_at_ms,
        placement=body.placement,
        runtime_policy=body.runtime_policy,
        input=None if body.input is UNSET else body.input,
    )
    return encode(work, order="deterministic").decode()


def predicate_of(row: Row) -> Predicate | None:
    """The condition of a row, None without one.

    Raises msgspec.ValidationError or DecodeError, or refuses TRIGGER_INVALID, for a row that
    somebody broke by hand.
    """
    if row["predicate"] is None:
        return None
    found = decode(row["predicate"], type=Predicate)
    predicates.check(found)
    return found


def value_of(text: str | None) -> Any:
    """A stored value of a change; MISSING where the record was or is not there."""
    return MISSING if text is None else decode(text)


def input_of(trigger_id: str, change: Row) -> bytes:
    """The input of the workload that a change makes, as canonical JSON.

    Past the limit of an input, before and after are null and `truncated` is true.
    """
    members: dict[str, Any] = {
        "trigger_id": trigger_id,
        "seq": change["seq"],
        "kind": change["kind"],
        "collection": change["collection"],
        "id": change["record_id"],
        "version": change["version"],
        "before": _raw(change["before"]),
        "after": _raw(change["after"]),
        "at_ms": change["at_ms"],
        "actor": change["actor"],
    }
    text = encode(members, order="deterministic")
    if len(text) > INPUT_BYTES_MAX:
        members |= {"before": None, "after": None, "truncated": True}
        text = encode(members, order="deterministic")
    return text


def _raw(text: str | None) -> Raw | None:
    # What is stored is canonical already: it goes in as it is.
    return None if text is None else Raw(text.encode())
