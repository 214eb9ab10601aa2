"""Behaviours of a worker that loses its work, its name or its right, or is told to leave."""

import signal
import time

from feltd.cli.verify.faults import ShedsRenewals
from feltd.cli.verify.play import FINAL, LEASE_MS, LONG_MS, Failed, Play
from feltd.cli.verify.wire import Fault
from feltd.worker.client import Client

#: How a claim ends that its worker has ended itself.
OWN_ENDS = ("completed", "released")
#: Refused calls after the one that says to stop, while the process ends.
REFUSED_MAX = 20


def lapse(play: Play) -> None:
    """Renewals fail until the lease is over: it lets the work go, and takes other work."""
    play.lease_ms = LEASE_MS
    play.begin()
    work = play.work(LONG_MS)
    token = play.running(work)
    play.misbehave(ShedsRenewals())
    play.until(lambda: play.ended(work) != ["live"], "its lease never lapsed")
    play.misbehave(Fault())
    if play.ended(work)[0] == "released":
        # Given back in time: it is free again at once, and not to be run a second time here.
        play.ground.client.cancel(work)
        play.takes_more("after it had given its work back it took no other")
    else:
        play.drops(token)


def fence(play: Play) -> None:
    """An operator takes its claim away: it stops that work at the next answer, and goes on."""
    play.begin()
    token = play.running(play.work(LONG_MS))
    play.ground.client.evict(f"claim_{token}", reason="the verification", to="DEAD_LETTERED")
    play.drops(token)


def drain(play: Play) -> None:
    """An operator drains it: it finishes what it holds, takes nothing new, ends with 0."""
    play.begin()
    work = play.work(1_500)
    play.running(work)
    play.ground.client.drain(play.worker_id, {"reason": "the verification"})
    other = play.work(50)
    play.until(
        lambda: play.row(work)["state"] in FINAL,
        "drained, it did not finish the work it held",
        living=False,
    )
    play.first_try(work, "work held by a worker that was drained")
    play.ends(0, "after it was drained", told="stop")
    if play.ended(other):
        raise Failed("drained, it was given new work")


def leave(play: Play) -> None:
    """SIGTERM: it drains itself, finishes or gives back what it holds, ends with 0."""
    play.begin()
    work = play.work(1_500)
    play.running(work)
    play.program.signal(signal.SIGTERM)
    play.ends(0, "after SIGTERM")
    if not play.asked("drain"):
        raise Failed("SIGTERM: it ended without saying so: POST …/drain")
    ends = play.ended(work)
    if any(one not in OWN_ENDS for one in ends):
        raise Failed(f"SIGTERM: it left work behind: its claim ended {', '.join(ends)}")
    if play.worker is not None and play.worker["offline_reason"] != "left":
        raise Failed(f"SIGTERM: the daemon has it {play.worker['lifecycle']}, not OFFLINE by left")


def takeover(play: Play) -> None:
    """Another process takes its name: it ends with 3 and does not take it back."""
    play.begin()
    work = play.work(LONG_MS)
    play.running(work)
    since_s = time.monotonic()
    assert play.worker is not None
    body = {
        "name": play.worker["name"],
        "runtime": "process",
        "version": "1",
        "capacity": {"concurrency": play.worker["concurrency"]},
        "process_id": "another-process",
        "takeover": True,
    }
    with Client(play.ground.url, play.key) as other:
        other.register(body)
    play.until(
        lambda: play.program.code is not None or bool(play.asked("register", since_s)),
        "ignored next: stop — its name was taken (401, reason taken_over) and it goes on",
        living=False,
    )
    again = play.asked("register", since_s)
    if play.program.code is None and again:
        raise Failed("fought back: its name was taken, and it registered again")
    play.ends(3, "after another process took its name", told="stop")
    if play.worker["incarnation"] != 2:
        raise Failed("fought back: its name was taken, and it took it again")


def revoke(play: Play) -> None:
    """Its grant is revoked: it ends with 1, and does not knock on."""
    play.begin()
    play.running(play.work(LONG_MS))
    since_s = time.monotonic()
    play.ground.client.revoke_grant(play.grant_id)
    play.ends(1, "after its grant was revoked", told="stop")
    refused = play.told("stop", since_s)
    if len(refused) > REFUSED_MAX:
        raise Failed(f"its grant was revoked, and {len(refused)} more calls came")


def killed(play: Play) -> None:
    """kill -9 and started again: it takes its name over and works on at once."""
    play.begin()
    work = play.work(LONG_MS)
    play.running(work)
    play.kill()
    play.start()
    play.until(
        lambda: play.ended(work) != ["live"],
        "started again, it did not take its name over: register with takeover: true",
    )
    play.takes_more("started again after kill -9 it took no work")
    if play.worker is not None and play.worker["incarnation"] != 2:
        raise Failed("two processes registered with one process_id: make one at each start")
