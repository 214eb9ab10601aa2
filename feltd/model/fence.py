"""What the owner of a sink asks: whether a claim still holds, and which token is the highest.

A sink is the place results go to. It trusts nothing a worker says of its claim; it asks here, or
keeps the highest token itself (feltd.worker.fence).
"""

from typing import Annotated

from msgspec import Meta, Struct

from feltd.model.base import Name, Token

#: A sink's name of one thing that is written to: the segment of a path, so none that URLs resolve.
Resource = Annotated[
    str, Meta(min_length=1, max_length=200, pattern=r"\A(?!\.{1,2}\Z)[^\x00-\x1f\x7f-\x9f]+\Z")
]


class Validate(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The token that came with a write."""

    fencing_token: Token


class Valid(Struct, frozen=True, kw_only=True):
    """The claim holds now, by the stored rows; `expires_at_ms` is when it ends unless renewed."""

    claim_id: str
    workload_id: str
    attempt_id: str
    worker_id: str
    tenant_id: str
    application_id: str
    fencing_token: int
    state: str
    expires_at_ms: int
    server_time_ms: int


class Raise(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The token that wants to write to a resource of the tenant."""

    fencing_token: Token
    tenant_id: Name | None = None


class Fence(Struct, frozen=True):
    """The highest token a resource has seen: a lower one must not write to it."""

    resource: str
    highest: int
