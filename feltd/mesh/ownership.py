"""Whose work is asked for, and whether the grant allows it: for a workload and for a trigger alike.

The caller and the grant decide; what a body says of tenant and application is only compared.
"""

from typing import Protocol

from feltd.errors import Refused
from feltd.identity import grants, principals
from feltd.mesh import terms
from feltd.model.base import Caller, Subject
from feltd.model.grant import Grant


class Asked(Protocol):
    """What a body says of its owner, and of what its work may do."""

    @property
    def tenant_id(self) -> str | None: ...
    @property
    def application_id(self) -> str | None: ...
    @property
    def requested_by(self) -> Subject | None: ...
    @property
    def capability_snapshot(self) -> tuple[str, ...]: ...
    @property
    def definition_revision(self) -> str: ...
    @property
    def priority(self) -> int: ...


def owner_of(caller: Caller, body: Asked, grant: Grant | None, noun: str) -> dict[str, str]:
    """Tenant and application: what the body names, which must be the grant's, else the grant's.

    Refuses `<noun>_INVALID` where nobody names one, `<noun>_UNAUTHORIZED` for another's.
    """
    owner: dict[str, str] = {}
    for member in ("tenant_id", "application_id"):
        named = getattr(body, member)
        allowed = None if grant is None else getattr(grant, member)
        if allowed is None and caller.open:
            allowed = named or principals.OPEN_TENANT
        if named is None and allowed is None:
            raise invalid(noun, f"/{member}", "is required where no grant names it")
        if None not in (named, allowed) and named != allowed:
            raise Refused(f"{noun}_UNAUTHORIZED", f"the grant is for another {member[:-3]}")
        owner[member] = allowed or named
    if not caller.may_see(owner["tenant_id"]):
        raise Refused(f"{noun}_UNAUTHORIZED", "the key is not for the tenant of the grant")
    return owner


def require(
    caller: Caller, body: Asked, grant: Grant | None, definition_id: str, noun: str
) -> None:
    """Refuse `<noun>_UNAUTHORIZED` for work that the grant does not allow."""
    if body.requested_by is not None and body.requested_by != caller.subject:
        raise invalid(noun, "/requested_by", "must be the caller, or absent")
    if grant is None:
        return
    code = f"{noun}_UNAUTHORIZED"
    if not grants.covers(grant, body.capability_snapshot):
        raise Refused(code, "the grant does not cover every capability of the snapshot")
    kinds, most = grant.constraints.workload_kinds, grant.constraints.max_priority
    if kinds is not None and not terms.admits(kinds, definition_id, body.definition_revision):
        raise Refused(code, "the grant does not allow work of this definition")
    if most is not None and body.priority > most:
        raise Refused(code, f"the grant allows a priority up to {most}")


def invalid(noun: str, pointer: str, detail: str) -> Refused:
    """The refusal `<noun>_INVALID` of one member."""
    errors = [{"pointer": pointer, "detail": detail}]
    return Refused(f"{noun}_INVALID", f"{pointer}: {detail}", errors=errors)
