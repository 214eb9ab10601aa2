"""A town of people for stories: the house of keys and grants, and users with their sessions."""

from typing import Any, cast

from feltd.identity import bearer, passwords, roles, sessions, users
from feltd.identity.principals import LOCAL, confirm
from feltd.identity.standing import Standing, standings
from feltd.model.base import Ask, Caller
from feltd.model.page import Page, PageAsk
from feltd.model.user import (
    ChangeRoles,
    Hashed,
    NewPassword,
    Proven,
    RoleChanges,
    SessionMade,
    User,
)
from tests.identity.house import House

#: Kept once for all stories: each costs 20 ms. Which password it is of matters to few of them.
KEPT = passwords.hashed("correct horse battery", b"0123456789abcdef")
ANOTHER = passwords.hashed("a better one than that", b"fedcba9876543210")


class OpenTown:
    """The one setting a sign-up looks at."""

    def __init__(self, open_signup: bool) -> None:
        self.open_signup = open_signup


class Town(House):
    """Users by name; each verb is a transaction of its own."""

    def user(self, name: str = "ada", by: Caller = LOCAL, **held: str) -> User:
        """A user with roles; `every` stands for tenant "*"."""
        given = {"*" if tenant == "every" else tenant: role for tenant, role in held.items()}
        body = Hashed(username=name, password_hash=KEPT, roles=given)
        return self.ask(users.create, by, body)

    def session(self, name: str = "ada", kept: str = KEPT) -> SessionMade:
        body = Proven(username=name, password_hash=kept)
        return self.ask(sessions.begin, LOCAL, body, fresh=self.fresh())

    def standing(self, session: SessionMade) -> Standing:
        """What the door knows of a session."""
        session_id = bearer.parse(session.session)
        assert session_id is not None
        return self.see(lambda tx, now: standings(tx, [session_id], now))[session_id]

    def caller_of(
        self, session: SessionMade, scope: str | None = None, tenant: str | None = None
    ) -> Caller:
        """Who a session is for a call that needs a scope and may name a tenant."""
        return roles.narrow(self.standing(session).caller, scope, tenant)

    def logged_in(self, name: str = "ada", scope: str | None = None) -> Caller:
        return self.caller_of(self.session(name), scope)

    def confirm(self, caller: Caller) -> None:
        self.see(lambda tx, now: confirm(tx, caller, now))

    def role(self, name: str, by: Caller = LOCAL, **changes: str | None) -> User:
        given = {"*" if tenant == "every" else tenant: role for tenant, role in changes.items()}
        return self.ask(users.change_role, by, ChangeRoles(roles=cast(RoleChanges, given)), id=name)

    def disable(self, name: str, by: Caller = LOCAL) -> User:
        return self.ask(users.disable, by, id=name)

    def sign_up(self, name: str, *, opened: bool = True) -> User:
        body = Hashed(username=name, password_hash=KEPT)
        return self.ask(users.sign_up, LOCAL, body, limits=OpenTown(opened))

    def change_password(self, by: Caller, name: str = "ada", proven: str | None = KEPT) -> None:
        body = NewPassword(username=name, password_hash=ANOTHER, proven_hash=proven)
        self.ask(users.change_password, by, body)

    def people(self, by: Caller = LOCAL, **asked: Any) -> Page[User]:
        ask = Ask(caller=by, body=PageAsk(**asked))
        return self.see(lambda tx, now: users.page(tx, ask, now))

    def names(self, by: Caller = LOCAL, **asked: Any) -> list[str]:
        return [one.username for one in self.people(by, **asked).items]

    def acts(self) -> list[tuple[str, str, str]]:
        rows = self.rows("SELECT actor, action, subject FROM audit WHERE kind = 'act' ORDER BY seq")
        return [(row["actor"], row["action"], row["subject"]) for row in rows]

    def told(self) -> list[str]:
        """The keys and sessions the last transaction told of."""
        return [key for topic, key in self.signals if topic == "key"]
