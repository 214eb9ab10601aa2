"""`feltd`: the table of commands, and the one place where an error becomes a line and an exit code.

A command is imported when it is asked for, so that `feltd --help` is quick and one broken corner
does not take the rest along. Exit codes: 0 done, 1 refused or failed, 2 usage, 3 another process
took the worker's name, 75 the file is held.
"""

import importlib
import sys
from typing import NamedTuple

import click

from feltd import __version__
from feltd.cli.output import explain_failure, forget_stdout

USAGE = 2
FAILED = 1


class Entry(NamedTuple):
    """One command: where it stands, and its line in the overview."""

    target: str
    short: str


COMMANDS: dict[str, Entry] = {
    "init": Entry("feltd.cli.init:init", "Make a database, a keyring and an admin key."),
    "serve": Entry("feltd.cli.serve:serve", "Run the daemon."),
    "demo": Entry("feltd.cli.demo:demo", "Watch the main job on real input, in under a minute."),
    "enroll": Entry("feltd.cli.enroll:enroll", "Make all that a worker process needs: one key."),
    "worker": Entry("feltd.cli.worker:worker", "Run a worker; list, drain, recover workers."),
    "workload": Entry("feltd.cli.workload:workload", "Create, watch, cancel, requeue work."),
    "group": Entry("feltd.cli.group:group", "See, await, seal and cancel groups of work."),
    "why": Entry("feltd.cli.why:why", "Why work waits or a worker idles, and what helps."),
    "backlog": Entry("feltd.cli.why:backlog", "Count what waits, kind by kind."),
    "claim": Entry("feltd.cli.claim:claim", "See who holds what; take it away."),
    "events": Entry("feltd.cli.events:events", "What happens, as it happens; for each, a program."),
    "audit": Entry("feltd.cli.audit:audit", "Who did what, and when."),
    "pool": Entry("feltd.cli.pool:pool", "Make pools of workers, with a ceiling."),
    "hold": Entry("feltd.cli.hold:hold", "Keep work from being claimed; let it go again."),
    "trigger": Entry("feltd.cli.trigger:trigger", "Have changes, or the clock, make work."),
    "placement": Entry("feltd.cli.placement:placement", "See why given work went to whom it went."),
    "keys": Entry("feltd.cli.keys:keys", "Make and end API keys."),
    "signing-key": Entry(
        "feltd.cli.signing_key:signing_key", "List, rotate, retire the keys that sign grants."
    ),
    "users": Entry("feltd.cli.users:users", "Make and disable people; give them roles."),
    "grants": Entry("feltd.cli.grants:grants", "Issue and end grants."),
    "health": Entry("feltd.cli.health:health", "What the daemon says of itself."),
    "top": Entry("feltd.cli.top.command:top", "The mesh on one screen, live."),
    "diagnostics": Entry("feltd.cli.diagnostics:diagnostics", "Pack what others need to help you."),
    "doctor": Entry("feltd.cli.doctor.command:doctor", "Look at everything that may be wrong."),
    "check": Entry("feltd.cli.check:check", "Test every promise against the file."),
    "sql": Entry("feltd.cli.sql:sql", "Ask the file in SQL, or one of 20 questions."),
    "compact": Entry("feltd.cli.compact:compact", "Clear what is past its time now."),
    "backup": Entry("feltd.cli.backup:backup", "Copy everything; verify a copy; put one back."),
    "migrate": Entry("feltd.cli.migrate:migrate", "Bring a database to this version."),
    "config": Entry("feltd.cli.config:config", "Show the settings and where each came from."),
    "bench": Entry("feltd.cli.bench:bench", "Measure this disk and this machine, in 20 seconds."),
    "man": Entry("feltd.cli.man:man", "Print the manual page."),
    "completion": Entry("feltd.cli.completion:completion", "Print completion code for a shell."),
}

EXAMPLES = """\b
Examples:
  feltd demo
  feltd init --data feltd.db --key-file admin.key
  feltd serve --data feltd.db
  feltd worker list --data feltd.db

Commands that talk to a daemon find it by FELTD_URL and FELTD_KEY, or by --data FILE through
the local socket of the daemon that serves the file."""


class Commands(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.short) for name, entry in COMMANDS.items()])


@click.group(
    cls=Commands,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="feltd")
def cli() -> None:
    """feltd hands out durable work to processes anywhere, under a lease and a fencing token."""


def main() -> None:
    """Run the command line and end the process with the exit code it earned."""
    sys.exit(run())


def run(arguments: list[str] | None = None) -> int:
    """Run one command and answer its exit code; everything it says is on stdout and stderr."""
    try:
        ended = cli.main(args=arguments, prog_name="feltd", standalone_mode=False)
        if sys.stdout is not None:  # closed by whoever started this process
            sys.stdout.flush()
    except click.UsageError as error:
        error.show()
        return USAGE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        forget_stdout()
        return FAILED
    except Exception as error:
        code = explain_failure(error)
        if code is None:
            raise
        return code
    return ended if isinstance(ended, int) else 0
