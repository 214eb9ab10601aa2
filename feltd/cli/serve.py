"""`feltd serve`: run the daemon in the foreground until SIGTERM or Ctrl-C."""

import asyncio
from pathlib import Path
from typing import Any

import click

from feltd.api.listen import ListenProblem
from feltd.cli.output import Examples, forget_stdout
from feltd.cli.settings import load_settings, setting_options
from feltd.config import ConfigProblem, Loaded, hooks
from feltd.daemon.logs import begin_log
from feltd.daemon.place import HELD, no_database, take_lock
from feltd.daemon.run import Daemon
from feltd.store.lock import DataLock, LockHeld


@click.command(
    cls=Examples,
    examples=(
        "feltd serve --data feltd.db",
        "feltd serve --data /var/lib/feltd/feltd.db --port 0",
        "FELTD_MAX_IN_FLIGHT=128 feltd serve --config feltd.toml",
    ),
    short_help="Run the daemon.",
)
@setting_options
def serve(config_file: Path | None, **flags: Any) -> int:
    """Run the daemon.

    Each setting is also an environment variable (FELTD_<NAME>) and a line of the TOML file. Once
    connections are taken, one line on stdout names the address; the log is JSON on stderr.
    """
    loaded = load_settings(config_file, flags)
    config = loaded.config
    begin_log()
    if not config.path.exists() and not config.path.is_symlink():
        raise no_database(config.path)
    try:
        with take_lock(config.path) as lock:
            return asyncio.run(_serve(loaded, lock))
    except LockHeld as held:
        click.echo(f"error: {held}", err=True)
        return HELD
    except ListenProblem as problem:
        click.echo(f"error: {problem}", err=True)
        return 1
    except ConfigProblem as problem:
        raise click.UsageError(str(problem)) from None


async def _serve(loaded: Loaded, lock: DataLock) -> int:
    daemon = Daemon(loaded.config, hooks(), lock)
    daemon.config_from = loaded.sources
    return await daemon.run(_tell)


def _tell(url: str) -> None:
    try:
        click.echo(url)
    except BrokenPipeError:
        # Nobody wants to know it; it stands in the log, and is no reason to end.
        forget_stdout()
