"""`feltd users`: make, list and disable people, give them roles, change a password.

A password is asked for without showing it, or read from a file; it is never an argument, which
every process of the machine could read.
"""

import os
import sys
from pathlib import Path

import click

from feltd.cli.output import ExamplesGroup, say_json, table
from feltd.cli.remote import connect, remote

COLUMNS = (
    ("username", "username"),
    ("roles", "roles"),
    ("sessions", "sessions"),
    ("created", "created_at_ms"),
    ("last login", "last_login_at_ms"),
    ("disabled", "disabled_at_ms"),
)
ROLES = ("viewer", "operator", "admin")
#: Far above any password; a wrong file ends here.
FILE_CHARS_MAX = 4_096

password_file = click.option(
    "--password-file",
    metavar="FILE",
    help="Read the new password from the first line of a file; - reads stdin.",
)


@click.group(
    cls=ExamplesGroup,
    examples=(
        "feltd users create ada --data feltd.db --role '*=admin'",
        "feltd users role ada --role acme=operator --take globex",
        "feltd users passwd ada --data feltd.db",
    ),
)
def users() -> None:
    """Make and disable people. A role (viewer, operator, admin) is one in a tenant, or in '*'."""


@users.command(
    examples=(
        "feltd users create ada --role '*=admin'",
        "feltd users create bob --role acme=viewer --role globex=operator --password-file bob.pw",
    )
)
@click.argument("username")
@click.option("--role", "pairs", multiple=True, metavar="TENANT=ROLE", help="May be repeated.")
@password_file
@remote
def create(
    data: str | None,
    as_json: bool,
    username: str,
    pairs: tuple[str, ...],
    password_file: str | None,
) -> None:
    """Make a user. Without a role he may log in and see nothing."""
    roles = _roles(pairs)
    password = _new_password(password_file)
    with connect(data, or_alone=True) as client:
        made = client.create_user(username=username, password=password, roles=roles)
    if as_json:
        say_json(made)
    else:
        click.echo(f"user created: {username}")


@users.command("list", examples=("feltd users list", "feltd users list --json"))
@remote
def list_(data: str | None, as_json: bool) -> None:
    """List the users of your tenants, newest first, and those without any role."""
    with connect(data, or_alone=True) as client:
        found = client.users()
    if as_json:
        say_json(found)
    else:
        shown = [{**one, "roles": [f"{t}={role}" for t, role in one["roles"].items()]}
                 for one in found]  # fmt: skip
        table(shown, COLUMNS, empty="no users")


@users.command(examples=("feltd users disable ada",))
@click.argument("username")
@remote
def disable(data: str | None, as_json: bool, username: str) -> None:
    """Let a user log in no more, for ever, and end his sessions. His name is never given again."""
    with connect(data, or_alone=True) as client:
        done = client.disable_user(username)
    if as_json:
        say_json(done)
    else:
        click.echo(f"user disabled: {username}")


@users.command(examples=("feltd users role ada --role acme=operator --take globex",))
@click.argument("username")
@click.option("--role", "pairs", multiple=True, metavar="TENANT=ROLE", help="May be repeated.")
@click.option("--take", "taken", multiple=True, metavar="TENANT", help="Take the role there away.")
@remote
def role(
    data: str | None, as_json: bool, username: str, pairs: tuple[str, ...], taken: tuple[str, ...]
) -> None:
    """Give a user roles, or take them away; tenants that are not named stay as they are."""
    changes: dict[str, str | None] = {**_roles(pairs), **dict.fromkeys(taken)}
    if not changes:
        raise click.UsageError("nothing to change: give --role TENANT=ROLE or --take TENANT")
    if len(changes) < len(set(taken)) + len(_roles(pairs)):
        raise click.UsageError("a role of one tenant is either given or taken")
    with connect(data, or_alone=True) as client:
        done = client.change_role(username, changes)
    if as_json:
        say_json(done)
    else:
        held = ", ".join(f"{t}={role}" for t, role in done["roles"].items())
        click.echo(f"roles of {username}: {held or 'none'}")


@users.command(examples=("feltd users passwd ada", "feltd users passwd ada --data feltd.db"))
@click.argument("username")
@click.option("--old-password-file", metavar="FILE", help="The one before; not with --data.")
@password_file
@remote
def passwd(
    data: str | None,
    as_json: bool,
    username: str,
    old_password_file: str | None,
    password_file: str | None,
) -> None:
    """Change a password; the user's other sessions end.

    Whoever knows the old one can do it from anywhere. With --data, on the daemon's own machine,
    no old one is asked for: so a forgotten password is replaced.
    """
    from_afar = data is None and bool(os.environ.get("FELTD_URL"))
    if old_password_file is not None and not from_afar:
        raise click.UsageError("--old-password-file goes with FELTD_URL: --data asks for none")
    with connect(data, or_alone=True) as client:
        if from_afar:
            old = _password(old_password_file, "Old password")
            new = _new_password(password_file)
            session = client.login(username, old)["session"]
            try:
                client.change_password(session, old=old, new=new)
            finally:
                client.logout(session)
        else:
            client.change_password(username=username, new=_new_password(password_file))
    if as_json:
        say_json({"username": username, "changed": True})
    else:
        click.echo(f"password changed: {username}")


def _roles(pairs: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        tenant_id, equals, named = pair.partition("=")
        if not equals or not tenant_id or named not in ROLES:
            raise click.UsageError(
                f"{pair!r} is no role: write TENANT=viewer, TENANT=operator or TENANT=admin"
            )
        if found.setdefault(tenant_id, named) != named:
            raise click.UsageError(f"two roles for {tenant_id}: somebody has one in a tenant")
    return found


def _new_password(path: str | None) -> str:
    return _password(path, "New password", twice=True)


def _password(path: str | None, asked: str, *, twice: bool = False) -> str:
    """A password from the first line of a file, or typed unseen."""
    if path is None:
        if sys.stdin is None or not sys.stdin.isatty():
            raise click.UsageError("no terminal to ask for a password: give --password-file FILE")
        typed = click.prompt(asked, hide_input=True, confirmation_prompt=twice, err=True)
        return str(typed)
    try:
        if path == "-":
            text = sys.stdin.readline(FILE_CHARS_MAX)
        else:
            with Path(path).open(encoding="utf-8") as file:
                text = file.readline(FILE_CHARS_MAX)
    except (OSError, UnicodeDecodeError) as problem:
        raise click.UsageError(f"cannot read a password from {path}: {problem}") from problem
    return text.rstrip("\r\n")
