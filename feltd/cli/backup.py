"""`feltd backup`: a verified copy of everything, made beside a working daemon, and put back.

`create` and `list` ask the daemon; where none runs they do the same under its lock. `verify` and
`restore` open files themselves and need no daemon.
"""

import os
import secrets
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from feltd.api.listen import find_local_socket
from feltd.cli.backup_alone import create_alone, list_alone
from feltd.cli.output import ExamplesGroup, facts, json_option, say_json, table
from feltd.cli.remote import DATA_DEFAULT, connect, remote, serves
from feltd.config import Config
from feltd.daemon.place import HELD
from feltd.daemon.restoring import look, restore
from feltd.model.page import LIMIT_MAX
from feltd.store.lock import LockHeld

COLUMNS = (
    ("made", "created_at_ms"),
    ("commit", "sequence"),
    ("bytes", "bytes"),
    ("schema", "schema"),
    ("verified", "verified"),
    ("path", "path"),
)
#: A lost answer is no reason to begin anew, and a large file takes minutes.
PATIENCE_MS = 120_000
#: A log need not hear it more often, seconds.
QUIET_S = 10.0
NO_KEYRING = (
    "The signing keys are not in it: keep a copy of the keyring (signing.keyring) in another place."
)

OLD_AGAIN = (
    "Who may come in is as it was then: revoke and disable again what was revoked and disabled "
    "since, have passwords changed again. People log in anew."
)


@click.group(
    cls=ExamplesGroup,
    examples=(
        "feltd backup create --data feltd.db",
        "feltd backup list --data feltd.db",
        "feltd backup verify backups/feltd-20261130T020000Z-81234.db",
        "feltd backup restore backups/feltd-20261130T020000Z-81234.db --data new/feltd.db",
    ),
    short_help="Copy everything while it works; verify a copy; put one back.",
)
def backup() -> None:
    """Copy everything while it works; verify a copy; put one back."""


@backup.command(
    examples=(
        "feltd backup create --data feltd.db",
        "FELTD_URL=https://feltd.example FELTD_KEY=felt_s_… feltd backup create --json",
    )
)
@remote
@click.option("--backup-dir", envvar="FELTD_BACKUP_DIR", help="Without a daemon: the folder.")
@click.option("--backup-keep", type=click.IntRange(1, 500), help="Without a daemon: how many stay.")
def create(data: str | None, as_json: bool, backup_dir: str | None, backup_keep: int | None) -> int:
    """Copy the whole database into the backup folder, and verify the copy.

    Work goes on meanwhile. The copy has its name once every page was read and every promise asked.
    A running daemon does it, into its own --backup-dir, and goes on with it after Ctrl-C. Without
    one the database is held for the length of it, and is not changed: the two options are for then.
    """
    alone, progress = _alone(data), _Progress()
    try:
        if alone is not None:
            made = create_alone(alone, backup_dir, backup_keep, progress)
        else:
            made = _create_remote(data, progress)
    except LockHeld as held:
        click.echo(f"error: {held}", err=True)
        return HELD
    finally:
        progress.end()
    if as_json:
        say_json(made)
    else:
        facts((name, made[name]) for name in ("path", "bytes", "sha256", "sequence"))
        click.echo(NO_KEYRING, err=True)
    for one in made["broken"]:
        click.echo(f"BROKEN {one}", err=True)
    return 1 if made["broken"] else 0


@backup.command("list", examples=("feltd backup list --data feltd.db",))
@remote
@click.option("--backup-dir", envvar="FELTD_BACKUP_DIR", help="Without a daemon: the folder.")
def list_backups(data: str | None, as_json: bool, backup_dir: str | None) -> None:
    """Show the backups of a database, newest first."""
    alone = _alone(data)
    if alone is not None:
        found = list_alone(alone, backup_dir)
    else:
        with connect(data) as client:
            found = client.call("GET", "/v1/backups", query={"limit": LIMIT_MAX})
    if as_json:
        say_json(found)
        return
    rows = [{**one, "verified": one["verified_at_ms"] is not None} for one in found["items"]]
    table(rows, COLUMNS, empty=f"no backups in {found['folder']}")
    if found.get("running"):
        click.echo(f"at work: {_told(found['running'])}", err=True)


@backup.command(examples=("feltd backup verify backups/feltd-20261130T020000Z-81234.db",))
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def verify(file: Path, as_json: bool) -> int:
    """Read all of a backup: its checksum, every page, every promise, the audit chain.

    What is wrong is named, and the exit code is 1. Nothing is changed.
    """
    manifest, examined = look(file)
    shown = {
        "path": str(file.absolute()),
        "sequence": examined.found["commit_seq"],
        "schema": examined.schema,
        "sha256": None if manifest is None else manifest.sha256,
        "broken": examined.broken,
    }
    if as_json:
        say_json(shown | {"manifest": manifest is not None, "promises_asked": examined.asked})
    else:
        facts(shown.items())
        _remark(manifest is not None, examined.asked, examined.schema)
        click.echo("broken" if examined.broken else "whole")
    for one in examined.broken:
        click.echo(f"BROKEN {one}", err=True)
    return 1 if examined.broken else 0


@backup.command(
    "restore",
    examples=(
        "feltd backup restore backups/feltd-20261130T020000Z-81234.db --data new/feltd.db",
        "feltd backup restore F --data /var/lib/feltd/feltd.db --keyring signing.keyring",
    ),
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Where it shall be.")
@click.option("--keyring", "keyring_file", type=click.Path(path_type=Path), help="Signing keys.")
@json_option
def restore_backup(file: Path, data: Path, keyring_file: Path | None, as_json: bool) -> int:
    """Put a backup where there is no database, once all of it was verified.

    The next start ends the claims that lived when it was made (`restored`), has workers reconcile,
    and issues only greater fencing tokens than were ever issued. What was committed after the
    backup is lost. With the .mark of the lost database still beside the target nothing depends on
    the clock. An older schema is brought up to date by the start.
    """
    ring_path = Config(data=str(data)).keyring_path
    try:
        done = restore(file, data, keyring_file, ring_path)
    except LockHeld as held:
        click.echo(f"error: {held}", err=True)
        return HELD
    if as_json:
        say_json(done)
    else:
        facts(
            (name, getattr(done, name)) for name in ("path", "sequence", "created_at_ms", "schema")
        )
        click.echo(done.signing_keys)
        click.echo(OLD_AGAIN)
        click.echo(f"next: feltd serve --data {done.path}")
    for one in done.broken:
        click.echo(f"BROKEN {one}", err=True)
    return 0


def _alone(data: str | None) -> Path | None:
    """The database that nobody serves, None where a daemon is to be asked."""
    if data is None and os.environ.get("FELTD_URL"):
        return None
    path = Path(data or DATA_DEFAULT)
    if not path.exists() or serves(find_local_socket(str(path))):
        return None
    return path.absolute()


def _create_remote(data: str | None, progress: "_Progress") -> dict[str, Any]:
    """Ask until it is made; every time with the same key, so it is made once."""
    key = {"Idempotency-Key": secrets.token_hex(16)}
    with connect(data) as client:
        while True:
            answer: dict[str, Any] = client.call(
                "POST", "/v1/backups", headers=key, patience_ms=PATIENCE_MS
            )
            if answer.get("state") != "running":
                return answer
            progress(answer)


class _Progress:
    """How far a backup is, on stderr: one line on a terminal, in a log one every QUIET_S."""

    def __init__(self) -> None:
        self._said_s = 0.0
        self._phase = ""
        self._rewritten = sys.stderr is not None and sys.stderr.isatty()

    def __call__(self, at: dict[str, Any]) -> None:
        now_s = time.monotonic()
        if not self._rewritten and at["phase"] == self._phase and now_s - self._said_s < QUIET_S:
            return
        self._said_s, self._phase = now_s, at["phase"]
        click.echo(
            ("\r\x1b[K" if self._rewritten else "") + _told(at), err=True, nl=not self._rewritten
        )

    def end(self) -> None:
        """What follows begins a line."""
        if self._rewritten and self._phase:
            click.echo("\r\x1b[K", err=True, nl=False)


def _told(at: dict[str, Any]) -> str:
    took_s = max(0, int(time.time() - at["started_at_ms"] / 1_000))
    share = f"{100 * at['bytes'] // at['total_bytes']:>3} %" if at["bytes"] else ""
    told = f"{at['phase']:<7}{share:>5} after {timedelta(seconds=took_s)}"
    return f"{told}, write-ahead log {at['wal_bytes'] // 2**20} MiB" if at["wal_bytes"] else told


def _remark(manifest: bool, asked: bool, schema: int) -> None:
    if not manifest:
        click.echo("no manifest lies beside it: its checksum could not be compared", err=True)
    if not asked:
        click.echo(
            f"its schema {schema} is older than this feltd's: its promises are asked by "
            "'feltd check' once a start has brought it up to date",
            err=True,
        )
