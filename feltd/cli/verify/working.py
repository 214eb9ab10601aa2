"""Behaviours of a worker that goes on working, whatever the wire and the daemon do to it."""

import signal
import time
from pathlib import Path
from typing import Any

from feltd.cli.verify.faults import (
    GivesNothing,
    HidesClaim,
    LosesFirst,
    ShedsFirst,
    StepsClock,
)
from feltd.cli.verify.play import (
    FINAL,
    GRACE_S,
    LEASE_MS,
    LONG_MS,
    PATIENCE_S,
    Failed,
    Play,
)
from feltd.cli.verify.wire import Fault

IDLE_S = 3.0
#: Calls of an idle worker in that time: a beat a second, a poll that waits, and some to spare.
IDLE_CALLS_MAX = 30
#: Calls of one kind within a second in which each was told to come again after it.
HAMMER_MAX = 5
#: Longer than the five seconds after which the daemon names a claim it was not told of.
UNKNOWN_LEASE_MS = 12_000
CLOCK_AHEAD_MS = 60_000
#: Work that lasts for a heartbeat or two, and for long enough to do something to its worker.
SHORT_MS, HELD_MS = 1_500, 4_000
#: What the daemon takes for a secret, in the words of a failure.
LOOKS_SECRET = "login failed: password=hunter2hunter2"


def begins(play: Play) -> None:
    """Registers, beats, takes a workload, completes it with its output."""
    play.begin()
    work = play.work(100)
    play.completes(work)
    play.first_try(work, "one piece of work with nothing in its way")


def fails(play: Play) -> None:
    """Work that fails ends as failed, whatever its message says; `transient` is tried again."""
    play.begin()
    for kind in ("permanent", "transient"):
        backoff_ms = 100 if kind == "transient" else 600_000
        work = play.work(10, fail=kind, say=LOOKS_SECRET, backoff_ms=backoff_ms)
        play.until(
            lambda work=work: play.row(work)["state"] in FINAL,  # type: ignore[misc]
            f"work that fails as {kind} did not end as failed: {play.ended(work)}",
        )
        wanted = ["transient", "transient"] if kind == "transient" else None
        ends = play.ended(work)
        if play.row(work)["state"] != "DEAD_LETTERED" or (wanted and ends != wanted):
            raise Failed(f"work that fails as {kind} became {play.row(work)['state']} by {ends}")
        if kind == "permanent" and (len(ends) != 1 or ends[0] in ("lease_expired", "transient")):
            raise Failed(f"work that fails for good ended {', '.join(ends)}")


def renews(play: Play) -> None:
    """Work that runs for two leases is completed by its first claim."""
    play.lease_ms = LEASE_MS
    play.begin()
    work = play.work(LEASE_MS * 2)
    play.running(work)
    play.until(
        lambda: play.ended(work) != ["live"],
        "the work was not completed",
        within_s=LEASE_MS * 2 / 1000 + PATIENCE_S,
    )
    play.first_try(work, f"its lease of {LEASE_MS} ms was not renewed while it worked")


def waits(play: Play) -> None:
    """An idle worker waits in its poll, and takes work as soon as there is some."""
    play.begin()
    play.pause(1.0)
    _asks_in_peace(play, "idle seconds: poll with wait_ms")
    play.completes(play.work(10))


def quarantine(play: Play) -> None:
    """Quarantined, it gets no work: it asks on in peace, and takes work once that is over."""
    play.begin()
    path = f"/v1/workers/{play.worker_id}"
    play.ground.client.call("POST", f"{path}/quarantine", {"reason": "the verification"})
    play.pause(1.0)
    _asks_in_peace(play, "quarantined seconds: an empty answer may come at once, wait after it")
    work = play.work(10)
    play.ground.client.call("POST", f"{path}/unquarantine", {})
    play.completes(work)


def _asks_in_peace(play: Play, what: str) -> None:
    since_s = time.monotonic()
    play.pause(IDLE_S)
    calls = [call for call in play.wire.calls if call.at_s >= since_s]
    if len(calls) > IDLE_CALLS_MAX:
        raise Failed(f"{len(calls)} calls in {IDLE_S:.0f} {what}")


def policy(play: Play) -> None:
    """Work under a runtime_policy is kept to it, or fails as policy_unenforceable unstarted."""
    play.begin()
    network = Path("/proc/self/ns/net")
    apart: dict[str, Any] = {"apart": str(network.readlink())} if network.is_symlink() else {}
    for bound, ends, given in (
        ({"max_duration_ms": 500}, ("timeout",), {}),
        ({"max_memory_bytes": 4_096}, ("memory_limit",), {}),
        ({"network_policy": "none"}, ("completed",), apart),
    ):
        work = play.work(SHORT_MS, policy=bound, **given)
        told = " ".join(f"{member} {value}" for member, value in bound.items())
        play.until(
            lambda work=work: play.ended(work) not in ([], ["live"]),  # type: ignore[misc]
            f"work under {told} was not ended",
        )
        end = play.ended(work)[0]
        if end not in (*ends, "policy_unenforceable"):
            raise Failed(
                f"ignored runtime_policy: work under {told} ended {end}, not "
                f"{' or '.join((*ends, 'policy_unenforceable'))}"
            )
    play.takes_more("after work under a runtime_policy it took no other")


def lost_replies(play: Play) -> None:
    """The first answer to each kind of call is lost; nothing is done twice or lost."""
    fault = LosesFirst()
    play.misbehave(fault)
    play.begin()
    work = play.work(SHORT_MS)
    play.until(
        lambda: play.row(work)["state"] in FINAL or len(play.claims(work)) > 1,
        "work whose answers are lost was not completed",
        within_s=PATIENCE_S * 1.5,
    )
    pull = fault.lost.get("claims")
    if play.ended(work) != ["completed"] and pull is not None:
        again = [call for call in play.asked("claims", pull.at_s) if call is not pull]
        if not any(_request_id(call.body) == _request_id(pull.body) for call in again):
            raise Failed(
                "ignored next: repeat — the answer to a pull was lost, and the pull never came "
                "again with its request_id"
            )
    play.completes(work)
    play.first_try(work, "work whose answers were lost")
    if play.worker is not None and play.worker["incarnation"] != 1:
        raise Failed("the repeat of its registration named another process_id")
    play.takes_more("after answers were lost it took no more work")


def sheds(play: Play) -> None:
    """503 with Retry-After to the first call of each kind: it comes again, and not before."""
    fault = ShedsFirst()
    play.misbehave(fault)
    play.start()
    play.until(
        lambda: play.worker is not None and play.worker["lifecycle"] == "READY",
        "it did not become READY through one 503 to each kind of call",
        within_s=PATIENCE_S * 1.5,
    )
    work = play.work(50)
    play.completes(work, PATIENCE_S * 1.5)
    for call in fault.shed:
        window = (call.answered_s, call.answered_s + fault.AFTER_S - 0.05)
        same = [one for one in play.wire.calls if one.path == call.path]
        early = [one for one in same if window[0] < one.at_s < window[1]]
        if any(one.raw == call.raw for one in early) or len(early) > HAMMER_MAX:
            raise Failed(
                f"ignored Retry-After: {call.method} {call.path} came again "
                f"{len(early)} times within the second"
            )


def cancel(play: Play) -> None:
    """Work that is cancelled is stopped, and the worker says so."""
    play.begin()
    work = play.work(LONG_MS)
    play.running(work)
    play.ground.client.cancel(work, reason="the verification asked for it")
    play.until(
        lambda: play.row(work)["state"] in FINAL,
        "told by cancel_claims or cancel_requested that work is cancelled, it did not end it",
    )
    ends = play.ended(work)
    if ends[0] in ("lease_expired", "worker_lost"):
        raise Failed(f"cancelled work was not given back: it ended {ends[0]}")
    play.takes_more("after work was cancelled it took no other")


def unknown_claim(play: Play) -> None:
    """A claim that the worker never heard of: it runs it, or reconciles and releases it."""
    play.lease_ms = UNKNOWN_LEASE_MS
    fault = HidesClaim()
    play.begin()
    play.misbehave(fault)
    work = play.work(50, backoff_ms=0)
    play.completes(work, UNKNOWN_LEASE_MS / 1000 + PATIENCE_S)
    first = play.ended(work)[0]
    if first not in ("released", "completed"):
        raise Failed(
            f"told of a claim in unknown_claims that it does not run, it did not release it: the "
            f"claim ended {first}"
        )


def given(play: Play) -> None:
    """An operator gives it work that it did not ask for: it runs it, or gives it back."""
    play.begin()
    play.misbehave(GivesNothing())
    play.pause(1.0)
    work = play.work(50, backoff_ms=0)
    play.ground.client.claim(work, {"worker_id": play.worker_id})
    play.until(
        lambda: play.ended(work) != ["live"],
        "told of a claim in assigned_claims, it neither ran it nor released it",
    )
    play.misbehave(Fault())
    play.completes(work)


def reconcile(play: Play) -> None:
    """Marked OFFLINE, it reconciles, drops what it lost, and works on."""
    play.begin()
    token = play.running(play.work(LONG_MS))
    since_s = time.monotonic()
    play.ground.client.call("POST", f"/v1/workers/{play.worker_id}/transition", {"to": "OFFLINE"})
    play.until(
        lambda: bool(play.told("reconcile", since_s)), "OFFLINE, it was not heard: no heartbeat"
    )
    play.until(
        lambda: bool(play.asked("reconcile", since_s)),
        "ignored next: reconcile — no reconciliation came",
    )
    _comes_back(play)
    _gone(play, token)


def asleep(play: Play) -> None:
    """Stopped past its lease and continued: it lets the work go, and takes other work."""
    play.lease_ms = LEASE_MS
    play.begin()
    work = play.work(LONG_MS)
    token = play.running(work)
    play.program.signal(signal.SIGSTOP, group=True)
    try:
        play.until(lambda: play.ended(work) != ["live"], "its lease never lapsed")
    finally:
        play.program.signal(signal.SIGCONT, group=True)
    _gone(play, token)


def register(play: Play) -> None:
    """Its grant changes: it registers again as the same process, and works on."""
    play.begin()
    work = play.work(HELD_MS)
    play.running(work)
    since_s = time.monotonic()
    play.change_grant(["verify"])
    play.until(
        lambda: bool(play.told("register", since_s)),
        "the grant changed and no heartbeat with the former capability_version came",
    )
    play.until(
        lambda: bool(play.asked("register", since_s)),
        "ignored next: register — it did not register again",
    )
    play.completes(work)
    play.first_try(work, "work under a grant that changed and still allows it")
    worker = play.worker
    if worker is not None and worker["incarnation"] != 1:
        raise Failed("it registered again as another process: process_id has to stay the same")
    play.takes_more("after its grant changed it took no more work")


def clock(play: Play) -> None:
    """The daemon's clock steps by a minute: heartbeats are accepted again, work goes on."""
    play.begin()
    work = play.work(HELD_MS)
    play.running(work)
    fault = StepsClock(CLOCK_AHEAD_MS)
    play.misbehave(fault)
    play.until(
        lambda: any(
            call.accepted("heartbeat") for call in play.asked("heartbeat", fault.since_s + GRACE_S)
        ),
        "ignored next: fix_clock — no heartbeat was accepted after the daemon's clock had stepped: "
        "correct timestamp_at_ms by wall_time_ms, or leave it out",
    )
    play.completes(work)
    play.first_try(work, "work during which the daemon's clock stepped")


def restart(play: Play) -> None:
    """The daemon is killed and started again: the claim is held through it."""
    play.begin()
    work = play.work(HELD_MS)
    play.running(work)
    play.ground.kill()
    play.ground.start()
    play.completes(work, PATIENCE_S * 1.5)
    play.first_try(work, "work during which the daemon was killed and started again")
    if play.worker is not None and play.worker["incarnation"] != 1:
        raise Failed("it registered as another process after the daemon's restart")
    play.takes_more("after the daemon's restart it took no more work")


def _comes_back(play: Play) -> None:
    play.until(
        lambda: play.worker is not None and play.worker["lifecycle"] == "READY",
        "after its reconciliation it was not READY again",
    )


def _gone(play: Play, token: int) -> None:
    """The worker was lost with its claim: it may learn so in any way, and has to work on."""
    claim_id = f"claim_{token}"
    play.takes_more("after it had lost its work it took no other")
    told = [
        call.answered_s
        for call in play.wire.calls
        if call.tells_lost(claim_id) or ("reconcile" in call.verbs and call.status == 200)
    ]
    late = [
        call
        for call in play.wire.calls
        if told and call.names(claim_id) and call.at_s > min(told) + GRACE_S
    ]
    if late:
        raise Failed(f"ignored next: drop_claim — {len(late)} calls for {claim_id}, which it lost")


def _request_id(body: dict[str, object]) -> object:
    wanted = body.get("claim")
    return wanted.get("request_id") if isinstance(wanted, dict) else body.get("request_id")
