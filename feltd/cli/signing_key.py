"""`feltd signing-key`: the keys that sign the tokens of grants, in their file, changed in service.

The file is changed here, whole or not at all; a daemon that serves a database with it follows
within a round. Nothing here prints a secret.
"""

import secrets
from pathlib import Path
from typing import Any

import click

from feltd.api.fresh import characters
from feltd.cli.output import ExamplesGroup, json_option, say_json, table
from feltd.config import Config
from feltd.identity import keyring
from feltd.store import private
from feltd.store.connect import StoreProblem

KID_CHARS = 8
COLUMNS = (("kid", "kid"), ("status", "status"))


def of_file(command: Any) -> Any:
    """Add the options that name the file."""
    for option in reversed(
        (
            click.option(
                "--data", default="feltd.db", envvar="FELTD_DATA",
                help="The database: its signing.keyring lies beside it.",
            ),
            click.option("--keyring", "file", envvar="FELTD_KEYRING", help="The file itself."),
            json_option,
        )
    ):  # fmt: skip
        command = option(command)
    return command


@click.group(
    "signing-key",
    cls=ExamplesGroup,
    examples=(
        "feltd signing-key list --data feltd.db",
        "feltd signing-key rotate --data feltd.db",
        "feltd signing-key retire --data feltd.db 4fKq0aBz",
    ),
)
def signing_key() -> None:
    """List, rotate and retire the keys that sign the tokens of grants.

    A rotation makes a new key that signs from now on; the old one still verifies the tokens it
    signed. Retire it when none of them is in use any more, or at once when it was seen by others.
    """


@signing_key.command("list", examples=("feltd signing-key list --data feltd.db",))
@of_file
def list_(data: str, file: str | None, as_json: bool) -> None:
    """The keys of the file, the newest first, and how each stands."""
    _show(_read(_path(data, file)), as_json)


@signing_key.command(examples=("feltd signing-key rotate --data feltd.db",))
@of_file
def rotate(data: str, file: str | None, as_json: bool) -> None:
    """Make a new key that signs from now on; the one before still verifies.

    Tokens in use go on. `feltd grants show ID` gives a token of the new key.
    """
    path = _path(data, file)
    kid, secret = characters(KID_CHARS), secrets.token_bytes(32)
    made = private.change(path, lambda ring: keyring.rotated(_known(path, ring), kid, secret))
    _show(made, as_json)
    if not as_json:
        click.echo("A running daemon follows within its next round.", err=True)


@signing_key.command(
    examples=(
        "feltd signing-key retire --data feltd.db 4fKq0aBz",
        "feltd grants show GRANT    # gives a token of the key that signs now",
    )
)
@click.argument("kid")
@of_file
def retire(data: str, file: str | None, as_json: bool, kid: str) -> None:
    """End the key KID for ever: its tokens open nothing any more.

    Workers that registered with a token of it lose their claims (authority_lost) and their keys,
    and come back when they register with a token of another key, or under the grant their own key
    is bound to, as `feltd enroll` makes it.
    """
    path = _path(data, file)

    def retired(ring: bytes) -> bytes:
        known = _known(path, ring)
        try:
            return keyring.retired(known, kid)
        except ValueError as error:
            raise StoreProblem(
                f"{path} {error}.", f"See `feltd signing-key list --keyring {path}`."
            ) from None

    _show(private.change(path, retired), as_json)
    if not as_json:
        click.echo("A running daemon follows within its next round.", err=True)


def _path(data: str, file: str | None) -> Path:
    return Config(data=data, keyring=file).keyring_path


def _read(path: Path) -> bytes:
    return _known(path, private.read(path))


def _known(path: Path, content: bytes) -> bytes:
    """What was read from a file, once it is known to be a keyring."""
    try:
        keyring.parse(content)
    except ValueError as error:
        raise StoreProblem(f"{path} {error}.", "Name the right file with --keyring.") from None
    return content


def _show(content: bytes, as_json: bool) -> None:
    rows = [{"kid": kid, "status": status} for kid, status in keyring.standings(content)]
    if as_json:
        say_json(rows)
    else:
        table(rows, COLUMNS, empty="no signing keys")
