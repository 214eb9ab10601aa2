"""`feltd worker run`: a worker over somebody's handlers, any program, a module or an address.

It needs FELTD_URL and FELTD_KEY, or FELTD_KEY_FILE, and nothing else; what it may do is in
the grant behind the key.
"""

import importlib
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any

import click

from feltd.cli.output import Examples
from feltd.cli.parse import DURATION, labels
from feltd.cli.worker_caps import caps_of, caps_options, require
from feltd.cli.worker_program import WHAT, program_of, program_options
from feltd.worker.desk import ANY
from feltd.worker.worker import Worker

LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


class Utc(logging.Formatter):
    """Log lines in UTC, as the daemon's are: two logs side by side need no time zone."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """The instant of a record, to the millisecond, with its Z."""
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@click.command(
    "run",
    cls=Examples,
    examples=(
        "FELTD_URL=http://127.0.0.1:7610 FELTD_KEY=$(cat worker.key) feltd worker run jobs:worker",
        "feltd worker run --exec 'jq .page' --concurrency 4 --name edge-1",
        "feltd worker run --wasm extract.wasm --definition extract --max-memory 64MiB",
        "FELTD_REMOTE_TOKEN=$(cat remote.token) feltd worker run --remote https://jobs.example/run",
    ),
)
@click.argument("target", metavar="[MODULE:HANDLERS]", required=False)
@program_options
@click.option("--name", help="The worker's name; this machine's name if not given.")
@click.option("--concurrency", type=click.IntRange(1, 1_024), help="As the grant has it.")
@click.option("--capability", "capabilities", multiple=True, help="As the grant has it.")
@click.option("--label", "pairs", multiple=True, help="key=value; may be repeated.")
@click.option("--on-drain", type=click.Choice(["exit", "park"]), help="Exit, if not given.")
@click.option(
    "--lease",
    type=DURATION,
    default=lambda: (
        f"{os.environ['FELTD_LEASE_MS']}ms" if os.environ.get("FELTD_LEASE_MS") else None
    ),
    help="How long work stays held unrenewed; FELTD_LEASE_MS, else 30s.",
)
@click.option("--grace", type=DURATION, help="How long work may finish after SIGTERM; 25s.")
@click.option("--channel", is_flag=True, help="Work over a WebSocket; by HTTP where there is none.")
@caps_options
@click.option("--quiet", is_flag=True, help="Log warnings only.")
def run(
    target: str | None, name: str | None, concurrency: int | None,
    capabilities: tuple[str, ...], pairs: tuple[str, ...], on_drain: str | None,
    lease: int | None, grace: int | None, channel: bool, quiet: bool, readable: tuple[str, ...],
    command: str | None, module: str | None, address: str | None,
    definitions: tuple[str, ...], **bounds: Any,
) -> int:  # fmt: skip
    """Run a worker until it is stopped or drained.

    HANDLERS is a Worker, a dictionary of handlers by definition, or one function, which then
    handles the definition of its name. With --exec: input on stdin, exit code 0 completes with
    stdout, 75 is transient, anything else fails with the end of stderr. It is told
    FELTD_WORKLOAD_ID, FELTD_ATTEMPT, FELTD_FENCING_TOKEN, FELTD_EXPIRES_AT_MS and
    FELTD_CHECKPOINT, a file: the last attempt's state if there is one; what it writes is kept.

    With --wasm: a WASI command, the same way, without files, network and checkpoint. With
    --remote: POST {claim, runtime_policy}, a 2xx answer is the output, 408, 425, 429 and 5xx are
    transient, DELETE URL/CLAIM_ID says that it shall stop; FELTD_REMOTE_TOKEN goes as the bearer.

    Bounds on memory, network and the like hold beside those of the claim, the tighter wins; what
    cannot be kept here is refused: policy_unenforceable. --wasm can keep to each of them, --exec
    to most, the others to a duration.

    Exit code 0: drained or told to stop; 1: refused; 3: another process took the name.
    """
    what = {"command": command, "module": module, "address": address}
    if sum(one is not None for one in (target, *what.values())) != 1:
        raise click.UsageError(WHAT)
    worker = _load(target) if target is not None else Worker()
    if not (worker.url or os.environ.get("FELTD_URL")):
        raise click.UsageError(
            "FELTD_URL is not set: give it the address that 'feltd serve' prints, such as "
            "http://127.0.0.1:7610"
        )
    caps = caps_of(**bounds)
    program = None
    if (found := program_of(caps, readable, **what)) is not None:
        program, worker.runtime = found
        worker.handlers.update(dict.fromkeys(definitions or (ANY,), program))
    elif definitions:
        raise click.UsageError("--definition goes with a program: handlers are named after theirs")
    require(program, caps, readable)
    worker.caps = caps
    for member, value in (
        ("name", name),
        ("concurrency", concurrency),
        ("capabilities", list(capabilities) or None),
        ("labels", labels(pairs) or None),
        ("on_drain", on_drain),
        ("lease_ms", lease),
        ("grace_ms", grace),
        ("channel", channel or None),
    ):
        if value is not None:
            setattr(worker, member, value)
    worker.check()
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(Utc(LOG_FORMAT))
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, handlers=[lines])
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    return worker.run()


def _load(target: str) -> Worker:
    """What MODULE:HANDLERS names, as a Worker."""
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise click.UsageError(f"{target!r}: write MODULE:HANDLERS, such as jobs:worker")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.split(".")[0] == error.name.split(".")[0]:
            raise click.UsageError(f"there is no module {error.name!r} here") from error
        raise
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise click.UsageError(f"{module_name} has no {attribute!r}")
        found = getattr(found, part)
    return _as_worker(target, attribute, found)


def _as_worker(target: str, attribute: str, found: Any) -> Worker:
    if isinstance(found, Worker):
        return found
    worker = Worker()
    if isinstance(found, dict) and found and all(callable(one) for one in found.values()):
        worker.handlers.update({str(name): handler for name, handler in found.items()})
        return worker
    if callable(found) and not isinstance(found, type):
        worker.handlers[attribute.rpartition(".")[2]] = found
        return worker
    raise click.UsageError(
        f"{target} is no Worker, no dictionary of handlers and no function, but {type(found)}"
    )
