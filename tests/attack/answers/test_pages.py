"""Pages end early: whatever is kept of one item, an answer stays near 4 MiB and misses none."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import convert
from msgspec.json import encode

from feltd.identity import grants
from feltd.identity.principals import LOCAL
from feltd.mesh import listing, reconcile, workloads
from feltd.model.base import Subject
from feltd.model.grant import IssueGrant, ResourceScope
from feltd.model.page import PageAsk
from feltd.model.worker import Reconciliation
from feltd.model.workload import ANSWER_BYTES_MAX, After, Filter, Listing
from tests.mesh.world import Mesh

#: One item more than the limit may be told by its last member.
BYTES_MAX = ANSWER_BYTES_MAX + 512 * 1024
AGAIN = {"max_attempts": 1_000, "initial_backoff_ms": 0, "max_backoff_ms": 0, "jitter": 0}


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    world = Mesh()
    yield world
    world.close()


def talker(mesh: Mesh, attempts: int) -> str:
    """A workload whose attempts each fail with the longest message there is."""
    job = mesh.workload(retry_policy=AGAIN)
    worker = mesh.worker()
    for number in range(attempts):
        held = mesh.claims(job, by=worker)
        mesh.say("fail", held, kind="transient", message=f"{number:04}" + "\x01" * 8_188)
    return job


def logger(mesh: Mesh) -> str:
    """A workload completed with a megabyte of log lines."""
    job, worker = mesh.workload(), mesh.worker()
    held = mesh.claims(job, by=worker, start=True)
    mesh.say("complete", held, logs=["x" * 1_000] * 1_000)
    return job


def keeper(mesh: Mesh) -> str:
    """A workload with the largest checkpoint, and as many scopes as it may have."""
    scopes = [f"{number:03}" + "s" * 250 for number in range(256)]
    job = mesh.workload(connection_scopes=scopes)
    held = mesh.claims(job, by=mesh.worker(job), start=True)
    mesh.say("checkpoint", held, data="x" * 260_000)
    return job


@pytest.mark.parametrize(
    ("make", "count"),
    [(lambda mesh: talker(mesh, 60), 12), (logger, 12), (keeper, 20)],
    ids=["messages", "logs", "checkpoints"],
)
def test_a_page_of_large_workloads_ends_early_and_the_next_goes_on(
    mesh: Mesh, make: Callable[[Mesh], str], count: int
) -> None:
    made = [make(mesh) for _ in range(count)]

    found: list[str] = []
    before = None
    while True:
        page = mesh.ask(listing.page, Listing(Filter(), 500, before))
        assert page.items
        assert len(encode(page.items)) <= BYTES_MAX
        found += [item.workload_id for item in page.items]
        before = page.before
        if before is None:
            break
    assert found == made[::-1]


def test_of_many_long_failures_the_newest_are_told_whole(mesh: Mesh) -> None:
    job = talker(mesh, 200)

    told = mesh.ask(workloads.get, None, job).attempts
    said = [one.failure.message for one in told if one.failure is not None]
    assert [message[:4] for message in said] == [f"{number:04}" for number in range(200)]
    assert len(said[-1]) == 8_192
    assert len(said[0]) == workloads.MESSAGE_CHARS_MIN
    assert sum(map(len, said)) < workloads.MESSAGES_BYTES_MAX + 200 * workloads.MESSAGE_CHARS_MIN


def test_a_page_of_large_grants_ends_early_and_the_next_goes_on(mesh: Mesh) -> None:
    reach = tuple(ResourceScope("EXACT", f"flow://{n}/" + "u" * 1_000) for n in range(256))
    body = IssueGrant(
        subject=Subject(kind="service", id="s"),
        tenant_id="acme",
        application_id="docs",
        capabilities=(),
        resources=reach,
        expires_at_ms=mesh.now.wall_ms + 1,
    )
    made = {mesh.ask(grants.issue, body, caller=LOCAL).id for _ in range(40)}

    found: list[str] = []
    after = None
    while True:
        page: Any = mesh.ask(grants.page, PageAsk(limit=500, after=after), caller=LOCAL)
        assert len(encode(page.items)) <= BYTES_MAX
        found += [grant.id for grant in page.items]
        after = page.after
        if after is None:
            break
    assert len(found) == 40
    assert set(found) == made


def test_late_results_of_whole_outputs_are_told_a_few_at_a_time(mesh: Mesh) -> None:
    job = mesh.workload(retry_policy=AGAIN | {"retry_on": ["lease_expired"]})
    tokens = []
    for _ in range(12):
        worker = mesh.worker()
        held = mesh.claims(job, by=worker, lease_ms=1_000, start=True)
        tokens.append(held.fencing_token)
        mesh.later(1_000)
        mesh.sweep()
        late = {"attempt_id": held.attempt_id, "claim_id": held.claim_id, "outcome": "completed"}
        late |= {"fencing_token": held.fencing_token, "result": {"output": "x" * 700_000}}
        told = {"worker_id": worker, "worker_version": "1", "capability_version": 1}
        body = convert(told | {"results": [late]}, Reconciliation)
        assert mesh.ask(reconcile.reconcile, body, worker).late_results == [held.attempt_id]

    found: list[int] = []
    while True:
        page = mesh.ask(workloads.late_results, After(found[-1] if found else 0, 500), job)
        if not page.items:
            break
        assert len(encode(page)) <= BYTES_MAX
        found += [item.fencing_token for item in page.items]
    assert found == tokens
