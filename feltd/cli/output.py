"""How the command line speaks: tables on a terminal, plain text in pipes, JSON when asked.

Nothing here knows what a worker or a workload is. Ids, keys and tokens are never wrapped, cut or
coloured in a pipe, so that what is copied from one command fits into the next.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from feltd.errors import TABLE, Refused
from feltd.worker.refusal import Refusal, Unreachable

#: What a person does about each `next`.
STEPS = {
    "repeat": "run the command again in a moment",
    "wait": "wait until eligible_at_ms, then run the command again",
    "pull": "take other work",
    "drop_claim": "the claim has ended; look at the workload: feltd workload show ID",
    "reconcile": "the worker has to reconcile first: feltd worker recover ID",
    "register": "the worker has to register first: feltd worker run …",
    "fix_clock": "correct the clock of this machine",
    "fix_request": "correct the command",
    "stop": "use a key or a grant that allows it",
    "ask_operator": "look at feltd health, and at the daemon's log",
}

#: What fits better than the step of its `next`, which is written for the program that called.
STEPS_OF = {
    "GRANT_NOT_FOUND": "look for its id: feltd grants list",
    "KEY_NOT_FOUND": "look for its id: feltd keys list",
    "USER_NOT_FOUND": "look for the name: feltd users list",
    "USER_EXISTS": "take another name; see who has it: feltd users list",
    "LOGIN_THROTTLED": "wait as long as it says, then try again",
    "WORKER_NOT_FOUND": "look for its id or name: feltd worker list",
    "WORKLOAD_NOT_FOUND": "look for its id: feltd workload list",
    "WORKER_POOL_NOT_FOUND": "look for its id: feltd pool list",
    "HOLD_NOT_FOUND": "look for its id: feltd hold list",
    "TRIGGER_NOT_FOUND": "look for its id: feltd trigger list",
    "TRIGGER_UNAUTHORIZED": "use a key that is bound to a grant which covers the work: "
    "feltd keys create --grant GRANT",
    "TRIGGER_STATE_REPLAY_FAILED": "define it again with a start: feltd trigger define --input F",
    "PLACEMENT_NOT_FOUND": "look for its id: feltd placement list",
    "MESH_PLACEMENT_DENIED": "give it to another worker: feltd workload place ID --dry-run",
    "MESH_NO_ELIGIBLE_WORKER": "see what keeps each worker away: feltd workload place ID --dry-run",
    "CLAIM_NOT_FOUND": "look for its id: feltd claim list",
    "EVENTS_COMPACTED": "look at what stands now (feltd workload list), then follow --after now, "
    "without the old cursor file",
    "UNAUTHENTICATED": "give FELTD_KEY a key of this daemon that still works (feltd keys create)",
}

Column = tuple[str, str]

#: Characters of the widest row: ids and times take 250, the rest is somebody's text.
WIDTH_MAX = 10_000
#: Of foreign text, what JSON leaves as it is: control characters, and those that turn a line round
#: so that it reads as another.
_TURNING = (*range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
#: They could move the cursor or end a line.
CONTROLS = dict.fromkeys((*range(32), *_TURNING), " ")
#: How JSON may write them too.
ESCAPED = {code: f"\\u{code:04x}" for code in _TURNING}


class Examples(click.Command):
    """A command whose --help ends with examples as they are typed."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **named: Any) -> None:
        if examples:
            named["epilog"] = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples)
        super().__init__(*args, **named)


class ExamplesGroup(click.Group):
    """A group of commands whose --help ends with examples as they are typed."""

    command_class = Examples

    def __init__(self, *args: Any, examples: Sequence[str] = (), **named: Any) -> None:
        if examples:
            named["epilog"] = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples)
        super().__init__(*args, **named)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json: the answer as JSON on stdout, and nothing else there."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def on_terminal() -> bool:
    """Whether a person reads stdout."""
    return sys.stdout is not None and sys.stdout.isatty()


def forget_stdout() -> None:
    """After a broken pipe: what is still buffered, or said later, is thrown away without error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say_json(value: Any) -> None:
    """Print one JSON value, indented, members in the order they came."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    click.echo(text.translate(ESCAPED))


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column], *, empty: str) -> None:
    """Print rows: columns are (heading, member), a member may be dotted; `empty` goes to stderr."""
    cells = [[cell(member(row, path), path) for _heading, path in columns] for row in rows]
    if not cells:
        click.echo(empty, err=True)
        return
    headings = [heading for heading, _path in columns]
    if on_terminal():
        _rich_table(headings, cells)
        return
    click.echo("\t".join(headings))
    for line in cells:
        click.echo("\t".join(line))


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print (name, value) lines; absent values are left out.

    A name in _at_ms has its value shown as a time, so it loses the unit: `created at`.
    """
    shown = [
        (heading(name), cell(value, name))
        for name, value in pairs
        if value not in (None, "", [], {})
    ]
    width = max((len(name) for name, _text in shown), default=0)
    for name, text in shown:
        click.echo(f"{name:<{width}}  {text}" if on_terminal() else f"{name}\t{text}")


def heading(name: str) -> str:
    """What stands beside a value as `cell` shows it: instants are times there, no milliseconds."""
    return name.removesuffix("_ms").replace("_", " ") if name.endswith("_at_ms") else name


def member(row: Mapping[str, Any], path: str) -> Any:
    """The member of nested objects that a dotted path names, None where there is none."""
    value: Any = row
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def cell(value: Any, name: str = "") -> str:
    """One value as a person reads it; members that end in _at_ms are shown as UTC times."""
    if value is None:
        return "-" if on_terminal() else ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("_at_ms"):
        return when(value)
    if isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
        return ",".join(value).translate(CONTROLS)
    if isinstance(value, str):
        return value.translate(CONTROLS)
    if isinstance(value, int | float):
        return str(value)
    return msgspec.json.encode(value).decode().translate(ESCAPED)


def when(at_ms: int) -> str:
    """An instant in UTC, to the millisecond; what no calendar holds stays a number."""
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{at_ms % 1000:03d}Z"


def explain_failure(error: Exception) -> int | None:
    """Say on stderr why a command failed, and what helps; None where it is a fault of feltd."""
    if isinstance(error, Refusal):
        _refused(error.code, error.detail, error.next, error.facts)
        return 1
    if isinstance(error, Refused):
        _refused(error.code, error.detail, error.next, error.facts)
        return 1
    if isinstance(error, Unreachable):
        click.echo(f"UNREACHABLE: {error}", err=True)
        step = "start the daemon (feltd serve), or correct FELTD_URL or --data"
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            step = "name the certificate of its authority by SSL_CERT_FILE, or correct FELTD_URL"
        click.echo(f"next: {step}", err=True)
        return 1
    remedy = getattr(error, "remedy", None)
    if isinstance(remedy, str):
        click.echo(f"error: {error}", err=True)
        if remedy and remedy not in str(error):
            click.echo(f"next: {remedy}", err=True)
        return int(getattr(error, "exit_code", 1))
    if isinstance(error, ValueError | OSError):
        click.echo(f"error: {error}", err=True)
        return 1
    return None


def _refused(code: str, detail: str, next: str, known: Mapping[str, Any]) -> None:
    click.echo(f"{code}: {detail}".translate(CONTROLS), err=True)
    for one in known.get("errors") or ():
        # The sentence itself may be cut where its member's is not.
        told = f"{one.get('pointer')}: {one.get('detail')}" if isinstance(one, Mapping) else ""
        if told and not told.startswith(detail):
            click.echo(f"  at {one.get('pointer') or '/'}: {one.get('detail')}", err=True)
    reasons = known.get("reasons")
    for one in reasons if isinstance(reasons, list) else ():
        if isinstance(one, Mapping) and one.get("detail") not in (None, detail):
            click.echo(f"  {one.get('code')}: {one['detail']}", err=True)
    step = STEPS_OF.get(code) or STEPS.get(next, next)
    if detail.startswith("/tenant_id: is required"):
        step = "say whose it is: --tenant"
    if code == "UNAUTHENTICATED" and not os.environ.get("FELTD_KEY"):
        step = "FELTD_KEY is not set: give it a key of this daemon (feltd keys create)"
    click.echo(f"next: {step}" + (f" (see /errors/{code})" if code in TABLE else ""), err=True)


def _rich_table(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in headings:
        drawn.add_column(title, no_wrap=True)
    for line in cells:
        drawn.add_row(*(Text(text) for text in line))
    # A line for each row, however narrow the terminal: it may wrap a line, we never fold a cell.
    console = Console(width=WIDTH_MAX)
    with console.capture() as printed:
        console.print(drawn)
    for row in printed.get().splitlines():
        click.echo(row.rstrip())
