"""Pools on the wire: which workers may run the work that names a pool, and how much at once.

A worker is a member when it meets every condition of the pool: it is listed (where the pool lists
workers), was granted its capabilities and has its labels.
"""

from typing import Annotated

from msgspec import Meta, Struct

from feltd.model.base import PRINTABLE, Id, Labels, Name, Names

#: As many live claims as the daemon is made for; a higher ceiling limits nothing.
CEILING_MAX = 1_000_000

WorkerIds = Annotated[tuple[Id, ...], Meta(max_length=256)]
#: What people call it.
Title = Annotated[str, Meta(min_length=1, max_length=128, pattern=PRINTABLE)]
Ceiling = Annotated[int, Meta(ge=1, le=CEILING_MAX)]


class NewPool(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/pools`, and `PUT /v1/pools/{id}` with the same members.

    No application: the pool is for every application of the tenant. `listed` says whether the
    workers of `worker_ids` alone may be members; absent, it is so when that names any.
    """

    pool_id: Name
    name: Title
    tenant_id: Name | None = None
    application_id: Name | None = None
    capabilities: Names = ()
    required_labels: Labels = {}
    worker_ids: WorkerIds = ()
    listed: bool | None = None
    max_concurrency: Ceiling | None = None


class Pool(Struct, frozen=True, kw_only=True):
    """A pool as it stands.

    `members` counts the workers that are members now, whatever their lifecycle; `active` the live
    claims of the pool. `listed` with no worker_ids left: nobody is a member.
    """

    pool_id: str
    tenant_id: str
    application_id: str | None
    name: str
    capabilities: tuple[str, ...]
    required_labels: dict[str, str]
    worker_ids: tuple[str, ...]
    listed: bool
    max_concurrency: int | None
    created_at_ms: int
    members: int
    active: int


class PoolPage(Struct, frozen=True, kw_only=True):
    """Newest first."""

    items: tuple[Pool, ...]
    next_cursor: str | None
