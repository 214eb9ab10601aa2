"""Runtimes from the creation of the work to the end of its attempt: a real daemon, real workers."""

from typing import Any

from tests.worker import modules
from tests.worker.crew import Crew
from tests.worker.remotes import serving

ONCE = {"max_attempts": 1}


def ended(crew: Crew, **policy: Any) -> tuple[str, str]:
    """How the one attempt of a workload under this policy failed: kind and message."""
    done = crew.final(crew.work("anything", runtime_policy=policy, retry_policy=ONCE))
    return done["failure"]["kind"], done["failure"]["message"]


@modules.needs_wasm
def test_a_worker_of_modules_runs_them_within_its_bounds_and_the_claims(crew: Crew) -> None:
    echo, spin = crew.folder / "echo.wasm", crew.folder / "spin.wasm"
    echo.write_bytes(modules.module(modules.ECHO))
    spin.write_bytes(modules.module(modules.SPIN))
    policy = {"network_policy": "none", "filesystem_policy": "none", "secret_policy": "none"}

    process = crew.start("echoes", "--wasm", str(echo))
    done = crew.final(crew.work("anything", {"page": 7}, runtime_policy=policy))
    process.terminate()
    assert crew.ended(process) == 0
    assert (done["state"], done["result"]["output"]) == ("COMPLETED", {"page": 7})
    assert crew.worker("echoes")["runtime"] == "wasm"

    other = crew.work("somebody.elses")
    crew.start("spins", "--wasm", str(spin), "--max-cpu", "200ms", "--definition", "anything")
    assert ended(crew)[0] == "cpu_limit"
    assert crew.worker("spins")["workload_kinds"] == ["anything"]
    assert crew.client.workload(other)["state"] == "READY"
    assert ended(crew, max_duration_ms=50)[0] == "timeout"


def test_a_worker_of_an_address_hands_claims_on_and_hears_of_their_end(crew: Crew) -> None:
    with serving() as remote:
        process = crew.start("echoes", "--remote", f"{remote.url}/echo", FELTD_REMOTE_TOKEN="t0ken")
        done = crew.final(crew.work("anything", {"page": 7}))
        assert (done["state"], done["result"]["output"]) == ("COMPLETED", {"page": 7})
        assert remote.heard[0].headers["Authorization"] == "Bearer t0ken"
        assert ended(crew, max_memory_bytes=1_000_000)[0] == "policy_unenforceable"
        process.terminate()
        assert crew.ended(process) == 0
        assert crew.worker("echoes")["runtime"] == "remote"

    with serving() as remote:
        crew.start("sleeps", "--remote", f"{remote.url}/sleep", "--lease", "1s")
        workload_id = crew.work("anything")
        claim_id = remote.until("POST").body["claim"]["claim_id"]
        crew.client.cancel(workload_id)
        assert crew.final(workload_id)["state"] == "CANCELLED"
        assert remote.until("DELETE").path == f"/sleep/{claim_id}"
    assert "t0ken" not in crew.log("echoes") + crew.log("sleeps")
