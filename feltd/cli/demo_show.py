"""What `feltd demo` prints: a live bar on a terminal, plain lines in a pipe.

Nothing is decided here; every number comes from the one who looked it up.
"""

from typing import Any

import click

from feltd.cli.output import on_terminal, say_json

NEXT = (
    "feltd init --data feltd.db --key-file admin.key",
    "feltd serve --data feltd.db &",
    "feltd enroll --data feltd.db --tenant acme --application docs --capability shout \\\n"
    "      --key-file worker.key",
    "FELTD_URL=http://127.0.0.1:7610 FELTD_KEY=$(cat worker.key) \\\n"
    "      feltd worker run --exec 'tr a-z A-Z' &",
    "feltd workload create shout --data feltd.db --tenant acme --application docs \\\n"
    "      --input '\"hello\"' --wait",
)
#: A pipe gets a line of progress at most each fourth part.
PARTS = 4


class Show:
    """Writes to stdout; on a terminal the bar of the part that runs is redrawn in place.

    With `as_json` it says nothing until `took`, which prints everything as one document.
    """

    def __init__(self, as_json: bool) -> None:
        self._quiet = as_json
        self._parts: list[dict[str, Any]] = []
        self._live: Any = None
        self._task: Any = None
        self._what = ""
        self._told = -1

    def head(self, text: str) -> None:
        """Begin a part."""
        self.settled()
        self._parts.append({"part": text, "found": []})
        if not self._quiet:
            click.echo()
            click.secho(text, bold=True)

    def fact(self, name: str, text: str) -> None:
        """One thing that was looked up."""
        self.settled()
        self._parts[-1]["found"].append({"what": name, "text": text})
        if not self._quiet:
            click.echo(f"  {name:<12} {text}")

    def took(self, seconds: float, kept: str | None) -> None:
        """How long it was, what is left of it, and five commands to try next."""
        if self._quiet:
            say_json({"parts": self._parts, "took_ms": int(seconds * 1000), "kept": kept})
            return
        left = "left nothing behind" if kept is None else f"kept its files in {kept}"
        click.echo(f"\nThe demo took {seconds:.0f} s and {left}.")
        click.echo()
        click.secho("Try next", bold=True)
        for command in NEXT:
            click.echo(f"  {command}")

    def progress(self, what: str, done: int, total: int) -> int:
        """Show how far a part is, and answer `done`."""
        if self._quiet:
            return done
        if on_terminal():
            self._draw(what, done, total)
        elif what != self._what or done * PARTS // max(total, 1) > self._told:
            self._what, self._told = what, done * PARTS // max(total, 1)
            click.echo(f"  {what}: {done}/{total}")
        return done

    def settled(self) -> None:
        """Leave the bar as it stands."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    close = settled

    def fault(self, name: str, signal: str, held: dict[str, Any], done: object) -> None:
        """A worker was killed or stopped in the middle of its work."""
        token = held["fencing_token"]
        self.fact(name, f"{signal} in the middle of a survey: {done} files done, token {token}")

    def recovered(self, name: str, before: dict[str, Any], now: dict[str, Any]) -> None:
        """Its work was given to somebody else."""
        ends = [
            attempt.get("end")
            for attempt in now["attempts"]
            if attempt["fencing_token"] == before["fencing_token"]
        ]
        self.fact(
            "recovered",
            f"the survey of {name} ({ends[0] if ends else 'ended'}): token "
            f"{before['fencing_token']} → {now['fencing_token']}",
        )

    def refused(self, late: dict[str, Any], token: int) -> None:
        """A superseded worker wrote, and was refused."""
        self.fact("late write", f"a checkpoint under token {late['token']}, the work is at {token}")
        self.fact("refused", f"{late['status']} {late['code']}: {late['detail']}")

    def _draw(self, what: str, done: int, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        if self._live is None:
            self._live = Progress(
                TextColumn("  {task.description:<16}"), BarColumn(), MofNCompleteColumn()
            )
            self._live.start()
            self._task = self._live.add_task(what, total=total)
        self._live.update(self._task, completed=done)
