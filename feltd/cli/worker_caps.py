"""What a worker allows the work it runs at most: its own words beside those of claims and grants.

The tighter wins in each member. A bound that cannot be kept on this machine is said at the start,
before a claim is taken and lost to it.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from feltd.cli.parse import DURATION
from feltd.model.base import INTEGER_MAX
from feltd.model.capping import capped
from feltd.model.grant import RuntimeCaps
from feltd.model.policy import RuntimePolicy
from feltd.worker.command import Program
from feltd.worker.runtimes.runtime import Unenforceable, require_inline

F = TypeVar("F", bound=Callable[..., Any])

_BYTES = {
    "": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip


class Size(click.ParamType[int]):
    """Memory as a number and a unit: 64MiB, 2GiB, 500MB; becomes bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,15})\s*([KMGT]?i?B?)", str(value).strip(), re.IGNORECASE)
        unit = None if match is None else _BYTES.get(match.group(2).upper())
        if match is None or unit is None or not 0 < int(match.group(1)) * unit <= INTEGER_MAX:
            self.fail(f"{value!r} is no size: write 64MiB, 2GiB or 500MB", param, ctx)
        return int(match.group(1)) * unit


OPTIONS = (
    click.option("--max-cpu", "max_cpu_millis", type=DURATION, help="Processor time of a claim."),
    click.option("--max-memory", "max_memory_bytes", type=Size(), help="Memory of a claim."),
    click.option("--max-duration", "max_duration_ms", type=DURATION, help="Time of a claim."),
    click.option(
        "--network", "network_policy", type=click.Choice(["none", "loopback", "inherit"]),
        help="The network that programs have at most.",
    ),
    click.option(
        "--filesystem", "filesystem_policy", type=click.Choice(["none", "scratch", "inherit"]),
        help="The files that programs have at most.",
    ),
    click.option(
        "--secrets", "secret_policy", type=click.Choice(["none", "inherit"]),
        help="none: programs get nothing of this environment.",
    ),
    click.option(
        "--readable", multiple=True, type=click.Path(exists=True, resolve_path=True),
        help="A path that programs without files may read; may be repeated.",
    ),
)  # fmt: skip


def caps_options(command: F) -> F:
    """The options by which a worker bounds what it runs."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def caps_of(**members: Any) -> RuntimeCaps | None:
    """The caps that these options say; None where they say nothing."""
    said = {name: value for name, value in members.items() if value is not None}
    for name in ("max_cpu_millis", "max_duration_ms"):
        if said.get(name) == 0:
            raise click.UsageError(f"--{name.split('_ms')[0].replace('_', '-')} must be over 0")
    return RuntimeCaps(**said) if said else None


def require(program: Program | None, caps: RuntimeCaps | None, readable: tuple[str, ...]) -> None:
    """A usage error where this process could keep to its own caps for no claim at all."""
    if "/" in readable:
        raise click.UsageError("--readable / leaves nothing to keep back: --filesystem inherit")
    tightest = capped(RuntimePolicy(), caps)
    try:
        if program is None:
            require_inline(tightest)
        else:
            program.runtime.require(tightest)
    except Unenforceable as error:
        raise click.UsageError(str(error)) from error
