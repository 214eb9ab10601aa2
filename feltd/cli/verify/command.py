"""`feltd worker verify`: runs a program as a worker through every behaviour, one verdict each."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import click

from feltd.cli.ending import ended_as_by_ctrl_c
from feltd.cli.output import Examples, say_json
from feltd.cli.verify import ending, working
from feltd.cli.verify.ground import Ground, end_left_behind, small_files
from feltd.cli.verify.play import Failed, Play, Stage
from feltd.cli.verify.wire import Wires

#: Behaviours under way at once: each is mostly waiting, and starts a process of the program.
TOGETHER = 8


class Behaviour(NamedTuple):
    """One thing a worker has to do. `alone`: it needs a daemon of its own, to be killed."""

    name: str
    act: Callable[[Play], None]
    next: str = ""
    alone: bool = False

    @property
    def told(self) -> str:
        """What happens, and what the worker has to do, in a line."""
        return (self.act.__doc__ or "").strip()


class Verdict(NamedTuple):
    """How the program did; `why` is empty where it passed."""

    name: str
    passed: bool
    why: str
    took_s: float


#: The first is tried alone: a program that cannot do that much fails the rest for no other reason.
BEHAVIOURS = (
    Behaviour("begins", working.begins),
    Behaviour("fails", working.fails),
    Behaviour("renews", working.renews),
    Behaviour("policy", working.policy),
    Behaviour("waits", working.waits),
    Behaviour("quarantine", working.quarantine),
    Behaviour("lost-replies", working.lost_replies, "repeat"),
    Behaviour("sheds", working.sheds, "repeat"),
    Behaviour("restart", working.restart, "repeat", alone=True),
    Behaviour("lapse", ending.lapse, "drop_claim"),
    Behaviour("fence", ending.fence, "drop_claim"),
    Behaviour("asleep", working.asleep, "drop_claim"),
    Behaviour("cancel", working.cancel),
    Behaviour("unknown-claim", working.unknown_claim),
    Behaviour("given", working.given),
    Behaviour("reconcile", working.reconcile, "reconcile"),
    Behaviour("register", working.register, "register"),
    Behaviour("clock", working.clock, "fix_clock"),
    Behaviour("drain", ending.drain, "stop"),
    Behaviour("leave", ending.leave),
    Behaviour("killed", ending.killed),
    Behaviour("takeover", ending.takeover, "stop"),
    Behaviour("revoke", ending.revoke, "stop"),
)
NAMES = tuple(behaviour.name for behaviour in BEHAVIOURS)
WIDTH = max(map(len, NAMES))


@click.command(
    "verify",
    cls=Examples,
    examples=(
        "feltd worker verify -- feltd worker run --exec '$FELTD_JOB'",
        "feltd worker verify --only sheds --only drain -- node worker.mjs '$FELTD_JOB'",
        "feltd worker verify --list",
    ),
)
@click.argument("command", metavar="-- CMD…", nargs=-1, type=click.UNPROCESSED)
@click.option("--only", multiple=True, type=click.Choice(NAMES), metavar="BEHAVIOUR",
              help="Try this one; may be repeated.")  # fmt: skip
@click.option("--list", "only_list", is_flag=True, help="List the behaviours, and try none.")
@click.option("--keep", metavar="DIR", help="Keep database, logs and output in this new folder.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(
    command: tuple[str, ...], only: tuple[str, ...], only_list: bool, keep: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Try whether a program is a correct worker, in whatever language it is written.

    CMD is started once for each behaviour, as a worker of its own, against a real daemon on a
    throw-away database and a wire between them that loses and sheds. What counts is what the
    daemon's rows and the wire saw, never what the program prints. Under a minute; exit code 0 if
    it passes everything, else 1.

    \b
    CMD is given in its environment
      FELTD_URL       the daemon's address
      FELTD_KEY       the key to register with, as 'feltd enroll' makes it
      FELTD_LEASE_MS  the lease_ms to ask for; they are short here
      FELTD_JOB       the work below as a shell command, for workers that run programs
    CMD has to
      register without heartbeat_interval_ms, and beat as often as the answer says
      run the definition "verify": input {"sleep_ms": n, "fail"?: kind, "say"?: text}:
      sleep for n ms, less when told to stop, and return the input; with "fail" end
      as failed instead, tried again if it is "transient", for good if it is "permanent",
      with "say" as the message
      keep to the claim's runtime_policy, or fail as "policy_unenforceable" before it begins
      end on SIGTERM, which the program itself has to get: a shell around it execs it,
      as in sh -c 'cd mine && exec ./worker'
    """
    if only_list:
        _list(as_json)
        return 0
    if not command:
        raise click.UsageError("give the program behind --, such as: -- node worker.mjs")
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"there is no program {command[0]}")
    chosen = [one for one in BEHAVIOURS if not only or one.name in only]
    show = Show(as_json)
    with ended_as_by_ctrl_c(), _folder(keep) as folder:
        verdicts = _run(command, chosen, folder, show)
    show.end(verdicts, keep)
    return 0 if all(verdict.passed for verdict in verdicts) else 1


class Show:
    """What a person reads while it goes on, or one JSON value at the end."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._began_s = time.monotonic()

    def verdict(self, verdict: Verdict, behaviour: Behaviour) -> None:
        """One line, as soon as it is known."""
        if self.as_json:
            return
        name = click.style(f"{verdict.name:<{WIDTH}}", bold=True)
        if verdict.passed:
            told = behaviour.told.partition("\n")[0]
            click.echo(
                f"{click.style('pass', fg='green')}  {name}  {verdict.took_s:4.1f} s  {told}"
            )
        else:
            mark = click.style("FAIL", fg="red")
            click.echo(f"{mark}  {name}  {verdict.took_s:4.1f} s  {verdict.why}")

    def end(self, verdicts: Sequence[Verdict], keep: str | None) -> None:
        """The sum."""
        took_s = time.monotonic() - self._began_s
        failed = [verdict.name for verdict in verdicts if not verdict.passed]
        if self.as_json:
            say_json(
                {
                    "passed": not failed,
                    "behaviours": [
                        {
                            "name": one.name,
                            "passed": one.passed,
                            "why": one.why or None,
                            "took_ms": int(one.took_s * 1000),
                        }
                        for one in verdicts
                    ],
                    "took_ms": int(took_s * 1000),
                }
            )
            return
        told = f"{len(verdicts) - len(failed)} of {len(verdicts)} behaviours in {took_s:.0f} s"
        click.echo(f"\n{told}" + (f"; not: {', '.join(failed)}" if failed else ""))
        if keep:
            click.echo(f"kept in {keep}")
        elif failed:
            click.echo("with --keep DIR, DIR/BEHAVIOUR.log is what the program printed")


def _list(as_json: bool) -> None:
    if as_json:
        say_json([{"name": one.name, "next": one.next, "told": one.told} for one in BEHAVIOURS])
        return
    for one in BEHAVIOURS:
        told = f"  (next: {one.next})" if one.next else ""
        click.echo(f"{one.name:<{WIDTH}}  {one.told}{told}")


@contextlib.contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    """The folder of a run; a temporary one is removed afterwards."""
    if keep and Path(keep).exists():
        raise click.UsageError(f"{keep} exists: name a folder that does not")
    folder = Path(keep) if keep else Path(tempfile.mkdtemp(prefix="feltd-verify-"))
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    try:
        yield folder.absolute()
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _run(
    command: Sequence[str], chosen: Sequence[Behaviour], folder: Path, show: Show
) -> list[Verdict]:
    """Every verdict, in the order of the list."""
    ground, wires = Ground(folder), Wires()
    stage = Stage(command, ground, wires, folder)
    try:
        with small_files():
            ground.start()
            return _tried(stage, chosen, show)
    finally:
        stage.end()
        end_left_behind(f"FELTD_JOB={stage.job}")
        ground.close()
        wires.close()


def _tried(stage: Stage, chosen: Sequence[Behaviour], show: Show) -> list[Verdict]:
    known: dict[str, Verdict] = {}

    def note(behaviour: Behaviour, verdict: Verdict) -> None:
        known[behaviour.name] = verdict
        show.verdict(verdict, behaviour)

    rest = list(chosen)
    if chosen[0] is BEHAVIOURS[0]:
        first = rest.pop(0)
        note(first, _judged(stage, first))
        if not known[first.name].passed:
            for behaviour in rest:
                why = "not tried: it has to begin first"
                note(behaviour, Verdict(behaviour.name, False, why, 0.0))
            rest = []
    with ThreadPoolExecutor(TOGETHER) as pool:
        under_way: dict[Future[Verdict], Behaviour] = {
            pool.submit(_judged, stage, behaviour): behaviour for behaviour in rest
        }
        try:
            while under_way:
                done, _ = wait(under_way, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    note(under_way.pop(future), future.result())
        finally:
            stage.over.set()
            pool.shutdown(cancel_futures=True)
    return [known[behaviour.name] for behaviour in chosen]


def _judged(stage: Stage, behaviour: Behaviour) -> Verdict:
    """Play one behaviour, on its own daemon where it kills it."""
    began_s = time.monotonic()
    ground = Ground(stage.folder / behaviour.name) if behaviour.alone else stage.ground
    why = ""
    try:
        if behaviour.alone:
            ground.start()
        with Play(stage, behaviour.name, ground=ground) as play:
            try:
                behaviour.act(play)
            except Failed as failed:
                said = play.program.last_words()
                why = str(failed) + (f" · it printed: {said}" if said else "")
    finally:
        if behaviour.alone:
            ground.close()
    return Verdict(behaviour.name, not why, why, time.monotonic() - began_s)
