"""`feltd demo`: the main job on real input, with one worker killed and one stopped in the middle.

What it prints it has looked up; what it expects it has worked out itself, file by file. It fails
where the two differ, and leaves nothing behind.
"""

import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from feltd.cli import demo_fence, demo_work
from feltd.cli.demo_show import Show
from feltd.cli.demo_stage import APPLICATION, TENANT, Failed, Stage
from feltd.cli.ending import ended_as_by_ctrl_c
from feltd.cli.output import Examples, json_option

WORKERS = ("demo-1", "demo-2", "demo-3")
HANDLERS = "feltd.cli.demo_work:worker"
CONCURRENCY = 4
KINDS = ("hash", "summarise", "survey")
#: Slow enough to be killed in the middle, fast enough for a minute.
PACE_MS = 150
SURVEY_FILES = 14
#: However much the package grows, the demo stays within a minute, and a batch within its bound.
FILES_MAX = 250

Workload = dict[str, Any]


@click.command(
    cls=Examples, examples=("feltd demo", "feltd demo --fence", "feltd demo --keep ./demo-files")
)
@click.option("--fence", is_flag=True, help="Watch a late write refused where results go to.")
@click.option("--keep", metavar="DIR", help="Keep the database and the logs in this new folder.")
@json_option
@ended_as_by_ctrl_c()
def demo(fence: bool, keep: str | None, as_json: bool) -> int:
    """Watch feltd do its job: a daemon, three workers, real files, two faults. About 20 seconds.

    One worker is killed in the middle of a lease, one is stopped past its lease and continued. The
    exit code is 0 only if nothing was lost, the late write was refused and every promise held.

    With --fence, for whoever owns the place results go to: a worker stopped past its lease wakes
    and writes to two files, one behind a fence. The handler is feltd/cli/demo_sink.py.
    """
    folder = Path(keep) if keep else Path(tempfile.mkdtemp(prefix="feltd-demo-"))
    if keep:
        if folder.exists():
            raise click.UsageError(f"{keep} exists: name a folder that does not")
        folder.mkdir(parents=True, mode=0o700)
    show = Show(as_json)
    began = time.monotonic()
    try:
        with Stage(folder.absolute()) as stage:
            (demo_fence.play if fence else _play)(stage, show)
    finally:
        show.close()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    show.took(time.monotonic() - began, keep)
    return 0


def _play(stage: Stage, show: Show) -> None:
    stage.serve()
    show.head("A daemon on a file of its own, and three workers")
    show.fact("daemon", stage.url)
    key = stage.enrolled(KINDS)
    for name in WORKERS:
        stage.start_worker(name, key, CONCURRENCY, HANDLERS)
    stage.until(show, "workers are ready", lambda: len(_ready(stage)) == len(WORKERS))
    show.fact("workers", ", ".join(WORKERS))

    files = _files()
    small = [(kind, {"path": path}) for path in files for kind in KINDS[:2]]
    show.head(f"{len(small)} workloads: hash and summarise {len(files)} files")
    rate = _small_work(stage, show, small)

    groups = [files[place : place + SURVEY_FILES] for place in range(0, len(files), SURVEY_FILES)]
    show.head(f"{len(groups)} surveys with a checkpoint after each file, and two faults")
    surveys = _create(stage, [("survey", {"paths": one, "pace_ms": PACE_MS}) for one in groups])
    killed, stopped = _faults(stage, show, surveys)
    _late_write(stage, show, killed, stopped)
    _all_done(stage, show, len(small) + len(groups))

    show.head("What came of it")
    _results(stage, show, files, groups)
    show.fact("throughput", f"{rate:.0f} workloads a second, each on disk before it was answered")
    _endings(stage, show)


def _files() -> list[str]:
    """Files from all over the installed package, by their path within it."""
    root = demo_work.ROOT
    found = (path for path in root.rglob("*") if path.is_file())
    names = sorted(
        str(path.relative_to(root)) for path in found if path.suffix in (".py", ".sql", ".html")
    )
    return names[:: 1 + (len(names) - 1) // FILES_MAX]


def _create(stage: Stage, wanted: list[tuple[str, Any]]) -> list[str]:
    made = stage.client.create_batch(
        [
            {
                "tenant_id": TENANT,
                "application_id": APPLICATION,
                "definition_id": kind,
                "idempotency_key": f"{kind}/{place}",
                "input": given,
                "capability_snapshot": [kind],
                "retry_policy": {"max_attempts": 5, "initial_backoff_ms": 100},
            }
            for place, (kind, given) in enumerate(wanted)
        ],
        atomic=True,
    )
    refused = [one for one in made if "workload_id" not in one]
    if refused:
        raise Failed(f"a workload was refused: {refused[0]}")
    return [str(one["workload_id"]) for one in made]


def _small_work(stage: Stage, show: Show, small: list[tuple[str, Any]]) -> float:
    """Create it, watch it go, answer how many were done in a second."""
    began = time.monotonic()
    _create(stage, small)
    total = len(small)
    stage.until(
        show, "the small workloads are done",
        lambda: show.progress("hash, summarise", _count(stage, "COMPLETED"), total) >= total,
    )  # fmt: skip
    return total / (time.monotonic() - began)


def _faults(stage: Stage, show: Show, surveys: list[str]) -> tuple[Workload, Workload]:
    """Kill one worker and stop another, each in the middle of a survey that has a checkpoint."""
    names = {one["worker_id"]: one["name"] for one in stage.client.workers()}

    def held_by(name: str) -> Workload | None:
        for one in map(stage.client.workload, surveys):
            claim = one.get("current_claim") or {}
            if one["state"] == "CHECKPOINTED" and names.get(claim.get("worker_id")) == name:
                return dict(one)
        return None

    found: list[Workload] = []
    for name, number in (("demo-1", signal.SIGKILL), ("demo-2", signal.SIGSTOP)):
        held = _found(stage, show, f"{name} is in the middle of a survey", partial(held_by, name))
        stage.signal(name, number)
        done = (held.get("checkpoint") or {}).get("done", "?")
        show.fault(name, signal.Signals(number).name, held, done)
        found.append(held)
    return found[0], found[1]


def _late_write(stage: Stage, show: Show, killed: Workload, stopped: Workload) -> None:
    """Wait until others have the work, wake the stopped worker, and see its write refused."""

    def taken_over(before: Workload) -> bool:
        now = stage.client.workload(before["workload_id"])
        return bool(now["fencing_token"] > before["fencing_token"])

    stage.until(
        show, "the work of both is taken over",
        lambda: taken_over(killed) and taken_over(stopped),
    )  # fmt: skip
    for name, before in (("demo-1", killed), ("demo-2", stopped)):
        show.recovered(name, before, stage.client.workload(before["workload_id"]))
    stage.signal("demo-2", signal.SIGCONT)
    show.fact("demo-2", "continued by SIGCONT, its lease is long over")
    stage.until(show, "the late write is refused", lambda: bool(stage.noted()))
    late = stage.noted()[0]
    now = stage.client.workload(late["workload_id"])
    if late["code"] != "WORKLOAD_STALE_FENCE" or now["fencing_token"] <= late["token"]:
        raise Failed(f"the late write was not refused as stale: {late}")
    show.refused(late, now["fencing_token"])


def _all_done(stage: Stage, show: Show, total: int) -> None:
    stage.until(
        show, "everything is done",
        lambda: show.progress("all", _count(stage, "COMPLETED"), total) >= total,
    )  # fmt: skip


def _results(stage: Stage, show: Show, files: list[str], groups: list[list[str]]) -> None:
    """Compare every result with what the same files give when they are read here."""
    expected: dict[str, Any] = {path: demo_work.digest(demo_work.ROOT / path) for path in files}
    surveys = {one[0]: demo_work.surveyed(one) for one in groups}
    ends: dict[str, int] = {}
    hashed = surveyed = resumed = 0
    for listed in stage.client.pages("/v1/workloads", application_id=APPLICATION, limit=500):
        one = stage.client.workload(listed["workload_id"])
        output = (one.get("result") or {}).get("output") or {}
        if (
            one["definition_id"] == "hash"
            and output.get("sha256") == expected[one["input"]["path"]]
        ):
            hashed += 1
        if one["definition_id"] == "survey":
            surveyed += output.get("digest") == surveys[one["input"]["paths"][0]]
            resumed += output.get("resumed_at", 0) > 0
        for attempt in one["attempts"]:
            ends[attempt.get("end") or "live"] = ends.get(attempt.get("end") or "live", 0) + 1
    if hashed != len(files) or surveyed != len(groups):
        raise Failed(
            f"wrong results: {hashed}/{len(files)} hashes, {surveyed}/{len(groups)} surveys"
        )
    if not resumed:
        raise Failed("no survey went on from a checkpoint")
    show.fact("results", f"{hashed} hashes and {surveyed} surveys, each as worked out here")
    show.fact("resumed", f"{resumed} surveys went on from another worker's checkpoint")
    show.fact("attempts", ", ".join(f"{count} {end}" for end, count in sorted(ends.items())))


def _endings(stage: Stage, show: Show) -> None:
    """Everybody stops as asked, and the file holds every promise."""
    for name in WORKERS[1:]:
        code = stage.stop_worker(name)
        if code != 0:
            raise Failed(f"{name} ended with {code}:\n{stage.last_lines(name)}")
    show.fact("stopped", f"{' and '.join(WORKERS[1:])} drained themselves, exit code 0")
    code = stage.stop_daemon()
    if code != 0:
        raise Failed(f"the daemon ended with {code}:\n{stage.last_lines('daemon')}")
    code, said = stage.check()
    if code != 0:
        raise Failed(f"feltd check found broken promises:\n{said}")
    show.fact("feltd check", "every promise holds")


def _ready(stage: Stage) -> list[Workload]:
    return [one for one in stage.client.workers() if one["lifecycle"] in ("READY", "BUSY")]


def _count(stage: Stage, state: str) -> int:
    return len(stage.client.workloads(application_id=APPLICATION, state=state))


def _found(stage: Stage, show: Show, what: str, look: Callable[[], Workload | None]) -> Workload:
    """What `look` finds, once it finds something."""
    found: list[Workload] = []

    def done() -> bool:
        one = look()
        if one is not None:
            found.append(one)
        return one is not None

    stage.until(show, what, done)
    return found[0]
