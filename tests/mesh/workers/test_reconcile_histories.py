"""Whatever happened to a worker's claims, reconciling leaves both sides with the same set.

Random histories: work pulled or given, started or not, that lapses, times out, is cancelled, taken
away, requeued, finished with or without the answer getting through; drains, losses, takeovers.
Then the process tells what it believes, right or wrong, and the answer is held against the rows.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feltd.mesh import cancel, directed, drain, evict, overdue, requeue
from feltd.model.claim import ClaimById, Evict
from feltd.model.worker import Reconciled
from feltd.model.workload import Cancel, Requeue
from tests.mesh.workers.stories import CAPABILITIES, Hand, House
from tests.mesh.world import Mesh

LIVE = """
SELECT c.fencing_token
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
  LEFT JOIN deadlines d ON d.workload_id = c.workload_id
 WHERE c.worker_id = :worker_id
   AND c.ended_at_ms IS NULL
   AND w.expires_at_ms > :now_ms
   AND coalesce(d.at_ms, :now_ms + 1) > :now_ms
"""
ENDED = "SELECT end_kind, end_sha256 FROM claims WHERE fencing_token = :token"
LATE = "SELECT outcome, report FROM late_results WHERE fencing_token = :token"
WORK = "SELECT state, output, result_token FROM workloads WHERE workload_id = :job"
TIMEOUTS = ({}, {}, {"start_ms": 5_000}, {"execution_ms": 5_000}, {"total_ms": 8_000})
MADE_UP = ("claim_999999999", "claim_0", "7", "nonsense")


class Story:
    """One worker with a history, and what its process believes of it."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        self.mesh = Mesh()
        self.house = House(self.mesh)
        self.edge = self.house.worker(capacity={"concurrency": 16})
        self.other = self.house.worker("other", capacity={"concurrency": 16})
        self.giver = self.house.key("giver", ["workloads:operate"], None, ("*",))
        self.processes = count(2)
        #: Every claim the worker ever had, and those its process believes to hold.
        self.had: list[Any] = []
        self.believed: list[Any] = []
        self.theirs: list[Any] = []

    # -- what happens

    def work(self) -> str:
        policy = {"max_attempts": 20, "initial_backoff_ms": self.draw(st.sampled_from([0, 500]))}
        waits = [self.draw(st.sampled_from(self.had)).workload_id] if self.chance(5) else []
        return self.mesh.workload(
            capability_snapshot=CAPABILITIES,
            retry_policy=policy,
            timeouts=self.draw(st.sampled_from(TIMEOUTS)),
            dependencies=waits if self.had else [],
        )

    def chance(self, of: int = 2) -> bool:
        return bool(self.had) and self.draw(st.integers(1, of)) == 1

    def lease_ms(self) -> int:
        return int(self.draw(st.sampled_from([1_000, 5_000, 600_000, 600_000])))

    def got(self, claims: list[Any], known: bool) -> None:
        self.had += claims
        self.believed += claims if known else []

    def pull(self) -> None:
        self.work()
        told = {"max": 2, "start": self.draw(st.booleans()), "lease_ms": self.lease_ms()}
        self.mesh.refused(
            lambda: self.got(
                self.mesh.pull(self.edge.id, self.edge.caller, **told).claims,
                known=self.draw(st.booleans()),
            )
        )

    def give(self) -> None:
        body = ClaimById(worker_id=self.edge.id, lease_ms=self.lease_ms())
        job = self.work()
        self.mesh.refused(
            lambda: self.got(
                [self.mesh.ask(directed.claim, body, job, self.giver)[0]],
                known=self.draw(st.booleans()),
            )
        )

    def others_take(self) -> None:
        self.work()
        self.other.reconcile()
        self.theirs += self.mesh.pull(self.other.id, self.other.caller, max=2, start=True).claims

    def say(self) -> None:
        """An outcome is sent in time or too late, once or twice; its answer may be lost."""
        if self.had:
            held = self.draw(st.sampled_from(self.had))
            verb = self.draw(st.sampled_from(["complete", "fail", "release", "start", "renew"]))
            for _ in range(self.draw(st.integers(1, 2))):
                self.mesh.refused(lambda: self.edge.says(verb, held))
            ends = verb in ("complete", "fail", "release")
            if ends and held in self.believed and self.draw(st.booleans()):
                self.believed.remove(held)

    def forget(self) -> None:
        if self.believed:
            self.believed.remove(self.draw(st.sampled_from(self.believed)))

    def wait(self) -> None:
        """Time goes on, with or without the keeper."""
        self.mesh.later(self.draw(st.sampled_from([400, 1_000, 5_000])))
        if self.draw(st.booleans()):
            self.mesh.sweep()
        if self.draw(st.booleans()):
            self.mesh.run(overdue.end_timeouts, 100)
        self.mesh.promote()

    def keeper(self) -> None:
        """Its pass over leases, timeouts, and what has become due."""
        self.mesh.sweep()
        self.mesh.run(overdue.end_timeouts, 100)
        self.mesh.promote()

    def lose(self) -> None:
        self.mesh.later(30_000)
        self.house.fails_silent(self.draw(st.sampled_from(["end", "lease"])))

    def cancel(self) -> None:
        self.on_work(lambda job: self.mesh.ask(cancel.cancel, Cancel(force=self.chance(3)), job))

    def requeue(self) -> None:
        self.on_work(lambda job: self.mesh.ask(requeue.requeue, Requeue(), job))

    def evict(self) -> None:
        if self.had:
            held = self.draw(st.sampled_from(self.had))
            self.mesh.refused(lambda: self.mesh.ask(evict.evict, Evict(reason="no"), held.claim_id))

    def on_work(self, deed: Callable[[str], Any]) -> None:
        if self.had:
            held = self.draw(st.sampled_from(self.had))
            self.mesh.refused(lambda: deed(held.workload_id))

    def drain(self) -> None:
        if self.draw(st.booleans()):
            self.house.drain(self.edge.id)
        else:
            self.mesh.ask(drain.resume, None, self.edge.id, self.house.operator)

    def take_over(self) -> None:
        """A new process under the name, which may have kept what the former one held."""
        told = self.house.registers(
            process_id=str(next(self.processes)),
            takeover=True,
            issue_key=True,
            capacity={"concurrency": 16},
        )
        self.edge = Hand(self.house, told)
        self.mesh.refused(self.edge.beat)

    def beat(self) -> None:
        told = [held.claim_id for held in self.believed]
        self.mesh.refused(lambda: self.edge.beat(running_claims=told, renew_leases=True))

    # -- what is told, and what has to come of it

    def now(self) -> set[int]:
        """Tokens of the claims that live at this moment."""
        told = {"worker_id": self.edge.id, "now_ms": self.mesh.now.lease_ms}
        return {row["fencing_token"] for row in self.mesh.conn.execute(LIVE, told)}

    def message(self) -> dict[str, Any]:
        """What the process says, each id once."""
        some = list(self.believed)
        some += [held for held in self.had if held not in some and self.draw(st.booleans())]
        some += self.theirs[-2:]
        told: dict[str, Any] = {"known_claims": [], "results": []}
        for name in ("running", "completed", "failed"):
            told[f"{name}_attempts"] = []
        for held in some:
            if held in self.believed or self.draw(st.booleans()):
                told["known_claims"].append(held.claim_id)
            how = self.draw(
                st.sampled_from(["running", "completed", "failed", *["result"] * 3, ""])
            )
            if how == "result":
                told["results"].append(self.result(held))
            elif how:
                told[f"{how}_attempts"].append(held.attempt_id)
        told["known_claims"] += self.draw(st.lists(st.sampled_from(MADE_UP), unique=True))
        told["running_attempts"] += ["attempt_999999999", "attempt_x"]
        return told

    def result(self, held: Any) -> dict[str, Any]:
        failed = self.draw(st.booleans())
        end = {"failure": {"kind": "transient", "message": "no"}}
        return {
            "attempt_id": held.attempt_id,
            "claim_id": held.claim_id,
            "fencing_token": held.fencing_token,
            "outcome": "failed" if failed else "completed",
            **(end if failed else {"result": {"output": held.fencing_token}}),
        }


#: What may happen next, by its method, and how often.
STEPS = {
    **{"pull": 5, "give": 2, "others_take": 1, "beat": 1, "say": 2, "forget": 1, "wait": 2},
    **{"lose": 1, "cancel": 1, "requeue": 1, "evict": 1, "drain": 1, "take_over": 1},
}
HISTORIES = st.lists(
    st.sampled_from([step for step, often in STEPS.items() for _ in range(often)]),
    min_size=8,
    max_size=30,
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=HISTORIES, drawn=st.data())
def test_reconciling_is_exact(steps: list[str], drawn: st.DataObject) -> None:
    story = Story(drawn.draw)
    for step in steps:
        getattr(story, step)()
    # What has lapsed or timed out since is the keeper's to end, but it has not come yet.
    story.mesh.later(drawn.draw(st.sampled_from([0, 1_000, 5_000, 8_000])))
    told, live = story.message(), story.now()
    before = {held.fencing_token: work(story, held) for held in story.had}

    contradicted(story, told)
    answer = story.edge.reconcile(**told)

    one_verdict_each(told, answer)
    authoritative = {held.fencing_token for held in answer.authoritative_claims}
    results_counted(story, told, live, answer, before)
    delivered = {one["fencing_token"] for one in told["results"]}
    assert authoritative == live - delivered == story.now()
    assert sorted(answer.worker.claims) == sorted(f"claim_{token}" for token in authoritative)
    same_again(story, told, answer)
    if answer.worker.lifecycle != "OFFLINE":
        beat = story.edge.beat(running_claims=answer.worker.claims)
        assert (beat.fenced_claims, beat.unknown_claims, beat.assigned_claims) == ([], [], [])
    else:
        assert not authoritative
    nothing_cancelled_waits(story)
    story.keeper()
    story.house.keeps_its_promises()
    story.mesh.close()


def one_verdict_each(told: dict[str, Any], answer: Reconciled) -> None:
    """No id without a verdict, none with two, no verdict on what was not told."""
    kept = {held.claim_id for held in answer.authoritative_claims}
    going_on = {held.attempt_id for held in answer.authoritative_claims}
    accepted, late = set(answer.accepted_results), set(answer.late_results)
    ended_well = {attempt_id.replace("attempt", "claim") for attempt_id in accepted}
    for claim_id in told["known_claims"]:
        verdicts = (kept, set(answer.fenced_claims), ended_well)
        assert sum(claim_id in verdict for verdict in verdicts) == 1, claim_id
    for attempt_id in told["running_attempts"]:
        assert (attempt_id in going_on) != (attempt_id in answer.cancel_attempts)
    finished = [one["attempt_id"] for one in told["results"]]
    finished += [*told["completed_attempts"], *told["failed_attempts"]]
    for attempt_id in finished:
        assert sum(attempt_id in verdict for verdict in (going_on, accepted, late)) == 1
    assert set(answer.fenced_claims) <= set(told["known_claims"])
    assert set(answer.cancel_attempts) <= set(told["running_attempts"])
    assert accepted | late <= set(finished)


def results_counted(
    story: Story,
    told: dict[str, Any],
    live: set[int],
    answer: Reconciled,
    before: dict[int, tuple[Any, ...]],
) -> None:
    """Results of what lived are the outcome; others are kept once, and change nothing."""
    own = {held.fencing_token: held for held in story.had}
    for one in told["results"]:
        token, failed = one["fencing_token"], one["outcome"] == "failed"
        kept = story.mesh.conn.execute(LATE, {"token": token}).fetchall()
        if token in live:
            assert one["attempt_id"] in answer.accepted_results
            ended = story.mesh.row(ENDED, token=token)
            assert ended["end_kind"] == ("transient" if failed else "completed")
            assert ended["end_sha256"] is not None
            if not failed:
                assert work(story, own[token]) == ("COMPLETED", str(token), token)
        elif token not in own:
            assert (one["attempt_id"] in answer.late_results, kept) == (True, [])
        elif one["attempt_id"] in answer.late_results:
            assert [row["outcome"] for row in kept] == [one["outcome"]]
            # Its claim may have been ended just now, but by the clock, not by the result.
            assert work(story, own[token])[1:] == before[token][1:] or before[token][0] in (
                "CLAIMED",
                "RUNNING",
                "CHECKPOINTED",
            )
        else:
            # It had been recorded before, by this worker's own word.
            assert story.mesh.row(ENDED, token=token)["end_sha256"] is not None


def same_again(story: Story, told: dict[str, Any], answer: Reconciled) -> None:
    """Told twice, it is judged as at first, and nothing more happens."""
    stored = story.mesh.everything()
    late = story.mesh.row("SELECT count(*) AS n FROM late_results")["n"]
    again = story.edge.reconcile(**told)
    for name in ("fenced_claims", "cancel_attempts", "accepted_results", "late_results"):
        assert getattr(again, name) == getattr(answer, name)
    assert again.worker.claims == answer.worker.claims
    assert story.mesh.everything() == stored
    assert story.mesh.row("SELECT count(*) AS n FROM late_results")["n"] == late


def contradicted(story: Story, told: dict[str, Any]) -> None:
    """An id in two lists is refused, and nothing of the rest is done."""
    ids = [*told["running_attempts"], *told["completed_attempts"]]
    twice = story.draw(st.sampled_from(ids))
    where = story.draw(st.sampled_from(["failed_attempts", "known_claims"]))
    stored = story.mesh.everything()
    refused = story.house.refusal(
        lambda: story.edge.reconcile(**{**told, where: [*told[where], twice]})
    )
    assert refused.code == "WORKER_INVALID"
    assert story.mesh.everything() == stored


def nothing_cancelled_waits(story: Story) -> None:
    """Work that was asked to be cancelled is held, or it has ended."""
    found = story.mesh.row(
        "SELECT count(*) AS n FROM workloads"
        " WHERE cancel_requested = 1 AND state IN ('PENDING', 'READY')"
    )
    assert found["n"] == 0


def work(story: Story, held: Any) -> tuple[Any, ...]:
    """The state of a claim's workload, its output, and the claim it is of."""
    return tuple(story.mesh.row(WORK, job=held.workload_id))
