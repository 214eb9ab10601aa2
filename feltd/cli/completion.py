"""`feltd completion`: the code a shell evaluates to complete commands and options."""

import click
from click.shell_completion import get_completion_class

from feltd.cli.output import Examples


@click.command(
    cls=Examples,
    examples=(
        'eval "$(feltd completion bash)"',
        "feltd completion fish > ~/.config/fish/completions/feltd.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print completion code for SHELL, to be evaluated by it."""
    from feltd.cli.main import cli

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(found(cli, {}, "feltd", "_FELTD_COMPLETE").source())
