"""`feltd events`: what happened, as it happens; to read, to pipe, or to hand to a program.

An event is acknowledged when its line is out or its program ended well, and the cursor file is
written after that and never before: whatever ends this process, the next one begins with the first
event that was not acknowledged. So an event may come twice, and never not at all.
"""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from feltd.cli.output import Examples, cell, when
from feltd.cli.remote import connect, remote
from feltd.worker.client import Client

#: sysexits' EX_TEMPFAIL: the program wants the same event again.
TEMPORARY = 75
PAUSE_S, PAUSE_MAX_S = 1.0, 60.0
#: How often the cursor is written while nothing but other kinds comes.
SKIPPED_EVERY_S = 1.0
#: A number of 2^53 has 16 digits.
DIGITS_MAX = 16


@click.command(
    "events",
    cls=Examples,
    examples=(
        "feltd events --data feltd.db",
        "feltd events --follow --after now --kind complete --kind fail",
        "feltd events --follow --exec ./notify.sh --cursor notify.cursor",
    ),
)
@click.option("--follow", is_flag=True, help="Go on with what comes, also over an outage.")
@click.option(
    "--after",
    metavar="N",
    help="Begin behind event N, or behind the newest: now. Not given: at the oldest kept.",
)
@click.option("--kind", "kinds", multiple=True, help="Only this verb; may be repeated.")
@click.option("--tenant", help="Only this tenant, where the key has several.")
@click.option(
    "--exec",
    "command",
    metavar="CMD",
    help="Run CMD for each event, its JSON on stdin. Exit 0 acknowledges it; 75: the same event "
    "again after a pause of 1 to 60 s; anything else: stop, exit 1, the event stays "
    "unacknowledged.",
)
@click.option(
    "--cursor",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep the last acknowledged number in FILE and begin behind it; --after then counts only "
    "while there is no FILE.",
)
@remote
def events(
    data: str | None, as_json: bool, follow: bool, after: str | None, kinds: tuple[str, ...],
    tenant: str | None, command: str | None, cursor: Path | None,
) -> None:  # fmt: skip
    """Print what happened, oldest first, none missing.

    With --json one JSON a line. With --exec nothing is printed; CMD runs through the shell and
    finds the number in FELTD_EVENT_SEQ, the verb in FELTD_EVENT_KIND. With --cursor a restart
    loses none: CMD may see the event at which it was interrupted once more.
    """
    place = None if cursor is None else Cursor(cursor)
    with connect(data, tenant=tenant) as client:
        begin = place.read() if place is not None else None
        if begin is None:
            begin = _begin(client, after)
        for event in client.events(begin, follow=follow):
            if kinds and event["kind"] not in kinds:
                if place is not None:
                    place.skip(event["seq"])
                continue
            if command is not None:
                hand_over(command, event)
            elif as_json:
                click.echo(msgspec.json.encode(event))
            else:
                click.echo(line(event))
            if place is not None:
                place.write(event["seq"])


def line(event: dict[str, Any]) -> str:
    """One event as a person reads it."""
    states = "→".join(state for state in (event.get("from"), event.get("to")) if state)
    token, until_ms = event.get("fencing_token"), event.get("eligible_at_ms")
    words = (
        event["kind"],
        states,
        event.get("end"),
        event.get("workload_id"),
        event.get("worker_id"),
        None if token is None else f"token {token}",
        None if until_ms is None or until_ms <= event["at_ms"] else f"not before {when(until_ms)}",
        None if event.get("actor") is None else f"by {event['actor']}",
    )
    shown = "  ".join(cell(word) for word in words if word)
    return f"{when(event['at_ms'])}  {event['seq']}  {shown}"


def hand_over(command: str, event: dict[str, Any]) -> None:
    """Run a program on one event until it takes it.

    Raises ClickException when it ends with anything but 0 and 75.
    """
    about = {"FELTD_EVENT_SEQ": str(event["seq"]), "FELTD_EVENT_KIND": event["kind"]}
    pause_s = PAUSE_S
    while True:
        ran = subprocess.run(
            command,
            shell=True,
            input=msgspec.json.encode(event) + b"\n",
            env=os.environ | about,
            check=False,
        )
        if ran.returncode == 0:
            return
        if ran.returncode != TEMPORARY:
            how = f"exit code {ran.returncode}"
            if ran.returncode < 0:
                how = f"signal {-ran.returncode}"
            raise click.ClickException(
                f"the command ended with {how} on event {event['seq']} ({event['kind']}), which "
                "stays unacknowledged"
            )
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, PAUSE_MAX_S)


class Cursor:
    """The file that holds the number of the last acknowledged event, whole at every moment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written_s = time.monotonic()

    def read(self) -> int | None:
        """The number, None without a file. Raises ClickException where it holds none."""
        try:
            text = self._path.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise click.ClickException(f"{self._path} cannot be read: {error.strerror}") from error
        if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
            raise click.ClickException(f"{self._path} holds no number of an event")
        return int(text)

    def write(self, seq: int) -> None:
        """Acknowledge everything up to `seq`; on disk when it returns."""
        beside = self._path.with_name(self._path.name + ".new")
        try:
            with beside.open("w", encoding="ascii") as file:
                file.write(f"{seq}\n")
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            told = f"{self._path} cannot be written: {error.strerror}"
            raise click.ClickException(told) from error
        self._written_s = time.monotonic()

    def skip(self, seq: int) -> None:
        """Note now and then what passed by, so that a restart has less to pass by again."""
        if time.monotonic() - self._written_s >= SKIPPED_EVERY_S:
            self.write(seq)


def _begin(client: Client, after: str | None) -> int | None:
    if after is None:
        return None
    if after == "now":
        head: int = client.call("GET", "/v1/events", query={"limit": 1})["head"]
        return head
    if not (after.isascii() and after.isdigit() and len(after) <= DIGITS_MAX):
        raise click.UsageError("--after takes the number of an event, or now")
    return int(after)
