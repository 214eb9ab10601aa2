"""`feltd diagnostics`: everything that helps somebody else to understand this daemon, in one file.

No secret is in it, and nothing of anybody's work: it may be sent to whoever helps. Without a
daemon it holds what the files tell.
"""

import io
import os
import sqlite3
import tarfile
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from feltd import __version__
from feltd.cli.doctor import files
from feltd.cli.doctor.command import examine
from feltd.cli.output import Examples, say_json
from feltd.cli.remote import DATA_DEFAULT, connect, data_option
from feltd.clock import wall_ms
from feltd.store import private, sizes
from feltd.store.connect import StoreProblem
from feltd.worker.refusal import Refusal, Unreachable

#: A daemon whose storage hangs answers within twice four seconds.
ANSWER_S = 15.0


@click.command(
    cls=Examples,
    examples=(
        "feltd diagnostics --data feltd.db --out feltd-diagnostics.tar.gz",
        "feltd diagnostics --data feltd.db | jq .checkup",
    ),
    short_help="Pack what others need to help you.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.tar.gz",
    help="Write an archive (0600) instead of JSON on stdout; it replaces no file.",
)
@data_option
def diagnostics(data: str | None, out: Path | None) -> None:
    """Pack what others need to help you: health, settings, counts, log, schema, doctor's lines.

    Never a key, a password, or anything of the work. The log is the daemon's last lines.
    """
    found = collect(data)
    if out is None:
        say_json(found)
        return
    private.create(out, archive(found))
    click.echo(f"{out} written ({out.stat().st_size} bytes); it holds no secret", err=True)


def collect(data: str | None) -> dict[str, Any]:
    """The daemon's diagnostics, or what its files tell, with the doctor's lines as `doctor`."""
    found: dict[str, Any] = {}
    try:
        if data is not None or os.environ.get("FELTD_URL") or Path(DATA_DEFAULT).exists():
            with connect(data) as client:
                found = client.diagnostics(answer_s=ANSWER_S, patience_ms=0)
    except (Refusal, Unreachable, click.ClickException) as trouble:
        if data is None and os.environ.get("FELTD_URL"):
            raise
        found = _of_files(Path(data or DATA_DEFAULT).absolute())
        found["missing"]["daemon"] = str(trouble).partition("\n")[0]
    found["doctor"] = [one._asdict() for one in examine(data)]
    return found


def archive(found: dict[str, Any]) -> bytes:
    """The members of an archive, each a file that a person can read by itself."""
    found = dict(found)
    parts = {
        "doctor.txt": "\n".join(
            f"{one['level']:<4}  {one['check']:<12}  {one['seen']}"
            + (f"  -> {one['helps']}" if one["helps"] else "")
            for one in found.pop("doctor")
        ),
        "metrics.txt": found.pop("metrics", ""),
        "log.jsonl": "\n".join(found.pop("log", ())),
        "schema.sql": ";\n\n".join(found.pop("schema", None) or ()),
        "diagnostics.json": msgspec.json.format(msgspec.json.encode(found), indent=2).decode(),
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in parts.items():
            raw = text.encode() + b"\n"
            member = tarfile.TarInfo(f"feltd-diagnostics/{name}")
            member.size, member.mtime, member.mode = len(raw), int(time.time()), 0o600
            tar.addfile(member, io.BytesIO(raw))
    return packed.getvalue()


def _of_files(data: Path) -> dict[str, Any]:
    """What a file that no daemon answers for tells."""
    found: dict[str, Any] = {"at_ms": wall_ms(), "version": __version__, "missing": {}}
    wrong = files.identity(data)
    if wrong is not None:
        found["missing"]["database"] = wrong.seen
        return found
    try:
        found["checkup"] = files.look(data)
        inside = files.read(data, sizes.look)
        found |= {"rows": inside.rows, "pragmas": inside.pragmas, "schema": inside.schema}
    except (StoreProblem, Refusal, sqlite3.Error) as trouble:
        found["missing"]["rows"] = str(trouble)
    return found
