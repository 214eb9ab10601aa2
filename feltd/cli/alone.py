"""A daemon for the length of one command, where none runs: the same rules under the same lock.

Keys and grants can so be made before the first start. It listens on loopback for nobody and on the
local socket for this command, and ends with it.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from feltd.api.listen import find_local_socket
from feltd.cli.ending import ended_as_by_ctrl_c
from feltd.worker.client import Client

START_S = 60.0
STOP_S = 15.0
#: Settings that say whose database it is; the others are those of a daemon that serves the world.
KEPT = ("FELTD_KEYRING", "FELTD_NAMESPACE")


@contextmanager
def alone(data: str, *, tenant: str | None = None) -> Iterator[Client]:
    """A client of a daemon started for it; where that cannot start, the command ends as it did."""
    with ended_as_by_ctrl_c():
        process = subprocess.Popen(
            [sys.executable, "-m", "feltd", "serve", "--data", data, "--port", "0"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=_environment(), start_new_session=True,
        )  # fmt: skip
        try:
            _await(process)
            with Client(socket=find_local_socket(data), tenant=tenant) as client:
                yield client
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def _environment() -> dict[str, str]:
    # The store comes with it: a command that finds its daemon has no use for it.
    from feltd.daemon.place import ALONE

    kept = {
        name: text
        for name, text in os.environ.items()
        if name in KEPT or not name.startswith("FELTD_")
    }
    return kept | {ALONE: "1"}


def _await(process: subprocess.Popen[bytes]) -> None:
    """Until it listens."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_S)
    if ready and process.stdout.readline().startswith(b"http"):
        return
    ends = time.monotonic() + STOP_S
    while process.poll() is None and time.monotonic() < ends:
        time.sleep(0.02)
    said = b"" if process.stderr is None or process.poll() is None else process.stderr.read()
    lines = [line for line in said.decode(errors="replace").splitlines() if line[:1] != "{"]
    reason = "\n".join(lines) or "error: the database could not be opened in time"
    click.echo(reason, err=True)
    raise click.exceptions.Exit(process.returncode or 1)
