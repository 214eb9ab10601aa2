"""Coming in and going out: the login, the logout, the sign-up where it is open, one's password.

No password is ever put back into a page. Where the browser is led after the login is a path of the
console and nothing else, whatever the address that was followed says.
"""

from typing import Any

from msgspec import Struct

from feltd.api import auth, cookies
from feltd.api.request import Reply, Request
from feltd.api.routes import Auth, Route
from feltd.console import frame
from feltd.errors import Refused
from feltd.model.base import Name
from feltd.model.user import Attempted, ChangePassword, NameAttempted, Password

HOME = "/console"
LOGIN = "/console/login"
#: What is told on the form itself, where the next attempt is made.
TOLD_THERE = frozenset({"UNAUTHENTICATED", "LOGIN_THROTTLED", "USER_EXISTS", "REQUEST_INVALID"})


class LoginQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to go afterwards."""

    next: str = HOME


class LoginForm(Struct, frozen=True, forbid_unknown_fields=True):
    """Who comes, and where he wanted to go."""

    username: NameAttempted
    password: Attempted
    next: str = HOME


class SignUpForm(Struct, frozen=True, forbid_unknown_fields=True):
    """Who wants to be known."""

    username: Name
    password: Password


class PasswordForm(Struct, frozen=True, forbid_unknown_fields=True):
    """The old password and the new one, twice."""

    old: Attempted
    new: Password
    again: Attempted


async def root(request: Request) -> Reply:
    """GET /: who types the address of a daemon into a browser wants the console."""
    return frame.go(HOME)


async def login_page(request: Request) -> Reply:
    """GET /console/login; where no login is needed, the page that was wanted."""
    query = frame.query(request, LoginQuery)
    to = query.next if frame.is_local(query.next) else HOME
    if request.app.config.no_auth:
        return frame.go(to)
    opened = request.app.config.open_signup
    return await frame.page(
        request, "login", refused=None, next=to, username="", open_signup=opened
    )


async def login(request: Request) -> Reply:
    """POST /console/login: a session in a cookie. What is wrong is told on the form."""
    to, username = HOME, ""
    try:
        form = frame.form(request, LoginForm)
        username = form.username
        to = form.next if frame.is_local(form.next) else HOME
        made = await auth.login(request, form.username, form.password)
    except Refused as refused:
        return await _again(request, refused, "login", next=to, username=username)
    return frame.go(to, [cookies.set_cookie(request, made.session, made.expires_at_ms)])


async def logout(request: Request) -> Reply:
    """POST /console/logout: the session ends, here and everywhere."""
    if request.caller.session_id is not None:
        await auth.log_out(request)
    answer = frame.done(request, LOGIN, "You are logged out.")
    answer.headers.append(cookies.clear_cookie(request))
    return answer


async def signup_page(request: Request) -> Reply:
    """GET /console/signup."""
    if not request.app.config.open_signup:
        raise Refused("FORBIDDEN", "sign-up is closed: an admin makes users")
    return await frame.page(request, "signup", refused=None, username="")


async def signup(request: Request) -> Reply:
    """POST /console/signup: a user without roles, who sees nothing until an admin gives some."""
    try:
        form = frame.form(request, SignUpForm)
        await auth.sign_up(request, form.username, form.password)
    except Refused as refused:
        return await _again(request, refused, "signup", username="")
    return frame.done(request, LOGIN, "You are known now; an admin must give you a role.")


async def password_page(request: Request) -> Reply:
    """GET /console/password."""
    return await frame.page(request, "password", refused=None)


async def change_password(request: Request) -> Reply:
    """POST /console/password: all other sessions of the user end."""
    try:
        form = frame.form(request, PasswordForm)
        if form.new != form.again:
            raise Refused("REQUEST_INVALID", "the new password is not the same twice")
        await auth.change_password(request, ChangePassword(new=form.new, old=form.old))
    except Refused as refused:
        return await _again(request, refused, "password")
    return frame.done(request, HOME, "Your password is changed; your other sessions have ended.")


async def _again(request: Request, refused: Refused, name: str, **values: str) -> Reply:
    """The same form with what is wrong; what no other attempt can mend is a refusal's own page."""
    if refused.code not in TOLD_THERE:
        raise refused
    request.admit(keep_alive=False)
    opened = request.app.config.open_signup
    answer = await frame.page(
        request, name, status=refused.status, refused=refused, open_signup=opened, **values
    )
    wait_s = refused.facts.get("retry_after_s")
    if wait_s is not None:
        answer.headers.append((b"retry-after", b"%d" % int(wait_s)))
    return answer


def _route(method: str, path: str, handler: Any, summary: str, auth: Auth) -> Route:
    return Route(
        method=method,
        path=path,
        operation=f"console_{handler.__name__}",
        tag="console",
        handler=handler,
        summary=summary,
        auth=auth,
        # What brings a password waits for its comparison before it is at work.
        admission="handler" if handler in (login, signup, change_password) else "ordinary",
        page=True,
    )


ROUTES = (
    _route("GET", "/", root, "Where the console is", "none"),
    _route("GET", LOGIN, login_page, "The login", "none"),
    _route("POST", LOGIN, login, "Log in", "none"),
    _route("POST", "/console/logout", logout, "Log out", "any"),
    _route("GET", "/console/signup", signup_page, "The sign-up, where it is open", "none"),
    _route("POST", "/console/signup", signup, "Sign up, where it is open", "none"),
    _route("GET", "/console/password", password_page, "One's password", "any"),
    _route("POST", "/console/password", change_password, "Change one's password", "any"),
)
