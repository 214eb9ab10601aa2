"""Where a command finds its daemon: FELTD_URL and FELTD_KEY, or `--data` and the local socket.

Every remote command takes the same options, so that what works here works from anywhere. The
local socket needs no key: whoever may open it is the operator of the machine.
"""

import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from feltd.api.listen import find_local_socket
from feltd.cli.alone import alone
from feltd.worker.client import Client

#: A person waits at a prompt: silence is told sooner than a worker would give up.
PATIENCE_MS = 5_000
DATA_DEFAULT = "feltd.db"

data_option = click.option(
    "--data",
    metavar="FILE",
    envvar="FELTD_DATA",
    help="Talk to the daemon that serves this database, through its local socket.",
)


class NotServed(click.ClickException):
    """No daemon serves the database that was named."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        """Say it on stderr, as every other error is said."""
        click.echo(f"error: {self.message}", file, err=True)


def connect(
    data: str | None, *, tenant: str | None = None, or_alone: bool = False
) -> AbstractContextManager[Client]:
    """A client of the daemon that serves `data`, or of the one at FELTD_URL.

    Without both: the daemon of ./feltd.db. A usage error where neither is there. With `or_alone` a
    database that nobody serves is served for the length of this command.
    """
    url = os.environ.get("FELTD_URL")
    if data is None and url:
        return Client(url, tenant=tenant, patience_ms=PATIENCE_MS)
    if data is None and Path(DATA_DEFAULT).exists():
        data = DATA_DEFAULT
    if data is None:
        raise click.UsageError(
            "which daemon? set FELTD_URL and FELTD_KEY, or give --data FILE for one on this machine"
        )
    path = find_local_socket(data)
    if not serves(path):
        if not Path(data).exists():
            raise NotServed(f"no database at {data}: run 'feltd init --data {data}'")
        if or_alone:
            return alone(data, tenant=tenant)
        raise NotServed(f"no daemon serves {data}\nnext: start it with 'feltd serve --data {data}'")
    return Client(socket=path, tenant=tenant, patience_ms=PATIENCE_MS)


def serves(path: str) -> bool:
    """Whether somebody listens on a local socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def remote(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options every remote command has: --data and --json."""
    flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    return data_option(flag(command))


def worker_named(client: Client, text: str) -> str:
    """The id of a worker that was named by its id or by its name."""
    if text.startswith("worker_"):
        return text
    found = [one["worker_id"] for one in client.workers() if one["name"] == text]
    if len(found) > 1:
        raise click.UsageError(f"{text!r} names {len(found)} workers: give an id")
    if not found:
        raise click.UsageError(f"no worker is called {text!r}: see feltd worker list")
    return str(found[0])
