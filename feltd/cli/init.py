"""`feltd init`: a new database, the signing keys beside it, and the first key."""

import secrets
from pathlib import Path

import click

from feltd.api.fresh import characters, key_material
from feltd.cli.output import Examples, json_option, say_json
from feltd.clock import Now, wall_ms
from feltd.config import Config
from feltd.config.credentials import KEYRING, credential
from feltd.daemon.place import HELD, take_lock
from feltd.identity import keyring, keys
from feltd.identity.principals import LOCAL
from feltd.mesh import events, ledger
from feltd.model.base import Ask
from feltd.model.key import CreateKey, KeyMade
from feltd.store import connect, migrate, private
from feltd.store.connect import StoreProblem
from feltd.store.lock import LockHeld
from feltd.store.tx import Tx


@click.command(
    cls=Examples,
    examples=(
        "feltd init --data feltd.db",
        "feltd init --if-missing --data /var/lib/feltd/feltd.db --key-file /etc/feltd/admin.key",
    ),
    short_help="Make a database, a keyring and an admin key.",
)
@click.option("--data", default="feltd.db", envvar="FELTD_DATA", help="the database file to make")
@click.option("--if-missing", is_flag=True, help="an existing database is left alone, exit 0")
@click.option("--key-file", type=click.Path(path_type=Path), help="write the key there, mode 0600")
@click.option("--keyring", "keyring_file", envvar="FELTD_KEYRING", help="signing keys to use")
@click.option("--namespace", default="default", envvar="FELTD_NAMESPACE", help="of the admin key")
@json_option
def init(
    data: str,
    if_missing: bool,
    key_file: Path | None,
    keyring_file: str | None,
    namespace: str,
    as_json: bool,
) -> int:
    """Make a database, signing keys (once a folder), and an admin key that may do everything.

    The key is printed once, or written to --key-file. An existing database is never touched.
    """
    signing = keyring_file or credential(KEYRING)
    config = Config(data=data, keyring=signing, namespace=namespace)
    path = config.path
    try:
        # Before the lock, which a running daemon has: there is nothing to make.
        if _is_there(path):
            return _exists(path, if_missing)
        with take_lock(path):
            if _is_there(path):
                return _exists(path, if_missing)
            if key_file is not None and key_file.exists():
                raise StoreProblem(f"{key_file} exists already.", "Name another --key-file.")
            make_keyring(config.keyring_path)
            made = make_database(path, namespace)
            if key_file is not None:
                private.create(key_file, made.secret.encode() + b"\n")
    except LockHeld as held:
        click.echo(f"error: {held}", err=True)
        return HELD
    _say(path, made, key_file, as_json)
    return 0


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _exists(path: Path, if_missing: bool) -> int:
    if if_missing:
        click.echo(f"{path} exists already", err=True)
        return 0
    raise StoreProblem(
        f"{path} exists already.", "Nothing was changed. Name another file with --data."
    )


def make_keyring(path: Path) -> None:
    """The signing keys, unless the folder has some: one ring serves every database in it."""
    if path.exists():
        keyring.parse(private.read(path))
        return
    private.create(path, keyring.render(characters(8), secrets.token_bytes(32)))


def make_database(path: Path, namespace: str) -> KeyMade:
    """The file with its schema, its ledger and the admin key; nothing is left when that fails."""
    conn = connect.open_local(path, read_only=False)
    try:
        migrate.apply(conn)
        conn.execute("BEGIN IMMEDIATE")
        tx, now = Tx(conn), Now(wall_ms(), wall_ms())
        ledger.begin(tx, f"instance_{characters(16)}", now)
        body = CreateKey(name="admin", scopes=("*",), namespaces=(namespace,), tenants=("*",))
        made = keys.create(tx, Ask(caller=LOCAL, body=body, fresh=key_material()), now)
        events.seal(tx, now)
        conn.execute("COMMIT")
    except BaseException:
        conn.close()
        # Ours alone: made above under the lock, served by nobody yet.
        for end in ("", "-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
        raise
    conn.close()
    return made


def _say(path: Path, made: KeyMade, key_file: Path | None, as_json: bool) -> None:
    if as_json:
        shown = {"database": str(path), "key_id": made.key_id}
        say_json(shown | ({"key_file": str(key_file)} if key_file else {"secret": made.secret}))
        return
    click.echo(f"database created: {path}")
    if key_file is not None:
        click.echo(f"API key created (id: {made.key_id}), written to {key_file}")
        return
    click.echo(f"API key created (id: {made.key_id}). This secret will not be shown again:")
    click.echo(made.secret)
