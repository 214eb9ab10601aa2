"""People at the door: log in, log out, sign up, change a password.

A name nobody has, a wrong password and a disabled user cost the same and are told the same. What
is tried too often has to wait, by account and by address. No password is kept, logged, digested
for a repeat or put into a refusal; Idempotency-Key is not taken where one is in the body.
"""

import asyncio
from contextlib import suppress
from typing import NamedTuple

import structlog

from feltd.api import cookies, fresh
from feltd.api.forwarded import bounded_by, own_origin
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.clock import Now
from feltd.config import is_loopback
from feltd.errors import Refused
from feltd.identity import sessions, users
from feltd.identity.principals import LOCAL
from feltd.identity.sessions import WRONG
from feltd.model.base import Ask
from feltd.model.user import (
    ChangePassword,
    Credentials,
    Hashed,
    NewPassword,
    Proven,
    SessionMade,
    SignUp,
    User,
)
from feltd.store.tx import Tx

#: What is still being written down; the loop itself holds tasks only weakly.
_ASIDE: set[asyncio.Task[None]] = set()

log = structlog.get_logger("feltd.auth")


class LoggedIn(NamedTuple):
    """A new session: its whole bearer, and when it ends by wall time."""

    session: str
    expires_at_ms: int


async def login(request: Request, username: str, password: str) -> LoggedIn:
    """Begin a session, which every call makes anew, whatever the browser brought.

    Refuses UNAUTHENTICATED for whatever is wrong, LOGIN_THROTTLED before anything is looked at,
    SERVICE_OVERLOADED "authentication temporarily unavailable", FORBIDDEN from a foreign page.
    """
    _refuse_foreign_page(request)
    proven = await _prove(request, username, password)
    request.admit(keep_alive=False)
    made: SessionMade = await request.app.writer.submit(
        sessions.begin,
        Ask(caller=LOCAL, body=proven, fresh=fresh.key_material()),
        deadline_ms=request.deadline_ms,
    )
    return LoggedIn(made.session, made.expires_at_ms)


async def log_out(request: Request) -> None:
    """End the session that calls; see sessions.logout."""
    ask = Ask(caller=request.caller, body=None)
    await request.app.writer.submit(sessions.logout, ask, deadline_ms=request.deadline_ms)


async def sign_up(request: Request, username: str, password: str) -> User:
    """Make a user without roles, where sign-up is open; see users.sign_up.

    Each costs an address as much as a wrong password, so that nobody fills the table.
    """
    users.refuse_closed(request.app.config.open_signup)
    _refuse_foreign_page(request)
    throttle, now_ms, address = request.app.throttle, _now_ms(request), _address(request)
    wait_ms = throttle.sign_up(address, now_ms)
    if wait_ms:
        raise _throttled(request, wait_ms)
    body = Hashed(username=username, password_hash=await request.app.passwords.hash(password))
    request.admit(keep_alive=False)
    ask = Ask(caller=LOCAL, body=body, limits=request.app.config)
    made: User = await request.app.writer.submit(
        users.sign_up, ask, deadline_ms=request.deadline_ms
    )
    return made


async def post_login(request: Request) -> Reply:
    """The session stands in this answer and its cookie only; see `login`."""
    asked = request.decode(Credentials)
    made = await login(request, asked.username, asked.password)
    answer = reply(
        200,
        SessionMade(session=made.session, expires_at_ms=made.expires_at_ms),
        {"Cache-Control": "no-store"},
    )
    answer.headers.append(cookies.set_cookie(request, made.session, made.expires_at_ms))
    return answer


async def post_logout(request: Request) -> Reply:
    """The session ends at once, and what it has open within a second."""
    await log_out(request)
    answer = reply(204)
    answer.headers.append(cookies.clear_cookie(request))
    return answer


async def post_signup(request: Request) -> Reply:
    """See `sign_up`."""
    asked = request.decode(SignUp)
    return reply(201, await sign_up(request, asked.username, asked.password))


async def post_password(request: Request) -> Reply:
    """The user's other sessions end; see users.change_password."""
    await change_password(request, request.decode(ChangePassword))
    return reply(204)


async def change_password(request: Request, asked: ChangePassword) -> None:
    """By a session of the user who shows the old one, or by the local operator for anybody.

    A wrong old one counts as a failed login. Refuses FORBIDDEN for keys, UNAUTHENTICATED.
    """
    caller = request.caller
    by_operator = caller.local and asked.old is None
    if by_operator:
        if asked.username is None:
            raise Refused("REQUEST_INVALID", "/username: is required: whose password?")
        username, proven_hash = asked.username, None
    elif caller.session_id is None:
        raise Refused("FORBIDDEN", "a password is changed by a session of its user")
    elif asked.old is None or asked.username not in (None, caller.subject.id):
        raise Refused("FORBIDDEN", "one's own password is changed, by who knows the old one")
    else:
        username = caller.subject.id
        proven_hash = (await _prove(request, username, asked.old)).password_hash
    body = NewPassword(
        username=username,
        password_hash=await request.app.passwords.hash(asked.new),
        proven_hash=proven_hash,
    )
    request.admit(keep_alive=False)
    ask = Ask(caller=caller, body=body)
    await request.app.writer.submit(users.change_password, ask, deadline_ms=request.deadline_ms)


async def _prove(request: Request, username: str, password: str) -> Proven:
    """Compare a password with the user's, counting the attempt. Refuses as `login` does."""
    throttle, now_ms, address = request.app.throttle, _now_ms(request), _address(request)
    wait_ms, last_free = throttle.begin(username, address, now_ms)
    if wait_ms:
        raise _throttled(request, wait_ms)

    async def look() -> str | None:
        kept: str | None = await request.app.readers.read(_kept, username)
        return kept

    try:
        kept = await request.app.passwords.prove(look, password)
    except Refused:
        throttle.unmade(username, address)
        raise
    if kept is None:
        if last_free:
            _tell_put_off(request, username, address)
        raise Refused("UNAUTHENTICATED", WRONG)
    throttle.right(username, address, now_ms)
    return Proven(username=username, password_hash=kept)


def _tell_put_off(request: Request, username: str, address: str) -> None:
    """Write it down beside the answer, which must not take longer for a name that somebody has."""
    log.warning("logins are put off", address=address)
    task = asyncio.get_running_loop().create_task(_deny(request, username, address))
    _ASIDE.add(task)
    task.add_done_callback(_ASIDE.discard)


async def _deny(request: Request, username: str, address: str) -> None:
    told = Ask(caller=LOCAL, body=f"wrong passwords, the last from {address or 'this machine'}",
               id=username)  # fmt: skip
    with suppress(Refused):
        await request.app.writer.submit(sessions.deny, told, deadline_ms=request.deadline_ms)


def _kept(tx: Tx, username: str, now: Now) -> str | None:
    return users.kept_hash(tx, username, now)


def _throttled(request: Request, wait_ms: int) -> Refused:
    now_ms = _now_ms(request)
    return Refused(
        "LOGIN_THROTTLED",
        "too many attempts: wait before the next",
        retry_after_s=-(-wait_ms // 1000),
        eligible_at_ms=now_ms + wait_ms,
        server_time_ms=now_ms,
    )


def _now_ms(request: Request) -> int:
    now_ms: int = request.app.clock.now().lease_ms
    return now_ms


def _address(request: Request) -> str:
    """Whom attempts are counted for; '' where the address names nobody in particular.

    That is this machine, a proxy in front that is not trusted to say more among it.
    """
    address = request.client_address
    return "" if not address or is_loopback(address) else bounded_by(address)


def _refuse_foreign_page(request: Request) -> None:
    """Nobody is logged in, or signed up, by a page that is not the daemon's or let in by name.

    A form of the console only the daemon's own pages have: what is let in by name calls the API.
    """
    origin = request.header(b"origin")
    if origin is None or origin == own_origin(request.scope):
        return
    if request.route.page or origin not in request.app.config.allowed_origins:
        raise Refused("FORBIDDEN", "this page may not log anybody in here")


ROUTES = (
    Route(
        method="POST",
        path="/v1/auth/login",
        operation="login",
        admission="handler",
        tag="user",
        handler=post_login,
        summary="Begin a session of 12 hours; the bearer text is shown this once and set as cookie",
        auth="none",
        body=Credentials,
        answer=SessionMade,
        example={"username": "ada", "password": "correct horse battery"},
        responses={
            401: "The name or the password is wrong",
            429: "Too many attempts for this name or from this address",
        },
    ),
    Route(
        method="POST",
        path="/v1/auth/logout",
        operation="logout",
        tag="user",
        handler=post_logout,
        summary="End the session that calls",
        auth="any",
        status=204,
    ),
    Route(
        method="POST",
        path="/v1/auth/signup",
        operation="signup",
        admission="handler",
        tag="user",
        handler=post_signup,
        summary="Make a user without roles, where the daemon runs with --open-signup",
        auth="none",
        body=SignUp,
        answer=User,
        status=201,
        example={"username": "ada", "password": "correct horse battery"},
        responses={403: "Sign-up is closed", 409: "The name is taken"},
    ),
    Route(
        method="POST",
        path="/v1/auth/password",
        operation="change_password",
        admission="handler",
        tag="user",
        handler=post_password,
        summary="Change one's own password; the user's other sessions end",
        auth="any",
        body=ChangePassword,
        status=204,
        example={"old": "correct horse battery", "new": "a better one than that"},
        responses={429: "Too many wrong attempts"},
    ),
)
