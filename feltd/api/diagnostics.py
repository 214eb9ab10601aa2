"""Everything a person needs to understand a daemon he cannot log in to, in one answer.

It shows and changes nothing, is bounded in size and time, and a part that cannot be read (the
storage stalls) is left out and named: diagnostics are asked for when things are broken. Never a
secret, nor anything of the work itself.
"""

import os
import platform
import sys
from typing import Any

import msgspec
import structlog

from feltd import __version__
from feltd.api.metrics import free_bytes
from feltd.api.request import Reply, Request, reply
from feltd.api.routes import Route
from feltd.clock import wall_ms
from feltd.errors import Refused
from feltd.mesh import secrets
from feltd.model.diagnostics import Diagnostics, KeeperRecord, Place, RecentRefusal
from feltd.model.health import HealthAnswer
from feltd.state import checkup
from feltd.store import sizes

log = structlog.get_logger("feltd.api")

#: Of the whole request deadline; the answer must come while the storage hangs.
READ_MS_MAX = 4_000
#: Of the log, the newest lines that fit into this.
LOG_BYTES_MAX = 256 * 1024


async def get_diagnostics(request: Request) -> Reply:
    """GET /v1/diagnostics: one look for all who ask while it is taken."""
    return reply(200, await request.app.diagnosis.get())


async def diagnose(app: Any) -> Diagnostics:
    """Look at everything; at most twice READ_MS_MAX, whatever the storage does."""
    missing: dict[str, str] = {}
    read: dict[str, Any] = {}
    for name, rule in (("checkup", checkup.look), ("sizes", sizes.look)):
        try:
            read[name] = await app.readers.read(rule, None, READ_MS_MAX)
        except Refused as refused:
            missing[name] = f"{refused.code}: {refused.detail}"
        except Exception as error:
            # A row that no rule of ours can read: that is what the rest is asked for.
            log.warning("diagnostics lack a part", part=name, exc_info=True)
            missing[name] = f"INTERNAL: {type(error).__name__}; see `feltd check`"
    inside: sizes.Inside | None = read.get("sizes")
    await app.metrics.look()
    calls = app.stack.calls
    return Diagnostics(
        at_ms=wall_ms(),
        version=__version__,
        health=msgspec.convert(app.health.look(), HealthAnswer, from_attributes=True),
        config=_covered(msgspec.to_builtins(app.config)),
        config_from=dict(app.config_from),
        place=_place(app),
        keeper=_keeper(app.health.keeper),
        refusals=dict(calls.refusals),
        recent_refusals=[RecentRefusal(**one._asdict()) for one in calls.recent],
        log=_newest(app.log_lines()),
        metrics=app.metrics.text().decode(),
        missing=missing,
        checkup=read.get("checkup"),
        rows=None if inside is None else inside.rows,
        pragmas=None if inside is None else inside.pragmas,
        schema=None if inside is None else inside.schema,
    )


def _place(app: Any) -> Place:
    path, admission = app.config.path, app.stack.admission
    return Place(
        pid=os.getpid(),
        python=sys.version.split()[0],
        system=platform.platform(),
        data=str(path),
        keyring=str(app.config.keyring_path),
        backup_dir=str(getattr(app.config, "backup_path", path.parent / "backups")),
        wal_bytes=app.writer.wal_bytes,
        database_bytes=path.stat().st_size,
        disk_free_bytes=free_bytes(path),
        connections=app.connections(),
        in_flight=admission.in_flight,
        long_polls=admission.long_polls,
        streams=app.streams.open,
        writer_queue=app.writer.waiting,
    )


def _keeper(keeper: Any) -> dict[str, KeeperRecord]:
    records = {} if keeper is None else keeper.records
    return {
        name: KeeperRecord(
            last_ok_at_ms=one.last_ok_ms,
            failing=one.failing,
            failures=one.failures,
            changed=one.changed,
            trouble=one.trouble,
        )
        for name, one in records.items()
    }


def _covered(settings: dict[str, Any]) -> dict[str, Any]:
    """No setting is a secret; somebody may have put one into one all the same."""
    return {
        name: secrets.redacted(setting) if isinstance(setting, str) else setting
        for name, setting in settings.items()
    }


def _newest(lines: list[str]) -> list[str]:
    """The newest lines that fit, oldest first, with what looks like a secret covered."""
    kept: list[str] = []
    left = LOG_BYTES_MAX
    for line in reversed(lines):
        left -= len(line)
        if left < 0:
            break
        kept.append(secrets.redacted(line))
    return kept[::-1]


ROUTES = (
    Route(
        method="GET",
        path="/v1/diagnostics",
        operation="diagnose",
        tag="health",
        handler=get_diagnostics,
        summary="What the daemon knows of itself and what a person must know; nothing of the work",
        scope="daemon:operate",
        admission="exempt",
        answer=Diagnostics,
    ),
)
