"""A replica that is always at hand: Litestream as the daemon's child, and what must change for it.

Litestream ships the write-ahead log, so it alone checkpoints: the writer leaves that to it, but for
a log that grows while no Litestream runs. Two programs that checkpoint need an SQLite without the
WAL-reset fault; on any other the daemon does not start. The child lives no longer than the daemon,
and is ended after the last commit, so that it ships that too.
"""

import asyncio
import os
import re
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

from feltd.api.health import WAL_BYTES_MAX, Health, wal_reset_affected
from feltd.clock import Now
from feltd.config import Config
from feltd.mesh import secrets
from feltd.store.connect import StoreProblem
from feltd.store.neighbour import Neighbour
from feltd.store.tx import Tx
from feltd.store.writer import Writer

PROGRAM = "litestream"
URL = re.compile(r"[a-z][a-z0-9+]*://\S+")
#: A child that ends is begun again after the first, later after up to the second.
AGAIN_S = (1.0, 60.0)
#: One that ran for so long was well.
WELL_S = 10.0
#: An error it tells of stands in the health for so long after the last one.
ERROR_S = 60.0
#: How long it may take to ship the last commits at a stop.
LET_GO_S = 3.0
#: It dies with the daemon, whatever that dies of: another daemon would have two of them.
BEGIN = (
    "import ctypes, os, signal, sys;"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM);"
    "os.getppid() == int(sys.argv[1]) or os._exit(1);"
    "os.execv(sys.argv[2], sys.argv[2:])"
)
#: Its configuration comes by a pipe: nothing of it lies on the disk.
ARGUMENTS = ("replicate", "-config", "/dev/stdin", "-no-expand-env")

log = structlog.get_logger("feltd.replica")

Note = Callable[[Tx, Now], None]


class Replica:
    """The replica of one daemon; does nothing where none is wanted.

    Made before the database is opened. Raises StoreProblem, nothing touched, where it cannot be.
    """

    writer: Writer
    health: Health

    def __init__(self, config: Config) -> None:
        self._path = config.path
        self._url = "" if config.replica is None else replica_url(config.replica)
        self._program = find_program() if self._url else ""
        self._neighbour = Neighbour()
        self._process: asyncio.subprocess.Process | None = None

    def attach(self, writer: Writer, health: Health) -> None:
        """From here on the writer leaves checkpoints to the replica, where there is one."""
        self.writer, self.health = writer, health
        writer.leave_checkpoints(bool(self._url))

    def spared(self, note: Note) -> Note:
        """The hook for foreign writes, without those that are Litestream's."""
        if not self._url:
            return note

        def look(tx: Tx, now: Now) -> None:
            if not self._neighbour.wrote(tx):
                note(tx, now)

        return look

    async def run(self, stop: asyncio.Event) -> None:
        """Keep a child at work until the stop; it is still at work then."""
        if not self._url:
            return
        await self.writer.submit(_look, self._neighbour)
        stopping = asyncio.ensure_future(stop.wait())
        again_s, clock = AGAIN_S[0], asyncio.get_running_loop().time
        try:
            while not stop.is_set():
                began_s = clock()
                watching = asyncio.ensure_future(self._live())
                await asyncio.wait((watching, stopping), return_when=asyncio.FIRST_COMPLETED)
                if stop.is_set():
                    watching.cancel()
                    return
                self.health.note("REPLICA_FAILING", f"litestream ended: {watching.result()}")
                log.error("replica ended", detail=watching.result())
                again_s = AGAIN_S[0] if clock() - began_s > WELL_S else again_s
                await self._without(stopping, again_s)
                again_s = min(AGAIN_S[1], again_s * 2)
        finally:
            stopping.cancel()

    async def close(self) -> None:
        """After the last commit: let it ship that, and end it."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(LET_GO_S):
                await process.wait()
        except TimeoutError:
            log.warning("replica did not end in time", took_s=LET_GO_S)
            process.kill()
            await process.wait()

    async def _live(self) -> str:
        """One child, from its begin to its end; the last it said."""
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", BEGIN, str(os.getpid()), self._program, *ARGUMENTS,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
            umask=0o077,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(configuration(self._path, self._url))
        process.stdin.close()
        log.info("replica begun", url=secrets.redacted(self._url), pid=process.pid)
        well = asyncio.get_running_loop().call_later(WELL_S, self._is_well)
        said = ""
        try:
            async for line in process.stderr:
                level, told = _said(line)
                # It goes to the log and to /health, and litestream repeats its address.
                said = secrets.redacted(told)
                if level in ("ERROR", "WARN"):
                    log.warning("replica", said=said)
                if level == "ERROR":
                    self.health.note("REPLICA_FAILING", f"litestream: {said}")
                    well.cancel()
                    well = asyncio.get_running_loop().call_later(ERROR_S, self._is_well)
        except ValueError:
            said = "it said more in a line than can be read"
            process.kill()
        finally:
            well.cancel()
        return f"exit {await process.wait()}, {said or 'without a word'}"

    def _is_well(self) -> None:
        self.health.note("REPLICA_FAILING", None)

    async def _without(self, stopping: "asyncio.Future[Any]", for_s: float) -> None:
        """No child for so long: a log that has grown too large is shortened meanwhile."""
        if self.writer.wal_bytes > WAL_BYTES_MAX:
            self.writer.leave_checkpoints(False)
            await self.writer.checkpoint(truncate=True)
            self.writer.leave_checkpoints(True)
        await asyncio.wait((stopping,), timeout=for_s)


def find_program() -> str:
    """Where Litestream is, on an SQLite beside which it may work. Raises StoreProblem."""
    if wal_reset_affected(sqlite3.sqlite_version_info):
        raise StoreProblem(
            f"--replica needs an SQLite without the WAL-reset fault, and this is "
            f"{sqlite3.sqlite_version}: a second program that checkpoints, as Litestream does, "
            "can make it lose commits.",
            "Leave --replica out and make backups ('feltd backup create'), or run feltd on SQLite "
            "3.51.3, 3.50.7 or 3.44.6, or later ones of these.",
        )
    folder = Path(sys.executable).parent
    found = shutil.which(PROGRAM, path=f"{folder}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise StoreProblem(
            "--replica needs the program litestream, which is not there.",
            "Install it: pip install 'feltd[replica]'.",
        )
    return found


def replica_url(text: str) -> str:
    """A replica as Litestream takes it: a URL, or an absolute folder made one."""
    return text if URL.fullmatch(text) else Path(text).absolute().as_uri()


def configuration(path: Path, url: str) -> bytes:
    """Litestream's configuration, JSON being YAML; it never cuts the log short (store/guard)."""
    database = {"path": str(path), "truncate-page-n": 0, "replica": {"url": url}}
    logging = {"level": "info", "type": "json", "stderr": True}
    return msgspec.json.encode({"dbs": [database], "logging": logging})


def _look(tx: Tx, neighbour: Neighbour, now: Now) -> None:
    neighbour.wrote(tx)


def _environment() -> dict[str, str]:
    """Credentials of the store it writes to come by its own variables; ours are none of its."""
    return {name: text for name, text in os.environ.items() if not name.startswith("FELTD_")}


def _said(line: bytes) -> tuple[str, str]:
    """Level and message of a line of its log, the error behind it."""
    told: Any = None
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        told = msgspec.json.decode(line)
    if not isinstance(told, dict):
        return "WARN", line.decode(errors="replace").strip()
    error = told.get("error")
    return str(told.get("level", "")), f"{told.get('msg', '')}{f': {error}' if error else ''}"
