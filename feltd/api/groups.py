"""Groups over HTTP: looked at, awaited, sealed, called off. Keyed by tenant and name.

A handler decodes, finds the tenant, submits one rule and replies; counting is done on a reader.
"""

from msgspec import Struct

from feltd.api.door import tenant_of
from feltd.api.repeats import submit_once
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.mesh import groups, parents
from feltd.model.base import Ask, Name, WaitMs
from feltd.model.group import CancelGroup, Group, GroupCancellation, GroupCancelled, GroupId

INVALID = "WORKLOAD_INVALID"


class GroupQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of which tenant, and how long to wait for the group's end."""

    tenant_id: Name | None = None
    wait_ms: WaitMs = 0


class OfTenant(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of which tenant."""

    tenant_id: Name | None = None


async def get_group(request: Request) -> Reply:
    """GET /v1/groups/{id}, at once or when it has ended or the wait is over."""
    wait_ms = request.query(GroupQuery).wait_ms
    ask = Ask(caller=request.caller, body=_group(request))
    found: Group = await request.app.readers.read(groups.get, ask)

    async def ended() -> bool:
        nonlocal found
        found = await request.app.readers.read(groups.get, ask)
        return found.ended

    if wait_ms and not found.ended:
        key = parents.told_key(ask.body.tenant_id, ask.body.name)
        await request.app.polls.until(request, key, wait_ms, ended, "group")
        found = await request.app.readers.read(groups.get, ask)
    return reply(200, found)


async def seal_group(request: Request) -> Reply:
    """POST /v1/groups/{id}/seal."""
    request.query(OfTenant)
    ask = Ask(caller=request.caller, body=_group(request))
    done = await submit_once(request, groups.seal, ask, tenant=ask.body.tenant_id)
    return reply(done.status, done.answer)


async def cancel_group(request: Request) -> Reply:
    """POST /v1/groups/{id}/cancel."""
    request.query(OfTenant)
    group, body = _group(request), request.decode(CancelGroup)
    cancellation = GroupCancellation(group.tenant_id, group.name, body)
    ask = Ask(caller=request.caller, body=cancellation)
    done = await submit_once(request, groups.cancel, ask, tenant=group.tenant_id)
    return reply(done.status, done.answer)


def _group(request: Request) -> GroupId:
    return GroupId(tenant_of(request), request.path_params["id"])


_GONE = {404: "No workload of the tenant ever named this group"}

ROUTES = (
    Route(
        method="GET",
        path="/v1/groups/{id}",
        operation="get_group",
        tag="group",
        handler=get_group,
        summary="A group, its workloads counted by state; with wait_ms, when all of it has ended",
        scope="workloads:read",
        query=GroupQuery,
        answer=Group,
        invalid_code=INVALID,
        responses=_GONE,
    ),
    Route(
        method="POST",
        path="/v1/groups/{id}/seal",
        operation="seal_group",
        tag="group",
        handler=seal_group,
        summary="Close a group to new workloads, so that other work may wait for all of it",
        scope="workloads:create",
        query=OfTenant,
        answer=Group,
        invalid_code=INVALID,
        responses=_GONE,
    ),
    Route(
        method="POST",
        path="/v1/groups/{id}/cancel",
        operation="cancel_group",
        tag="group",
        handler=cancel_group,
        summary="Cancel up to 500 workloads of a group; call again while something remains",
        auth="any",
        query=OfTenant,
        body=CancelGroup,
        answer=GroupCancelled,
        invalid_code=INVALID,
        example={"force": False, "reason": "the input was wrong"},
        responses={
            **_GONE,
            403: "Others' work needs workloads:operate, one's own workloads:create",
        },
    ),
)
