"""Users: who may log in, with which roles in which tenants; changed and disabled here."""

from typing import Literal

from msgspec import Struct

from feltd.api.request import Reply, Request
from feltd.api.routes import Route
from feltd.console import asked, frame
from feltd.identity import users
from feltd.model.base import Name
from feltd.model.key import Tenant
from feltd.model.page import LIMIT_DEFAULT, Limit, PageAsk
from feltd.model.user import ChangeRoles

PLACE = "/console/users"


class UsersQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose users, and from where on."""

    tenant_id: Name | None = None
    limit: Limit = LIMIT_DEFAULT
    cursor: str | None = None


class RoleForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One role in one tenant; "none" takes it away."""

    tenant: Tenant
    role: Literal["viewer", "operator", "admin", "none"]


class NoFields(Struct, frozen=True, forbid_unknown_fields=True):
    """A form that says nothing but what it is for."""


async def users_page(request: Request) -> Reply:
    """GET /console/users: newest first."""
    query = frame.query(request, UsersQuery)
    tenant_id = frame.tenant_filter(request)
    place = asked.opened(request, tenant_id, query.cursor)
    after = None if place is None else (place[0], place[1])
    wanted = PageAsk(tenant_id=tenant_id, limit=query.limit, after=after)
    found = await asked.read(request, users.page, wanted)
    tenants = request.caller.tenants
    return await frame.page(
        request,
        "users",
        users=found.items,
        next_cursor=asked.sealed(request, tenant_id, found.after),
        asked=query,
        tenant=tenants[0] if len(tenants) == 1 else "",
        myself=request.caller.subject.id if request.caller.subject.kind == "human" else "",
    )


async def change_role(request: Request) -> Reply:
    """POST /console/users/{id}/role."""
    told = frame.form(request, RoleForm)
    role = None if told.role == "none" else told.role
    user = await asked.act(request, users.change_role, ChangeRoles(roles={told.tenant: role}))
    what = "no role any more" if role is None else f"the role {role}"
    where = "every tenant" if told.tenant == "*" else told.tenant
    return frame.done(request, PLACE, f"{user.username} has {what} in {where}.")


async def disable_user(request: Request) -> Reply:
    """POST /console/users/{id}/disable: for ever, and the sessions end."""
    frame.form(request, NoFields)
    user = await asked.act(request, users.disable)
    return frame.done(request, PLACE, f"{user.username} can log in no more.")


ROUTES = (
    Route(
        method="GET",
        path=PLACE,
        operation="users_page",
        tag="console",
        handler=users_page,
        summary="Users",
        scope=users.SCOPE,
        query=UsersQuery,
        page=True,
    ),
    Route(
        method="POST",
        path=PLACE + "/{id}/role",
        operation="console_change_role",
        tag="console",
        handler=change_role,
        summary="Give or take a role",
        scope=users.SCOPE,
        page=True,
    ),
    Route(
        method="POST",
        path=PLACE + "/{id}/disable",
        operation="console_disable_user",
        tag="console",
        handler=disable_user,
        summary="Let a user log in no more",
        scope=users.SCOPE,
        page=True,
    ),
)
