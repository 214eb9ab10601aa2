"""Ten stuck queues beside one another: `feltd why` names each cause, and its remedy frees it."""

import contextlib
import io
import json
import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from feltd.cli.main import run
from tests.cli.conftest import Typed
from tests.daemon.running import PATIENCE_S, Daemon, Edge, Mesh

TENANT = "stuck"
APPLICATION = "queues"
HOUR_MS = 3_600_000
#: However slow the machine, only the worker that is meant to be missed is.
PATIENT = {"heartbeat_interval_ms": 30_000, "heartbeat_timeout_ms": 300_000}
LEASE = {"lease_ms": HOUR_MS, "start": True}


@dataclass
class Queue:
    """Work of one definition that nobody takes: the cause, and how to follow its remedy."""

    definition: str
    code: str
    workload_id: str
    #: Does what the remedy says and gives the worker that pulls next.
    follow: Callable[[str], Edge]


class Stuck:
    """One daemon's tenant with queues of every kind; each has a worker of its own definition."""

    def __init__(self, daemon: Daemon, local: Typed) -> None:
        self.daemon, self.local = daemon, local
        issued = daemon.post(
            "/v1/grants",
            {
                "subject": {"kind": "service", "id": "stuck-crew"},
                "tenant_id": TENANT,
                "application_id": APPLICATION,
                "capabilities": [
                    "worker:register",
                    "worker:capability:documents.extract",
                    "workload:capability:documents.sign",
                ],
                "resources": [
                    {"kind": "RESOURCE_PREFIX", "uri": f"flow://{APPLICATION}/workers/*"}
                ],
                "expires_at_ms": int(time.time() * 1_000) + 24 * HOUR_MS,
            },
        )
        keys = [
            daemon.post(
                "/v1/keys",
                {
                    "name": f"stuck-{scopes[0]}",
                    "scopes": scopes,
                    "tenants": [TENANT],
                    "identity_id": "stuck-crew",
                    "grant_id": issued["grant"]["id"],
                },
            )["secret"]
            for scopes in (["workloads:create"], ["workers:register"])
        ]
        self.mesh = Mesh(*keys)

    def edge(self, definition: str, key: str = "", **body: Any) -> Edge:
        """A worker that takes one definition, READY."""
        told = {"workload_kinds": [definition], "capacity": {"concurrency": 1}} | PATIENT | body
        edge = Edge(self.daemon, f"{definition}-edge", key or self.mesh.registrar_key, **told)
        assert edge.beat(capacity=told["capacity"]).status == 200
        return edge

    def work(self, definition: str, **body: Any) -> str:
        """One workload of a definition; its id."""
        asked = {
            "definition_id": definition,
            "idempotency_key": f"{definition}-{time.monotonic_ns()}",
            "capability_snapshot": ["documents.extract"],
        } | body
        made = self.daemon.post("/v1/workloads", asked, key=self.mesh.submitter_key)
        return str(made["workload_id"])

    def typed(self, remedy: str, *more: str) -> str:
        """Run the command that a remedy names, in this process; what it printed."""
        words = [*command(remedy), *more, "--data", str(self.daemon.data)]
        printed = io.BytesIO()
        with contextlib.redirect_stdout(io.TextIOWrapper(printed, "utf-8", write_through=True)):
            assert run(words) == 0, words
            return printed.getvalue().decode()

    # -- the ten -----------------------------------------------------------------------------

    def capability(self) -> Queue:
        job = self.work("sign", capability_snapshot=["documents.sign"])

        def follow(remedy: str) -> Edge:
            made = json.loads(self.typed(remedy, "--json"))
            return self.edge("sign", made["secret"], capabilities=["documents.sign"])

        return Queue("sign", "NO_CAPABILITY", job, follow)

    def full(self) -> Queue:
        edge = self.edge("full")
        self.work("full")
        job = self.work("full")
        (claim,) = edge.pull(**LEASE)

        def follow(remedy: str) -> Edge:
            assert claim["claim_id"] in self.typed(remedy)
            assert edge.fenced("complete", claim, output={}).status == 200
            return edge

        return Queue("full", "WORKER_FULL", job, follow)

    def pool(self) -> Queue:
        self.daemon.post(
            "/v1/pools",
            {"pool_id": "narrow", "name": "narrow", "tenant_id": TENANT, "max_concurrency": 1},
        )
        edge = self.edge("pooled", capacity={"concurrency": 2})
        self.work("pooled", placement={"pool_id": "narrow"})
        job = self.work("pooled", placement={"pool_id": "narrow"})
        assert edge.pull(**LEASE)
        return Queue("pooled", "POOL_FULL", job, lambda remedy: self._after(remedy, edge))

    def key(self) -> Queue:
        edge = self.edge("keyed", capacity={"concurrency": 2})
        one = {"concurrency": {"key": "printer", "limit": 1}}
        self.work("keyed", **one)
        job = self.work("keyed", **one)
        assert edge.pull(**LEASE)
        return Queue("keyed", "KEY_FULL", job, lambda remedy: self._after(remedy, edge))

    def rate(self) -> Queue:
        edge = self.edge("rated", capacity={"concurrency": 2})
        once = {"key": "mail", "limit": 1, "period_ms": HOUR_MS}
        self.work("rated", rate=once)
        job = self.work("rated", rate=once)
        assert edge.pull(**LEASE)

        def follow(remedy: str) -> Edge:
            assert "create work of this key with a higher limit" in remedy
            self.work("other", rate={**once, "limit": 2}, not_before_at_ms=2**52)
            return edge

        return Queue("rated", "RATE_FULL", job, follow)

    def held(self) -> Queue:
        edge = self.edge("held")
        job = self.work("held")
        self.daemon.post(
            "/v1/holds",
            {"scope": "definition", "value": "held", "tenant_id": TENANT, "reason": "pages lost"},
        )
        return Queue("held", "HELD", job, lambda remedy: self._after(remedy, edge))

    def quarantined(self) -> Queue:
        edge = self.edge("sick")
        job = self.work("sick")
        self.daemon.post(f"/v1/workers/{edge.id}/quarantine", {"reason": "its disk fails"})
        return Queue("sick", "WORKER_QUARANTINED", job, lambda remedy: self._after(remedy, edge))

    def dependency(self) -> Queue:
        edge, first = self.edge("child"), self.edge("parent")
        parent = self.work("parent")
        job = self.work("child", dependencies=[parent])

        def follow(remedy: str) -> Edge:
            told = self.typed(remedy)
            assert "CLAIMABLE" in told
            assert first.id in told
            (claim,) = first.pull(**LEASE)
            assert first.fenced("complete", claim, output={}).status == 200
            return edge

        return Queue("child", "DEPENDENCY_UNFINISHED", job, follow)

    def backoff(self) -> Queue:
        edge = self.edge("flaky")
        policy = {"initial_backoff_ms": HOUR_MS, "max_backoff_ms": HOUR_MS}
        job = self.work("flaky", retry_policy=policy)
        (claim,) = edge.pull(**LEASE)
        failed = edge.fenced("fail", claim, kind="transient", message="try later")
        assert failed.status == 200
        return Queue("flaky", "BACKOFF", job, lambda remedy: self._after(remedy, edge))

    def silent(self) -> Queue:
        quick = {"heartbeat_interval_ms": 1_000, "heartbeat_timeout_ms": 2_000}
        self.edge("silent", **quick)
        job = self.work("silent")

        def follow(remedy: str) -> Edge:
            assert "start their processes again" in remedy
            assert "WORKER_NOT_READY" in self.typed(remedy)
            return self.edge("silent", process_id="another-process")

        return Queue("silent", "NO_FRESH_WORKER", job, follow)

    def _after(self, remedy: str, edge: Edge) -> Edge:
        self.typed(remedy)
        return edge


def command(remedy: str) -> list[str]:
    """The words of the first command a remedy names, without `feltd`."""
    found = re.search(r"feltd ([^,;()]+)", remedy)
    assert found is not None, remedy
    return shlex.split(found.group(1))


def until_lost(daemon: Daemon, queue: Queue) -> None:
    """Wait until the daemon has missed the worker of a queue."""
    ends_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_s:
        told = daemon.get(f"/v1/workloads/{queue.workload_id}/why")
        first = told["reasons"][0]
        found = first["code"] == queue.code
        if found and daemon.get(f"/v1/workers/{first['worker_id']}")["lifecycle"] == "OFFLINE":
            return
        time.sleep(0.1)
    raise AssertionError(told)


@pytest.fixture
def stuck(daemon: Daemon, local: Typed) -> Stuck:
    return Stuck(daemon, local)


def test_why_names_the_cause_of_each_of_ten_stuck_queues_and_what_frees_it(stuck: Stuck) -> None:
    daemon, local = stuck.daemon, stuck.local
    queues = [
        make()
        for make in (
            stuck.silent, stuck.capability, stuck.full, stuck.pool, stuck.key, stuck.rate,
            stuck.held, stuck.quarantined, stuck.dependency, stuck.backoff,
        )
    ]  # fmt: skip
    until_lost(daemon, queues[0])

    whole = local.json("why", "--tenant", TENANT)
    kinds = {one["definition_id"]: one for one in whole["items"]}
    for queue in queues:
        cause = kinds[queue.definition]["blocked"][0]
        assert (queue.definition, cause["code"]) == (queue.definition, queue.code)
        assert cause["remedy"]

        told = daemon.get(f"/v1/workloads/{queue.workload_id}/why")
        reason = told["reasons"][0]
        assert (queue.definition, reason["code"]) == (queue.definition, queue.code)
        edge = queue.follow(reason["remedy"])
        # What a rate key lets through again is offered by the keeper, a moment later.
        taken = [claim["workload_id"] for claim in edge.pull(wait_ms=20_000)]
        assert taken == [queue.workload_id], (queue, reason)


def test_the_whole_queue_is_told_line_by_line_and_one_workload_or_worker_by_its_name(
    stuck: Stuck,
) -> None:
    local, definition = stuck.local, "shown"
    edge = stuck.edge(definition)
    job = stuck.work(definition)

    of_kind = ("--tenant", TENANT, "--definition", definition)
    (line,) = local.ok("why", *of_kind).splitlines()[1:]
    assert line.startswith(f"{definition}\t{TENANT}/{APPLICATION}\t1\t")
    assert "ITS_TURN" in line
    assert f"{job} is READY" in local.ok("why", job)
    assert "CLAIMABLE" in local.ok("workload", "why", job)

    (claim,) = edge.pull()
    for words in (("why", edge.id), ("worker", "why", f"{definition}-edge")):
        told = local.ok(*words)
        assert f"{edge.id} is BUSY and HEALTHY" in told
        assert "no: it holds 1" in told
        assert "WORKER_FULL" in told
    held = local.json("why", job)
    assert (held["state"], held["reasons"][0]["code"]) == ("CLAIMED", "CLAIMED")
    assert claim["claim_id"] in held["reasons"][0]["remedy"]
    never = local("why", "workload_never")
    assert (never.returncode, never.stderr.splitlines()[0].split(":")[0]) == (
        1,
        "WORKLOAD_NOT_FOUND",
    )


def test_the_backlog_counts_kind_by_kind(stuck: Stuck) -> None:
    local, definition = stuck.local, "counted"
    edge = stuck.edge(definition, capacity={"concurrency": 3})
    for _ in range(3):
        stuck.work(definition)
    stuck.work(definition, not_before_at_ms=2**52)
    assert edge.pull()

    of_kind = ("--tenant", TENANT, "--definition", definition)
    (item,) = local.json("backlog", *of_kind)["items"]
    assert (item["ready"], item["running"], item["waiting"]["not_before"]) == (2, 1, 1)
    assert (item["eligible_workers"], item["free_slots"], item["capped"]) == (1, 2, False)
    assert [(one["code"], one["workloads"]) for one in item["blocked"]] == [("NOT_BEFORE", 1)]
    header, line = local.ok("backlog", *of_kind).splitlines()
    assert header.split("\t")[:4] == ["definition", "application", "pool", "ready"]
    assert line.startswith(f"{definition}\t{TENANT}/{APPLICATION}\t\t2\t")
    assert local("backlog", "--definition", "never").stderr == "nothing waits\n"
