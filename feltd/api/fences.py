"""What sinks ask over HTTP: whether a claim holds, and whether a token is the highest.

Both are operations of the writer although one changes nothing: the answer decides whether a write
is applied, so it must come after every end of a claim that was acknowledged before it.
"""

import msgspec

from feltd.api.claiming import only_tenant
from feltd.api.door import tenant_of
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.api.wire import invalid
from feltd.mesh import fences
from feltd.model.base import Ask
from feltd.model.fence import Fence, Raise, Resource, Valid, Validate


async def validate(request: Request) -> Reply:
    """POST /v1/claims/{id}/validate."""
    body = request.decode(Validate)
    ask = Ask(caller=request.caller, body=body, id=request.path_params["id"])
    valid = await request.app.writer.submit(
        fences.validate, ask, tenant=only_tenant(request), deadline_ms=request.deadline_ms
    )
    return reply(200, valid)


async def fence(request: Request) -> Reply:
    """POST /v1/fences/{resource}."""
    body = request.decode(Raise)
    tenant_id = tenant_of(request, body)
    resource = request.path_params["resource"]
    try:
        msgspec.convert(resource, Resource)
    except msgspec.ValidationError:
        raise invalid("REQUEST_INVALID", "", "a resource has 1-200 printable characters") from None
    ask = Ask(caller=request.caller, body=fences.Raising(tenant_id, body), id=resource)
    kept = await request.app.writer.submit(
        fences.fence, ask, tenant=tenant_id, deadline_ms=request.deadline_ms
    )
    return reply(200, kept)


ROUTES = (
    Route(
        method="POST",
        path="/v1/claims/{id}/validate",
        operation="validate",
        tag="claim",
        handler=validate,
        summary="Whether a claim holds now under this token, by the stored rows",
        scope="claims:validate",
        body=Validate,
        answer=Valid,
        example={"fencing_token": 17},
        responses={
            409: "MESH_STALE_FENCE: it is over, or never was: refuse the write",
            403: "MESH_CLAIM_SCOPE_DENIED, MESH_CAPABILITY_DENIED",
        },
    ),
    Route(
        method="POST",
        path="/v1/fences/{resource}",
        operation="fence",
        tag="claim",
        handler=fence,
        summary="Keep the highest token of a resource; a lower one must not write to it",
        scope="claims:validate",
        body=Raise,
        answer=Fence,
        example={"fencing_token": 17},
        responses={409: "MESH_STALE_FENCE: `highest` has been there: refuse the write"},
    ),
)
