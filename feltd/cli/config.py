"""`feltd config show`: the settings a daemon started here would have, and where each came from."""

from pathlib import Path
from typing import Any

import click
import msgspec

from feltd.cli.output import Examples, ExamplesGroup, json_option, say_json, table
from feltd.cli.settings import load_settings, setting_options
from feltd.model.secret_text import covered


@click.group(cls=ExamplesGroup, short_help="Show the settings.", examples=("feltd config show",))
def config() -> None:
    """Look at the settings of the daemon."""


@config.command(
    cls=Examples,
    examples=("feltd config show", "FELTD_PORT=0 feltd config show --config feltd.toml --json"),
)
@setting_options
@json_option
def show(config_file: Path | None, as_json: bool, **flags: Any) -> int:
    """Show each setting. Beside it: whether a flag, the environment or the file set it."""
    loaded = load_settings(config_file, flags)
    # No setting is a secret; an address may hold one all the same, and this is shown to others.
    values = {
        name: covered(value) if isinstance(value, str) else value
        for name, value in msgspec.to_builtins(loaded.config).items()
    }
    rows = [
        {"setting": name, "value": values[name], "from": source}
        for name, source in loaded.sources.items()
    ]
    if as_json:
        say_json(rows)
    else:
        columns = (("setting", "setting"), ("value", "value"), ("from", "from"))
        table(rows, columns, empty="no settings")
    return 0
