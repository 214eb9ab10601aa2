"""A daemon with workers of its own: the grant that lets them work, programs, and work for them."""

import base64
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.daemon.running import PATIENCE_S, Daemon, Mesh, create

TENANT = {"X_Feltd_Tenant": "t"}
FINAL = ("COMPLETED", "DEAD_LETTERED", "CANCELLED")
_numbers = itertools.count()


def grant(daemon: Daemon, **constraints: Any) -> str:
    """Let the daemon execute for tenant t, application a; the grant's id."""
    made = daemon.post(
        "/v1/grants",
        {
            "subject": {"kind": "service", "id": "feltd-executor"},
            "tenant_id": "t",
            "application_id": "a",
            "capabilities": ["worker:register", "worker:capability:documents.extract"],
            "resources": [{"kind": "EXACT", "uri": "flow://a/workers/feltd"}],
            "constraints": constraints,
            "expires_at_ms": int(time.time() * 1000) + 86_400_000,
        },
    )
    return str(made["grant"]["id"])


def put(daemon: Daemon, collection: str, record_id: str, value: Any) -> Any:
    """Write a record of tenant t."""
    path = f"/v1/collections/{collection}/records/{record_id}"
    answer = daemon.call("PUT", path, value, **TENANT)
    assert answer.status < 300, answer
    return answer.body


def pipeline(daemon: Daemon, name: str, *steps: dict[str, Any]) -> None:
    """Write a pipeline program."""
    put(daemon, "_flow_capabilities", name, {"runtime": "pipeline", "steps": list(steps)})


def wasm(daemon: Daemon, name: str, module: bytes) -> None:
    """Write a WebAssembly program."""
    text = base64.b64encode(module).decode()
    put(daemon, "_flow_capabilities", name, {"runtime": "wasm", "module": text})


def ask(daemon: Daemon, mesh: Mesh, definition: str, given: Any = None, **body: Any) -> str:
    """Create work for a definition; its id."""
    body = {"capability_snapshot": [], **body, "definition_id": definition, "input": given}
    made = create(daemon, mesh, f"work-{next(_numbers)}", **body)
    return str(made["workload_id"])


def ended(daemon: Daemon, workload_id: str) -> dict[str, Any]:
    """The workload once it is final."""
    for _ in range(int(PATIENCE_S / 5)):
        shown = daemon.get(f"/v1/workloads/{workload_id}?wait_ms=5000")
        if shown["state"] in FINAL:
            return dict(shown)
    raise AssertionError(f"{workload_id} is {shown['state']}: {daemon.told()[-3000:]}")


def output(daemon: Daemon, workload_id: str) -> Any:
    """The output of work that went well."""
    shown = ended(daemon, workload_id)
    assert shown["state"] == "COMPLETED", (shown["state"], shown.get("failure"))
    return shown["result"]["output"]


def failure(daemon: Daemon, workload_id: str) -> str:
    """The message of a failure whose kind is execution_error."""
    shown = ended(daemon, workload_id)
    assert shown["state"] == "DEAD_LETTERED", shown["state"]
    assert shown["failure"]["kind"] == "execution_error"
    return str(shown["failure"]["message"])


def executor(daemon: Daemon) -> dict[str, Any] | None:
    """The worker of the daemon itself, as everybody sees it; None before there is one."""
    found = [one for one in daemon.get("/v1/workers")["items"] if one["name"] == "feltd"]
    return found[0] if found else None


def until(true: Callable[[], Any]) -> Any:
    """Ask again and again until it is so; what it was then."""
    ends = time.monotonic() + PATIENCE_S
    while not (found := true()):
        assert time.monotonic() < ends, "it never came to be"
        time.sleep(0.02)
    return found


def processes(daemon: Daemon) -> list[int]:
    """The processes that programs run in now."""
    found = []
    for place in Path("/proc").iterdir():
        if not place.name.isdecimal():
            continue
        try:
            words = (place / "cmdline").read_bytes()
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        if parent == daemon.pid and b"feltd.executor.child" in words:
            found.append(int(place.name))
    return found


def lives(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
