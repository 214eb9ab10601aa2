"""`feltd worker verify`: workers in five tongues pass it, and wrong ones fail where they are wrong.

A verification is mostly waiting: all that are asked for run beside each other, a few at a time.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from feltd.cli.verify.command import NAMES
from feltd.worker import alone
from tests.daemon.running import FELTD, PATIENCE_S, feltd

JOB = "$FELTD_JOB"
TOGETHER = 4
ALONE = Path(str(alone.__file__))
TONGUES = ALONE.with_name("tongues")
WRONG = Path(__file__).with_name("wrong.py")

#: Every worker that ships with feltd, and how it is started.
RIGHT = {
    "sdk": (*FELTD, "worker", "run", "--concurrency", "1", "--exec", JOB),
    "alone": (sys.executable, str(ALONE), "--exec", JOB),
    "sh": ("sh", str(TONGUES / "worker.sh"), JOB),
    "node": ("node", str(TONGUES / "worker.mjs"), JOB),
    "go": ("go-worker", JOB),
}
NEEDS = {"sh": ("curl", "jq", "setsid"), "node": ("node",), "go": ("go",)}

#: Each step of theirs is a process, or a slow start: these each time, all of them as a long run.
SHORTLY = ("sh", "node")
MATTERS_MOST = (
    "begins", "fails", "renews", "lost-replies", "sheds", "fence", "cancel", "reconcile",
    "register", "clock", "drain", "leave",
)  # fmt: skip

#: Ways to be wrong, what is tried, where each must fail, and a word of the reason.
FAULTS = {
    "IgnoresNext": (
        {
            "fence": "next: drop_claim",
            "reconcile": "next: reconcile",
            "register": "next: register",
            "drain": "next: stop",
            "takeover": "next: stop",
            "policy": "ignored runtime_policy",
        },
        ("begins",),
    ),
    "GoesOn": ({"fence": "next: drop_claim"}, ("begins", "renews", "drain")),
    "Careless": (
        {
            "renews": "not renewed",
            "lost-replies": "request_id",
            "sheds": "Retry-After",
            "takeover": "fought back",
            "leave": "SIGTERM",
        },
        ("begins", "fence", "drain"),
    ),
}


class Verifications:
    """The verifications of this run, each begun when there is room and asked for once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pool = ThreadPoolExecutor(TOGETHER)
        self.begun: dict[str, Future[dict[str, Any]]] = {}

    def begin(self, name: str) -> None:
        """Begin one."""
        tongue = name.removesuffix(" shortly")
        command = RIGHT.get(tongue) or (sys.executable, str(WRONG), name, "--exec", JOB)
        chosen: tuple[str, ...] = () if tongue == name else MATTERS_MOST
        if name in FAULTS:
            where, passes = FAULTS[name]
            chosen = (*where, *passes)
        only = tuple(word for one in chosen for word in ("--only", one))
        self.begun[name] = self.pool.submit(self._run, name, only, command)

    def _run(self, name: str, only: tuple[str, ...], command: tuple[str, ...]) -> dict[str, Any]:
        if name == "go":
            built = self.folder / "go-worker"
            source = str(TONGUES / "worker.go")
            subprocess.run(("go", "build", "-o", str(built), source), check=True)
            command = (str(built), *command[1:])
        ran = subprocess.run(
            (*FELTD, "worker", "verify", "--json", *only, "--", *command),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.stdout, ran.stderr
        told: dict[str, Any] = json.loads(ran.stdout)
        assert ran.returncode == (0 if told["passed"] else 1)
        return told


@pytest.fixture(scope="module")
def verified(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Verifications]:
    """What the selected tests of this file ask for, under way."""
    verifications = Verifications(tmp_path_factory.mktemp("verify"))
    for item in request.session.items:
        callspec = getattr(item, "callspec", None)
        if item.path == Path(__file__) and callspec is not None:
            name = callspec.params["name"]
            programs = [one for marker in item.iter_markers("needs") for one in marker.args]
            if all(map(shutil.which, programs)):
                verifications.begin(name)
    yield verifications
    verifications.pool.shutdown(cancel_futures=True)


def tongues(names: Iterable[str], *marks: pytest.MarkDecorator) -> list[Any]:
    """One parameter a tongue, marked with the programs it needs."""
    found = []
    for name in names:
        programs = NEEDS.get(name.removesuffix(" shortly"), ())
        needs = [pytest.mark.needs(*programs)] if programs else []
        found.append(pytest.param(name, marks=[*marks, *needs]))
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [
        *tongues(name for name in RIGHT if name not in SHORTLY),
        *tongues(SHORTLY, pytest.mark.soak),
    ],
)
def test_a_worker_that_ships_with_feltd_passes_everything(
    verified: Verifications, name: str
) -> None:
    told = verified.begun[name].result()

    assert [one["why"] for one in told["behaviours"] if not one["passed"]] == []
    assert [one["name"] for one in told["behaviours"]] == list(NAMES)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", tongues(f"{name} shortly" for name in SHORTLY))
def test_a_worker_in_a_slow_tongue_passes_what_matters_most(
    verified: Verifications, name: str
) -> None:
    told = verified.begun[name].result()

    assert [one["why"] for one in told["behaviours"] if not one["passed"]] == []
    assert [one["name"] for one in told["behaviours"]] == [
        name for name in NAMES if name in MATTERS_MOST
    ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    # One that is wrong in most ways each time; the others are long runs.
    [
        pytest.param(name, marks=() if name == "IgnoresNext" else pytest.mark.soak)
        for name in FAULTS
    ],
)
def test_a_wrong_worker_fails_where_it_is_wrong(verified: Verifications, name: str) -> None:
    where, _passes = FAULTS[name]

    told = verified.begun[name].result()

    failed = {one["name"]: one["why"] for one in told["behaviours"] if not one["passed"]}
    assert failed.keys() == where.keys(), failed
    for behaviour, word in where.items():
        assert word in failed[behaviour]


def test_a_program_that_is_no_worker_fails_at_once_and_says_why() -> None:
    ran = feltd("worker", "verify", "--only", "begins", "--only", "drain", "--", "sh", "-c", "no")

    assert ran.returncode == 1
    assert "it ended with exit code 127" in ran.stdout
    assert "not tried: it has to begin first" in ran.stdout
    assert "0 of 2 behaviours" in ran.stdout


def test_without_a_program_it_is_a_usage_error() -> None:
    assert feltd("worker", "verify").returncode == 2
    missing = feltd("worker", "verify", "--", "/no/such/program")
    assert missing.returncode == 2
    assert "there is no program /no/such/program" in missing.stderr
    assert feltd("worker", "verify", "--only", "nothing", "--", "true").returncode == 2


def test_told_to_end_it_leaves_nothing_behind(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    process = subprocess.Popen(
        (*FELTD, "worker", "verify", "--", "sh", "-c", 'echo $$ >"$0"; exec sleep 99', str(seen)),
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    ends = time.monotonic() + PATIENCE_S
    while not seen.exists() or not seen.read_text().strip():
        assert time.monotonic() < ends, "the program was never started"
        time.sleep(0.05)

    process.terminate()

    assert process.wait(PATIENCE_S) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(seen.read_text()), 0)
    assert list(tmp_path.iterdir()) == [seen]


def test_a_program_that_prints_without_end_does_not_fill_the_disk() -> None:
    ran = feltd("worker", "verify", "--only", "begins", "--", "sh", "-c", "exec cat /dev/zero")

    assert ran.returncode == 1
    assert "begins" in ran.stdout


def test_what_left_the_program_ends_with_the_verification(tmp_path: Path) -> None:
    """Not even a session of its own keeps a child from the end."""
    pid = tmp_path / "pid"
    program = f"setsid sh -c 'echo $$ > {pid}; exec sleep 300' & while [ ! -s {pid} ]; do :; done"
    feltd("worker", "verify", "--only", "begins", "--", "sh", "-c", program)

    assert not Path(f"/proc/{pid.read_text().strip()}/exe").exists()


def test_the_behaviours_are_listed_with_what_they_ask() -> None:
    listed = json.loads(feltd("worker", "verify", "--list", "--json").stdout)

    assert [one["name"] for one in listed] == list(NAMES)
    assert {one["next"] for one in listed} >= {
        "repeat", "drop_claim", "reconcile", "register", "fix_clock", "stop",
    }  # fmt: skip
    assert all(one["told"].endswith(".") for one in listed)
