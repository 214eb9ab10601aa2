"""`feltd top`: looks at a daemon every few seconds and draws what it sees, until q or Ctrl-C."""

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from feltd.cli.doctor.findings import span
from feltd.cli.output import Examples, on_terminal, say_json
from feltd.cli.parse import DURATION
from feltd.cli.remote import DATA_DEFAULT, connect, remote
from feltd.cli.top.sample import Look, Watch
from feltd.worker.refusal import Refusal, Unreachable
from feltd.worker.transport import shown

FOOT = "q ends; feltd doctor tells what is wrong, feltd why what waits"
#: A terminal that cannot say how large it is.
PLAIN_WIDTH, PLAIN_HEIGHT = 120, 60
EVERY_MS_MIN = 200


@click.command(
    cls=Examples,
    examples=(
        "feltd top --data feltd.db",
        "feltd top --every 5s",
        "feltd top --once",
        "feltd top --json | jq .oldest",
    ),
    short_help="The mesh on one screen, live.",
)
@click.option("--every", "every_ms", type=DURATION, default="2s", show_default=True)
@click.option("--once", is_flag=True, help="Print one look and end; so without a terminal.")
@remote
def top(data: str | None, as_json: bool, once: bool, every_ms: int) -> None:
    """Watch the mesh: what waits and why, what runs, how fast, on whom, and what goes wrong."""
    if every_ms < EVERY_MS_MIN:
        raise click.UsageError(f"--every is at least {EVERY_MS_MIN} ms")
    where = os.environ.get("FELTD_URL") if data is None else None
    with connect(data) as client:
        watch = Watch(client, shown(where) if where else str(data or DATA_DEFAULT))
        if as_json:
            say_json(watch.look())
        elif once or not (on_terminal() and sys.stdin is not None and sys.stdin.isatty()):
            _print(watch.look())
        else:
            _live(watch, every_ms / 1_000)


def _print(look: Look) -> None:
    """One look as plain lines."""
    from rich.console import Console

    from feltd.cli.top.screen import lines

    width = Console().width if on_terminal() else PLAIN_WIDTH
    for line in lines(look, width, PLAIN_HEIGHT + len(look.workers)):
        click.echo(line.plain.rstrip())


def _live(watch: Watch, every_s: float) -> None:
    """Draw until the person at the terminal has seen enough."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with (
        _keys() as wait,
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        silent_since_s: float | None = None
        last: Look | None = None
        while True:
            foot = FOOT
            try:
                last, silent_since_s = watch.look(), None
            except (Unreachable, Refusal) as trouble:
                silent_since_s = silent_since_s or time.monotonic()
                since = span((time.monotonic() - silent_since_s) * 1_000)
                foot = f"no answer for {since}: {trouble}"
            # The size is asked each time: people drag windows.
            live.update(_drawn(last, console, foot), refresh=True)
            if wait(every_s):
                return


def _drawn(look: Look | None, console: Any, foot: str) -> Any:
    from rich.text import Text

    from feltd.cli.top.screen import lines

    if look is None:
        return Text(foot)
    return Text("\n").join(lines(look, console.width, console.height, foot))


@contextmanager
def _keys() -> Iterator[Any]:
    """A wait that ends with True when q is typed; the terminal is as before afterwards."""
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)

    def wait(seconds: float) -> bool:
        ends_s = time.monotonic() + seconds
        while (left_s := ends_s - time.monotonic()) > 0:
            ready, _, _ = select.select([handle], [], [], left_s)
            if ready and os.read(handle, 64).lower()[:1] in (b"q", b"\x04", b""):
                return True
        return False

    tty.setcbreak(handle)
    try:
        yield wait
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
