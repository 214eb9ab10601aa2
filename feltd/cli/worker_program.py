"""What a worker runs that has no handlers of Python: a command, a WebAssembly module, an address.

Each is a runtime behind one handler. What could run no claim at all is said here, at the start.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from feltd.model.grant import RuntimeCaps
from feltd.worker.command import Command, Program
from feltd.worker.failures import Permanent, Transient
from feltd.worker.runtimes.limits import MODULE_BYTES_MAX
from feltd.worker.runtimes.remote import RemoteRuntime
from feltd.worker.runtimes.wasm import WasmRuntime

F = TypeVar("F", bound=Callable[..., Any])

WHAT = "give one of MODULE:HANDLERS, --exec CMD, --wasm FILE and --remote URL"
OPTIONS = (
    click.option("--exec", "command", metavar="CMD", help="Run this program for each workload."),
    click.option(
        "--wasm", "module", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
        help="Run this WASI module for each workload.",
    ),
    click.option(
        "--remote", "address", metavar="URL", help="POST each claim to this address."
    ),
    click.option(
        "--definition", "definitions", metavar="NAME", multiple=True,
        help="The program takes work of this definition only; may be repeated. Not given: of any.",
    ),
)  # fmt: skip


def program_options(command: F) -> F:
    """The options that name what is run instead of handlers."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def program_of(
    caps: RuntimeCaps | None,
    readable: tuple[str, ...],
    *,
    command: str | None,
    module: str | None,
    address: str | None,
) -> tuple[Program, str] | None:
    """The program that these options name, with its runtime's kind; None where they name none.

    A usage error for a module that is no command, and for an address that no claim may go to.
    """
    if command is not None:
        return Command(command, caps, readable), "process"
    if readable and (module is not None or address is not None):
        raise click.UsageError("--readable goes with --exec: nothing else here reads files")
    if module is not None:
        return Program(_wasm(module), caps), "wasm"
    if address is None:
        return None
    try:
        runtime = RemoteRuntime(address, os.environ.get("FELTD_REMOTE_TOKEN"))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return Program(runtime, caps), "remote"


def _wasm(path: str) -> WasmRuntime:
    """The module, compiled: a wrong one would take all the work and end it."""
    with open(path, "rb") as file:
        runtime = WasmRuntime(file.read(MODULE_BYTES_MAX + 1))
    try:
        asyncio.run(runtime.ready())
    except (Permanent, Transient) as error:
        raise click.UsageError(f"{path}: {error}") from error
    return runtime
