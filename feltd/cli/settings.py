"""The flags of the daemon, made from the table of settings: neither can forget the other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from feltd.config import ConfigProblem, Loaded, load, settings


def setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --config and one flag for each setting; what is not given stays out of `flags`."""
    for one in reversed(settings()):
        told = one.reason
        if one.choices:
            told += f" ({' or '.join(one.choices)})"
        if one.kind is bool:
            option = click.option(one.flag, one.name, is_flag=True, default=None, help=told)
        elif one.kind is tuple:
            option = click.option(one.flag, one.name, multiple=True, metavar="TEXT", help=told)
        else:
            shown = "" if one.default is None else f" [default: {one.default}]"
            option = click.option(one.flag, one.name, default=None, help=told + shown)
        command = option(command)
    return click.option(
        "--config",
        "config_file",
        envvar="FELTD_CONFIG",
        type=click.Path(path_type=Path),
        help="a TOML file of settings",
    )(command)


def load_settings(config_file: Path | None, flags: dict[str, Any]) -> Loaded:
    """The settings of this command line; what is wrong with them is a usage error (exit 2)."""
    given = {name: flag for name, flag in flags.items() if flag not in (None, ())}
    try:
        return load(given, file=config_file)
    except ConfigProblem as problem:
        raise click.UsageError(str(problem)) from None
