"""People as they cross the wire: who may log in, and what logging in gives.

A password comes in and goes no further than its hash; a session stands in one answer only,
`SessionMade`. Nothing that is shown can carry either.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from feltd.model.base import Name
from feltd.model.key import Tenant
from feltd.model.page import LIMIT_DEFAULT, Limit

Role = Literal["viewer", "operator", "admin"]

PASSWORD_CHARS_MIN = 12
PASSWORD_CHARS_MAX = 256
#: A password as somebody sets it.
Password = Annotated[
    str,
    Meta(min_length=PASSWORD_CHARS_MIN, max_length=PASSWORD_CHARS_MAX, pattern=r"\A[^\x00]*\Z"),
]
#: What is tried as one: whether it is long enough is not told apart from being wrong.
Attempted = Annotated[str, Meta(min_length=1, max_length=PASSWORD_CHARS_MAX)]
#: A name as it is tried: any text, so that a bad one is a stranger's, not another answer.
NameAttempted = Annotated[str, Meta(min_length=1, max_length=128)]
#: Tenants a user has a role in; "*" is every tenant.
Roles = Annotated[dict[Tenant, Role], Meta(max_length=256)]
#: null takes the role away.
RoleChanges = Annotated[dict[Tenant, Role | None], Meta(min_length=1, max_length=256)]


class Credentials(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/auth/login`."""

    username: NameAttempted
    password: Attempted


class SignUp(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/auth/signup`."""

    username: Name
    password: Password


class CreateUser(SignUp, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/users`. Without roles he may log in and see nothing."""

    roles: Roles = {}


class ChangeRoles(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/users/{name}/role`. Tenants that are not named keep their role."""

    roles: RoleChanges


class ChangePassword(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/auth/password`. `username` without `old` only from the daemon's own socket."""

    new: Password
    old: Attempted | None = None
    username: Name | None = None


class ListUsers(Struct, frozen=True, kw_only=True):
    """The query of a list."""

    limit: Limit = LIMIT_DEFAULT
    cursor: str | None = None
    tenant_id: str | None = None


class User(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user as he is shown, with his roles in the caller's tenants and his live sessions."""

    username: str
    roles: dict[str, str]
    created_by: str
    created_at_ms: int
    password_changed_at_ms: int
    sessions: int
    last_login_at_ms: int | None = None
    disabled_at_ms: int | None = None
    disabled_by: str | None = None


class UserPage(Struct, frozen=True, kw_only=True):
    """`GET /v1/users`, newest first."""

    items: tuple[User, ...]
    next_cursor: str | None = None


class SessionMade(Struct, frozen=True, kw_only=True):
    """A new session with the whole bearer text, this once. `expires_at_ms` is wall time."""

    session: str
    expires_at_ms: int


class Hashed(Struct, frozen=True, kw_only=True):
    """A user to be made, his password hashed already: what a rule is given of it."""

    username: str
    password_hash: str
    roles: dict[str, str] = {}


class Proven(Struct, frozen=True, kw_only=True):
    """Somebody showed the password behind this hash."""

    username: str
    password_hash: str


class NewPassword(Struct, frozen=True, kw_only=True):
    """Another hash for a user; `proven_hash` is the one whose password he showed, None: none."""

    username: str
    password_hash: str
    proven_hash: str | None = None
