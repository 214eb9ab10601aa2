"""An operator gives work to a worker by hand, and sees why it went where it went."""

import subprocess
from pathlib import Path

from tests.api.claims.conftest import Crew
from tests.cli.conftest import Typed
from tests.daemon.running import FELTD, Daemon


def test_work_is_given_to_a_real_worker_which_does_it(
    local: Typed, daemon: Daemon, tmp_path: Path
) -> None:
    crew = Crew(daemon)
    (tmp_path / "given.py").write_text(
        "from feltd.worker import Context, Worker\n"
        "worker = Worker()\n"
        "@worker.handles('extract')\n"
        "def extract(ctx: Context) -> dict:\n"
        "    return {'page': ctx.input['page'], 'fence': ctx.fence}\n"
    )
    # The work is left for the near worker, which never asks: nobody pulls it.
    near = crew.worker(labels={"zone": "near"})
    placement = {"affinity": {"zone": "near"}, "affinity_wait_ms": 3_600_000}
    job = crew.work(input={"page": 3}, placement=placement)
    key = {"FELTD_URL": daemon.url, "FELTD_KEY": crew.registrar_key}
    process = subprocess.Popen(
        (*FELTD, "worker", "run", "given:worker", "--name", f"far-{crew.application_id}"),
        cwd=tmp_path, env=local.env | key, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        far = f"far-{crew.application_id}"
        while "READY" not in local("worker", "show", far).stdout:
            assert process.poll() is None
        tried = local.json("workload", "place", job, "--dry-run")
        assert tried["selected_worker"] == near.id
        said = local.ok("workload", "place", job, "--worker", far)
        assert f"{job} is given to worker_" in said
        # The parked exchange of the worker ends, and the work is done, without a pull.
        done = daemon.get(f"/v1/workloads/{job}?wait_ms=20000")
        assert done["state"] == "COMPLETED"
        assert done["result"]["output"] == {"page": 3, "fence": done["fencing_token"]}
        assert local.json("claim", "list", "--workload", job)[0]["how"] == "directed"
    finally:
        process.kill()
        process.communicate()
    listed = local.json("placement", "list", "--workload", job)
    shown = local.ok("placement", "show", listed[0]["decision_id"])
    assert "decided again\tthe same" in shown
    assert listed[0]["selected_worker"] in shown


def test_what_nobody_can_take_is_explained(local: Typed, daemon: Daemon) -> None:
    crew = Crew(daemon)
    edge = crew.worker()
    job = crew.work()
    where = ("--require", "zone=moon")

    tried = local("workload", "place", job, "--dry-run", *where)
    refused = local("workload", "place", job, *where)

    assert tried.returncode == 1
    assert f"{edge.id}\trequired_labels\trequired_labels" in tried.stdout
    assert "no worker satisfies placement policy" in tried.stdout
    assert refused.returncode == 1
    assert "MESH_NO_ELIGIBLE_WORKER" in refused.stderr
    assert "required_labels: a required label differs" in refused.stderr
    (kept,) = local.json("placement", "list", "--workload", job)
    assert [one["rule"] for one in kept["refused"]] == ["required_labels"]
    assert edge.id in local.ok("placement", "show", kept["decision_id"])
    assert kept["decision_id"] in local.ok("placement", "list")


def test_slips_of_the_hand_are_usage_errors_or_refusals(local: Typed) -> None:
    assert local("workload", "place", "w", "--dry-run", "--worker", "edge").returncode == 2
    assert local("workload", "place", "w", "--require", "zone").returncode == 2
    assert local("workload", "place", "w", "--worker", "nobody-of-this-name").returncode == 2
    unknown = local("placement", "show", "placement_0")
    assert (unknown.returncode, "PLACEMENT_NOT_FOUND" in unknown.stderr) == (1, True)
    assert "feltd placement list" in unknown.stderr
