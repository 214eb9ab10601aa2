"""Users over HTTP: made, listed, given roles, disabled.

What makes a user takes no Idempotency-Key: a digest of the body would be one of the password. His
name is the key: a repeat is refused with USER_EXISTS.
"""

from feltd.api import wire
from feltd.api.door import tenant_filter
from feltd.api.repeats import submit_once
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.identity import users
from feltd.model.base import Ask
from feltd.model.page import PageAsk
from feltd.model.user import ChangeRoles, CreateUser, Hashed, ListUsers, User, UserPage


async def create_user(request: Request) -> Reply:
    """See users.create. The password is hashed in its own threads before the rule runs."""
    asked = request.decode(CreateUser)
    body = Hashed(
        username=asked.username,
        password_hash=await request.app.passwords.hash(asked.password),
        roles=dict(asked.roles),
    )
    request.admit(keep_alive=False)
    ask = Ask(caller=request.caller, body=body)
    made = await request.app.writer.submit(users.create, ask, deadline_ms=request.deadline_ms)
    return reply(201, made)


async def list_users(request: Request) -> Reply:
    """Newest first; see users.page."""
    query = request.query(ListUsers)
    tenant_id = tenant_filter(request)
    secret = request.app.keyring.cursor_secret
    bound = ["users", sorted(request.caller.tenants), tenant_id]
    after = None
    if query.cursor is not None:
        at_ms, name = wire.open_cursor(secret, bound, query.cursor)
        after = (at_ms, name)
    ask = Ask(
        caller=request.caller,
        body=PageAsk(tenant_id=tenant_id, limit=query.limit, after=after),
    )
    page = await request.app.readers.read(users.page, ask)
    cursor = wire.seal_cursor(secret, bound, page.after) if page.after else None
    return reply(200, UserPage(items=page.items, next_cursor=cursor))


async def disable_user(request: Request) -> Reply:
    """His sessions end with it; see users.disable."""
    ask = Ask(caller=request.caller, body=None, id=request.path_params["name"])
    done = await submit_once(request, users.disable, ask)
    return reply(done.status, done.answer)


async def change_role(request: Request) -> Reply:
    """Tenants that are not named keep their role; see users.change_role."""
    ask = Ask(
        caller=request.caller,
        body=request.decode(ChangeRoles),
        id=request.path_params["name"],
    )
    done = await submit_once(request, users.change_role, ask)
    return reply(done.status, done.answer)


ROUTES = (
    Route(
        method="POST",
        path="/v1/users",
        operation="create_user",
        admission="handler",
        tag="user",
        handler=create_user,
        summary="Make a user with roles within what the caller holds",
        scope=users.SCOPE,
        body=CreateUser,
        answer=User,
        status=201,
        example={
            "username": "ada",
            "password": "correct horse battery",
            "roles": {"acme": "operator"},
        },
        responses={403: "A role is beyond the caller's", 409: "The name is taken"},
    ),
    Route(
        method="GET",
        path="/v1/users",
        operation="list_users",
        tag="user",
        handler=list_users,
        summary="Users of the caller's tenants, newest first",
        scope=users.SCOPE,
        query=ListUsers,
        answer=UserPage,
    ),
    Route(
        method="POST",
        path="/v1/users/{name}/disable",
        operation="disable_user",
        tag="user",
        handler=disable_user,
        summary="Let a user log in no more, for ever; his sessions end",
        scope=users.SCOPE,
        answer=User,
        responses={404: "No such user"},
    ),
    Route(
        method="POST",
        path="/v1/users/{name}/role",
        operation="change_role",
        tag="user",
        handler=change_role,
        summary="Give a user roles in the tenants named; null takes one away",
        scope=users.SCOPE,
        body=ChangeRoles,
        answer=User,
        example={"roles": {"acme": "viewer", "globex": None}},
        responses={403: "A role is beyond the caller's", 404: "No such user"},
    ),
)
