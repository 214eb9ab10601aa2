"""What answers tell of workers, keys and grants, and what of it must agree with what was known."""

from msgspec.json import decode

from feltd.clock import Now
from feltd.identity import bearer
from feltd.model.base import Caller
from feltd.model.claim import Claim
from feltd.model.worker import Result, Worker
from feltd.store.tx import Row
from tests.sim.calls import Call
from tests.sim.history import Bearer, Given, History, Hold, Peer, Stop, Violation
from tests.sim.judge import body_of


def saw(history: History, worker: Worker) -> None:
    """A worker as an answer shows it; what it holds must be what is known."""
    peer = history.peers[worker.worker_id]
    told = [int(claim_id.removeprefix("claim_")) for claim_id in worker.claims]
    known = history.live_of(worker.worker_id)
    if sorted(told) != known:
        raise Violation(f"{worker.worker_id} holds {told}, known are {known}")
    if worker.incarnation != peer.incarnation:
        raise Violation(f"{worker.worker_id} is incarnation {worker.incarnation}: {peer}")
    peer.concurrency = worker.capacity.concurrency
    peer.timeout_ms = worker.heartbeat_timeout_ms
    peer.lifecycle = worker.lifecycle
    peer.drained = worker.drain is not None
    peer.labels = decode(worker.labels)
    kept = worker.quarantine
    # One that ends by the wall clock is over at an instant that only the daemon sees.
    peer.confined = kept is not None and kept.until_at_ms is None
    peer.heard_ms = worker.last_seen_at_ms
    peer.grant_id = worker.authorization_grant_id


def of_worker(history: History, event: Row) -> None:
    """An event that is about a worker alone."""
    peer = history.peers.get(event["worker_id"] or "")
    if peer is not None and event["to_state"] is not None:
        peer.lifecycle = event["to_state"]
        if event["kind"] == "restore":
            peer.heard_ms = event["at_ms"]


def renewed(history: History, ends: dict[str, int] | None, now: Now) -> None:
    """Leases a heartbeat renewed."""
    for claim_id, end_ms in (ends or {}).items():
        hold = history.holds[int(claim_id.removeprefix("claim_"))]
        wrong = history.forbids_claim(hold, now)
        if wrong is not None:
            raise Violation(f"a beat renewed token {hold.token}, although {wrong}")
        moved_out(history, hold, end_ms, now)


def moved_out(history: History, hold: Hold, end_ms: int, now: Now) -> None:
    if end_ms < hold.low_ms:
        raise Violation(f"the lease of token {hold.token} moved in to {end_ms}: {hold}")
    chain_ms = history.chain_ends_ms(history.peers[hold.worker_id].grant_id)
    bound_ms = None if chain_ms is None else now.lease_from_wall(chain_ms)
    if bound_ms is not None and end_ms > max(hold.high_ms, bound_ms):
        raise Violation(f"the lease of token {hold.token} outlives its grant: {end_ms}")
    hold.ends(end_ms)


def require_tenant(caller: Caller, tenant_id: str) -> None:
    if not {"*", tenant_id} & set(caller.tenants):
        raise Violation(f"{caller.subject} reached into tenant {tenant_id}")


def shown(history: History, claim: Claim) -> None:
    """A live claim, told in full."""
    hold = history.holds.get(claim.fencing_token)
    known = None if hold is None else (hold.workload_id, hold.worker_id, hold.high_ms, hold.ended)
    if known != (claim.workload_id, claim.worker_id, claim.expires_at_ms, None):
        raise Violation(f"a claim was told as {claim}, known is {hold}")


# -- workers ---------------------------------------------------------------------------------


def registered(history: History, call: Call) -> None:
    answer, caller = call.answer.answer, call.caller
    worker: Worker = answer.worker
    peer = history.peers.get(worker.worker_id)
    if peer is not None and worker.incarnation > peer.incarnation:
        if history.live_of(worker.worker_id):
            raise Violation(f"{worker.worker_id} was taken over with its claims: {worker.claims}")
        _end_issued(history, worker.worker_id, worker.incarnation)
    history.peers[worker.worker_id] = Peer(
        worker.worker_id,
        worker.tenant_id,
        worker.application_id,
        worker.incarnation,
        worker.capacity.concurrency,
        worker.heartbeat_timeout_ms,
        worker.authorization_grant_id,
        worker.lifecycle,
        worker.last_seen_at_ms,
    )
    saw(history, worker)
    # The same process may have come with another grant, which ends earlier.
    _cut(history, history.peers[worker.worker_id], call.now)
    if answer.worker_key is not None:
        _end_issued(history, worker.worker_id, worker.incarnation + 1)
        key_id = bearer.parse(answer.worker_key)
        assert key_id is not None
        history.bearers[key_id] = Bearer(
            key_id,
            worker.worker_id,
            worker.incarnation,
            worker.authorization_grant_id,
            caller.key_id or None,
            history.bearers[caller.key_id].expires_ms if caller.key_id else None,
        )


def _end_issued(history: History, worker_id: str, below: int) -> None:
    """Keys issued to incarnations before `below` end."""
    history.end_bearers(
        [
            one.key_id
            for one in history.bearers.values()
            if one.worker_id == worker_id
            and one.incarnation is not None
            and one.incarnation < below
        ]
    )


def beaten(history: History, call: Call) -> None:
    renewed(history, call.answer.renewed, call.now)
    known = history.chain_ends_ms(history.peers[call.cmd.id].grant_id)
    if call.answer.grant_expires_at_ms != known:
        raise Violation(f"the grant ends at {call.answer.grant_expires_at_ms}, known is {known}")


def reconciled(history: History, call: Call) -> None:
    """Afterwards both sides hold the same set, and each id got one verdict."""
    answer, told = call.answer, call.cmd.body
    held_now = [claim.fencing_token for claim in answer.authoritative_claims]
    known = history.live_of(call.cmd.id)
    if held_now != known:
        raise Violation(f"reconciled to {held_now}, known are {known}")
    for claim in answer.authoritative_claims:
        shown(history, claim)
    accepted = {attempt.removeprefix("attempt_") for attempt in answer.accepted_results}
    for claim_id in told.known_claims:
        number = claim_id.removeprefix("claim_")
        verdicts = [
            claim_id in {claim.claim_id for claim in answer.authoritative_claims},
            claim_id in answer.fenced_claims,
            number in accepted,
        ]
        if sum(verdicts) != 1:
            raise Violation(f"{claim_id} got the verdicts {verdicts}")
    for result in told.results or ():
        hold = history.holds.get(result.fencing_token)
        ended = None if hold is None or hold.worker_id != call.cmd.id else hold.ended
        if result.attempt_id in answer.accepted_results and ended is None:
            raise Violation(f"{result.attempt_id} was accepted, yet its claim is {hold}")
        if result.attempt_id in answer.accepted_results and hold is not None:
            completed = result.outcome == "completed"
            body = body_of(result.result or Result()) if completed else None
            hold.ended_by = hold.ended_by or ("complete" if completed else "fail", body)


def drained(history: History, call: Call) -> None:
    told = [int(one.claim_id.removeprefix("claim_")) for one in call.answer.outstanding_claims]
    if told != history.live_of(call.cmd.id):
        raise Violation(f"{told} are outstanding, known are {history.live_of(call.cmd.id)}")


def removed(history: History, call: Call) -> None:
    peer = history.peers[call.cmd.id]
    peer.removed, peer.drained, peer.lifecycle = True, False, "OFFLINE"
    peer.confined = False
    if history.live_of(call.cmd.id):
        raise Violation(f"{call.cmd.id} was removed with its claims")


def stopped(history: History, call: Call) -> None:
    """A hold was placed; one that ends by the wall clock may be over at any time."""
    made, asked = call.answer, call.cmd.body
    if made.until_at_ms is None:
        history.stops[made.hold_id] = Stop(asked.tenant_id, made.scope, made.value)


def lifted(history: History, call: Call) -> None:
    history.stops.pop(call.cmd.id, None)


# -- keys and grants -------------------------------------------------------------------------


def issued(history: History, call: Call) -> None:
    grant = call.answer
    history.givens[grant.id] = Given(grant.id, grant.parent_grant, grant.expires_at_ms)


def revoked(history: History, call: Call) -> None:
    gone = history.below(call.cmd.id)
    history.givens[call.cmd.id].ended = True
    history.end_bearers([one.key_id for one in history.bearers.values() if one.grant_id in gone])
    for hold in history.live():
        peer = history.peers[hold.worker_id]
        if peer.grant_id in gone:
            raise Violation(f"the grant of {peer.worker_id} was revoked, token {hold.token} lives")


def replaced(history: History, call: Call) -> None:
    """Leases are cut to an earlier end, where the change reached the worker."""
    body, changed = call.cmd.body, history.below(call.cmd.id)
    history.givens[call.cmd.id].expires_ms = body.expires_at_ms
    cap = body.constraints.max_concurrency
    for peer in history.peers.values():
        if peer.grant_id in changed and cap is not None:
            peer.concurrency = min(peer.concurrency, cap)
    for peer in history.peers.values():
        if peer.grant_id in changed:
            _cut(history, peer, call.now)


def _cut(history: History, peer: Peer, now: Now) -> None:
    """Leases of a worker may have moved in to the end of its grant."""
    chain_ms = history.chain_ends_ms(peer.grant_id)
    for token in history.live_of(peer.worker_id):
        hold = history.holds[token]
        if chain_ms is not None:
            hold.low_ms = min(hold.low_ms, now.lease_from_wall(chain_ms))


def key_made(history: History, call: Call) -> None:
    made = call.answer
    history.bearers[made.key_id] = Bearer(
        made.key_id,
        made.worker_id,
        made.incarnation,
        made.grant_id,
        (call.caller.key_id or None) if made.worker_id else None,
        made.expires_at_ms,
    )


def key_revoked(history: History, call: Call) -> None:
    history.end_bearers([call.cmd.id])
