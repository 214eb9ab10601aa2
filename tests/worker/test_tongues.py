"""The workers of other tongues as files: small, and in the words their tongue had long ago."""

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from feltd.worker import alone
from tests.daemon.running import PATIENCE_S, Daemon
from tests.worker.crew import Crew

ALONE = Path(str(alone.__file__))
TONGUES = ALONE.with_name("tongues")
ALONE_LINES_MAX, TONGUE_LINES_MAX = 300, 80
#: What came into the standard library, or into its built-in types, after Python 3.8.
YOUNGER = {
    "removeprefix", "removesuffix", "cache", "to_thread", "TaskGroup", "timeout", "UTC", "batched",
    "pairwise", "bit_count", "add_note", "ExceptionGroup", "StrEnum", "anext", "aiter", "zoneinfo",
    "tomllib", "graphlib", "randbytes", "cancel_futures", "is_relative_to", "readlink", "walk",
}  # fmt: skip
#: Modules that Python 3.8 has.
OF_3_8 = {
    "__future__", "contextlib", "json", "os", "random", "signal", "subprocess", "sys", "threading",
    "time", "typing", "urllib.request",
}  # fmt: skip


def test_the_worker_in_one_file_is_short_and_speaks_python_3_8() -> None:
    text = ALONE.read_text()
    tree = ast.parse(text, feature_version=(3, 8))

    assert text.count("\n") < ALONE_LINES_MAX
    words = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    words |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not words & YOUNGER
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
               for alias in node.names}  # fmt: skip
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules <= OF_3_8


def test_what_python_3_8_cannot_evaluate_stands_in_annotations_alone() -> None:
    """`list[int]` and `X | Y` are text there, as annotations are never evaluated."""
    tree = ast.parse(ALONE.read_text())
    hints = {
        id(inner)
        for node in ast.walk(tree)
        for hint in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if isinstance(hint, ast.AST)
        for inner in ast.walk(hint)
    }
    evaluated = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if id(node) not in hints
        and isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("dict", "list", "tuple", "set", "type")
    ]
    assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__"
               for node in ast.walk(tree))  # fmt: skip
    assert not evaluated


@pytest.mark.parametrize("name", ["worker.sh", "worker.mjs", "worker.go"])
def test_a_worker_of_another_tongue_is_short_and_says_what_it_is(name: str) -> None:
    text = (TONGUES / name).read_text()

    assert text.count("\n") < TONGUE_LINES_MAX
    assert "FELTD_URL" in text
    assert "WORKLOAD_" not in text, "it goes by what comes next, not by codes"


def test_the_daemon_serves_the_worker_in_one_file_to_anybody(shared: Daemon) -> None:
    answer = shared.call("GET", "/client/worker.py", key="")

    assert answer.status == 200
    assert answer.body.encode() == ALONE.read_bytes()
    assert answer.headers["content-type"].startswith("text/x-python")


HANDLER = """
import sys
import worker

def handle(job):
    before = job.checkpoint_state or {"pages": 0}
    if not job.checkpoint_state:
        job.checkpoint({"pages": 3})
        raise ConnectionError("the printer is away")
    return {"pages": before["pages"], "attempt": job.attempt, "fence": job.fence}

sys.exit(worker.Worker(handle, name="alone").run())
"""


def test_it_is_taken_from_the_daemon_and_imported(crew: Crew, tmp_path: Path) -> None:
    served = crew.daemon.call("GET", "/client/worker.py", key="").body
    (tmp_path / "worker.py").write_text(served)
    (tmp_path / "mine.py").write_text(HANDLER)
    with (crew.folder / "alone.log").open("ab") as log:
        process = subprocess.Popen(
            (sys.executable, "-I", "-S", "-c", "import sys; sys.path[:0] = ['.']; import mine"),
            cwd=tmp_path, stderr=log, env={"FELTD_URL": crew.daemon.url, "FELTD_KEY": crew.key},
        )  # fmt: skip
    crew.processes["alone"] = process

    done = crew.final(crew.work("any", retry_policy={"initial_backoff_ms": 10}))

    assert done["result"]["output"]["pages"] == 3
    assert done["result"]["output"]["attempt"] == 2
    assert crew.ends(done["workload_id"]) == ["transient", "completed"]
    process.terminate()
    assert crew.ended(process) == 0
    assert crew.worker("alone")["offline_reason"] == "left"


STARTED = {
    "alone": (sys.executable, str(ALONE), "--exec", "true"),
    "sh": ("sh", str(TONGUES / "worker.sh"), "true"),
    "node": ("node", str(TONGUES / "worker.mjs"), "true"),
    "go": ("./worker", "true"),
}


@pytest.mark.parametrize(
    "name",
    [
        "alone",
        pytest.param("sh", marks=pytest.mark.needs("curl", "jq", "setsid")),
        pytest.param("node", marks=pytest.mark.needs("node")),
        pytest.param("go", marks=pytest.mark.needs("go")),
    ],
)
def test_told_to_stop_while_it_waits_for_a_daemon_it_ends(name: str, tmp_path: Path) -> None:
    if name == "go":
        subprocess.run(
            ("go", "build", "-o", "worker", str(TONGUES / "worker.go")), cwd=tmp_path, check=True
        )
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        nobody.settimeout(PATIENCE_S)
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        process = subprocess.Popen(
            STARTED[name], cwd=tmp_path, env=os.environ | {"FELTD_URL": url, "FELTD_KEY": "k"}
        )
        try:
            nobody.accept()[0].close()
            process.terminate()

            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()


def test_without_a_command_it_says_how_it_is_started() -> None:
    ran = subprocess.run(
        (sys.executable, str(ALONE), "--help"), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert "usage: FELTD_URL" in ran.stderr
