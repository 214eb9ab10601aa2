"""Holds every answer and every event against what was acknowledged before.

The daemon's events say what happened, the oracle says whether it may have: each kind of event has
a cause that must be known from the calls alone. `newest_token` outlives even a restored database.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from feltd.clock import Now
from feltd.mesh.retry import FREE
from feltd.model.claim import Outcome
from feltd.model.group import CancelGroup
from feltd.model.workload import Cancel
from feltd.store.tx import Row, Tx
from tests.sim import answers, bulks, clerks, edits, fates, shelves, standing, times, waits
from tests.sim.calls import ENDING, FENCED, Call
from tests.sim.history import LIVE, History, Hold, Violation, Work
from tests.sim.judge import Item, body_of, judge

WORKLOADS = """
SELECT w.workload_id, w.state, w.fencing_token, w.attempts_spent, w.cancel_requested, w.result_id,
       w.output, w.expires_at_ms, w.eligible_at_ms, w.claim_worker_id, w.priority,
       w.not_before_at_ms, w.placement, w.pool_id, w.concurrency, w.timeouts, w.retry_policy,
       w.max_attempts, w.labels, d.at_ms AS timeout_at_ms
  FROM workloads w
  LEFT JOIN deadlines d ON d.workload_id = w.workload_id
"""

ENDED_KEYS = """
SELECT k.key_id
  FROM keys k
 WHERE k.revoked_at_ms IS NOT NULL
"""

#: What may withdraw claims from a worker: a change of what it stands on.
REGRANTING = frozenset({"revoke_grant", "replace_grant", "register"})


class Oracle:
    """What is known, and the counts of what was ever reached."""

    #: Off only where the rules are made not to end keys, to see what else stands in the way.
    compares_keys = True

    def __init__(self) -> None:
        self.history = History()
        self.newest_token = 0
        self.reached: Counter[str] = Counter()
        #: What the daemon does with claims of silent workers whose work says nothing.
        self.on_worker_lost = "end"
        #: A start that found an earlier database is under way.
        self.rolled_back = False

    # -- calls -------------------------------------------------------------------------------

    def heard(self, call: Call) -> None:
        """A call was committed, or refused. Raises Violation."""
        if call.refusal is not None:
            self.reached[call.refusal.code] += 1
            ended = call.refusal.code == "UNAUTHENTICATED"
            for why in call.refusal.facts.get("reasons", ()) if ended else ():
                self.reached[f"ended key {why['code']}"] += 1
        elif call.verb in ("pull", "exchange"):
            self.reached.update(reason.code for reason in call.answer.reasons)
        events = list(call.events)
        if call.verb in FENCED:
            self._item(call, _single(call), events)
        elif call.refusal is not None:
            answers.refused(self.history, call)
        elif call.verb == "exchange":
            self._exchange(call, events)
        elif call.verb == "reconcile":
            self._allow(call, "it reconciled")
        elif call.verb in ("pull", "claim"):
            self._allow(call, "it got work")
        expected = bulks.before(self.history, call) if call.verb == "bulk" else []
        self._apply_all(call, events)
        if call.verb == "bulk":
            bulks.changed(self.history, call, expected)
        if call.refusal is None:
            answers.after(self.history, call)
        clerks.heard(self.history, call)

    def _lost(self, hold: Hold) -> str:
        """What becomes of a claim whose worker fell silent: it ends, or it runs out."""
        asked = self.history.works[hold.workload_id].asked
        return asked.on_worker_lost or self.on_worker_lost

    def lost(self) -> list[str]:
        """Claims that a whole round of the keeper should have ended with their silent workers."""
        return [
            f"claim_{hold.token}"
            for hold in self.history.live()
            if self.history.peers[hold.worker_id].lifecycle == "OFFLINE"
            and self._lost(hold) == "end"
        ]

    def credited(self, now: Now, gap_ms: int, first: bool) -> None:
        """The writer gave credit for time in which nothing could be heard."""
        since_ms = -1 if first else now.lease_ms - gap_ms
        history = self.history
        for hold in history.live():
            times.credited(history, hold, now, since_ms)
            peer = history.peers[hold.worker_id]
            end_ms = now.lease_ms + peer.timeout_ms
            chain_ms = history.chain_ends_ms(peer.grant_id)
            if chain_ms is not None:
                end_ms = min(end_ms, now.lease_from_wall(chain_ms))
            if hold.high_ms > since_ms:
                hold.ends(max(hold.high_ms, end_ms))
        for peer in history.peers.values():
            if peer.lifecycle != "OFFLINE" and peer.heard_ms + peer.timeout_ms > since_ms:
                peer.heard_ms = max(peer.heard_ms, now.lease_ms)

    def compare(self, tx: Tx) -> None:
        """Nothing acknowledged is missing or different, and nothing else is there."""
        shelves.compare(self.history, tx, self.reached)
        gone = self.history.gone
        works = {name: work for name, work in self.history.works.items() if name not in gone}
        for row in tx.rows(WORKLOADS):
            work = works.pop(row["workload_id"], None)
            if work is None:
                raise Violation(f"nobody was told of {row['workload_id']}")
            self._compare(work, row)
        if works and not shelves.cleared(self.history, works, tx):
            raise Violation(f"acknowledged work is missing: {sorted(works)}")
        if not self.compares_keys:
            return
        ended = {row["key_id"] for row in tx.rows(ENDED_KEYS)}
        known = {bearer.key_id for bearer in self.history.bearers.values() if bearer.ended}
        if ended != known:
            raise Violation(f"keys that ended without cause, or did not: {sorted(ended ^ known)}")

    def _compare(self, work: Work, row: Row) -> None:
        waits.compare(work)
        said = (work.state, work.token, work.spent, work.cancel)
        found = (row["state"], row["fencing_token"], row["attempts_spent"])
        if said != (*found, bool(row["cancel_requested"])):
            raise Violation(f"{work.workload_id} is {tuple(row)}, known as {said}")
        if work.state == "COMPLETED" and work.result != (row["result_id"], row["output"]):
            raise Violation(f"the result of {work.workload_id} changed to {tuple(row)}")
        if work.state == "READY" and row["eligible_at_ms"] != work.eligible_at_ms:
            if work.asked.not_before_ms is None:
                raise Violation(f"{work.workload_id} is eligible at another time: {tuple(row)}")
            # A wall instant: the keeper moves it when the wall clock is moved.
            work.eligible_at_ms = row["eligible_at_ms"]
        edits.compare(work, row)
        times.compare(self.history, work, row["timeout_at_ms"])
        if work.state in LIVE:
            hold = self.history.holds[work.token]
            if not hold.low_ms <= row["expires_at_ms"] <= hold.high_ms:
                known = (hold.low_ms, hold.high_ms)
                raise Violation(
                    f"the lease of token {hold.token} ends at {row['expires_at_ms']}, known {known}"
                )
            hold.ends(row["expires_at_ms"])

    def _allow(self, call: Call, what: str) -> None:
        wrong = self.history.forbids_caller(call.caller, call.now)
        if wrong is not None:
            raise Violation(f"{what}, although {wrong}")

    # -- fenced calls ------------------------------------------------------------------------

    def _exchange(self, call: Call, events: list[Row]) -> None:
        self._allow(call, "it exchanged")
        told = list(call.answer.outcomes)
        if call.cmd.body.body.heartbeat is not None:
            beat = told.pop(0)
            self.reached[beat.code or "beat in an exchange"] += 1
            standing.renewed(self.history, call.answer.renewed, call.now)
        for verb in FENCED:
            for body in getattr(call.cmd.body.body, verb):
                outcome = told.pop(0)
                self.reached[outcome.code or f"{verb} in an exchange"] += 1
                answer = outcome if outcome.ok else None
                item = Item(
                    verb, body.workload_id, body, call.caller, call.sound, answer, outcome.code
                )
                self._item(call, item, events)

    def _item(self, call: Call, item: Item, events: list[Row]) -> None:
        """Judge one fenced call, then take in the events that are its own."""
        self._apply_while(call, events, lambda event: event["kind"] == "withdraw")
        hold = judge(self.history, item, call.now)
        if hold is None:
            self.reached["repeated end"] += item.answer is not None
            return
        answers.held(self.history, hold, item.answer, call.now)
        token = item.body.fencing_token
        own = (item.verb, "start") if item.verb in ("complete", "fail") else (item.verb,)
        self._apply_while(
            call,
            events,
            # Those who waited for its end are told in the same breath.
            lambda event: (
                event["kind"] == "settle"
                or (event["fencing_token"] == token and event["kind"] in own)
            ),
            item.body,
        )
        if item.verb in ENDING:
            hold.ended_by, hold.outcome = (item.verb, body_of(item.body)), item.answer
            if hold.ended is None:
                raise Violation(f"{item.verb} of token {token} was answered, but it did not end")

    # -- events ------------------------------------------------------------------------------

    def _apply_all(self, call: Call, events: list[Row]) -> None:
        self._apply_while(call, events, lambda event: True)

    def _apply_while(
        self, call: Call, events: list[Row], wanted: Callable[[Row], bool], body: Any = None
    ) -> None:
        # Events of workers stand between those of their claims.
        while events and (events[0]["workload_id"] is None or wanted(events[0])):
            event = events.pop(0)
            if event["workload_id"] is None:
                standing.of_worker(self.history, event)
            else:
                self._apply(call, event, body)

    def _apply(self, call: Call, event: Row, body: Any) -> None:
        kind = event["kind"]
        if kind == "create":
            self._created(event)
            return
        work = self.history.works.get(event["workload_id"])
        if work is None:
            raise Violation(f"{kind} of {event['workload_id']}, which was never made")
        if kind == "fence":
            self.reached["fence raised"] += 1
            return
        if event["to_state"] is None:
            if kind == "edit":
                edits.told(work, event)
            else:
                work.cancel = True
            return
        if event["from_state"] != work.state:
            raise Violation(f"{kind} of {work.workload_id} from {event['from_state']}: {work}")
        if kind == "claim":
            self._claimed(call, work, event)
        elif kind == "settle":
            waits.settled(work, event)
            self.reached[f"settled {event['to_state']}"] += 1
        elif event["end_kind"] is not None and event["fencing_token"] is None:
            times.gave_up(self.history, work, event, call.now)
            self.reached[f"end {event['end_kind']}"] += 1
        elif event["end_kind"] is not None:
            self._ended(call, work, event, body)
        elif kind == "start":
            self.history.holds[event["fencing_token"]].started_ms = event["at_ms"]
        elif kind == "checkpoint":
            self.history.holds[event["fencing_token"]].ends(event["expires_at_ms"])
        elif kind == "requeue":
            work.spent, work.releases, work.cancel = 0, 0, False
            work.born_ms, work.backoff_ms = event["at_ms"], None
            waits.requeued(self.history, work, event["to_state"])
            self.reached[f"requeued {event['to_state']}"] += 1
        work.state = event["to_state"]
        waits.moved(self.history, work)
        if event["eligible_at_ms"] is not None:
            work.eligible_at_ms = event["eligible_at_ms"]
        if work.state == "READY":
            work.ready_ms = event["at_ms"]
            work.backoff_ms = event["eligible_at_ms"] if event["end_kind"] else None
        if kind in ("settle", "requeue"):
            edits.begins(call, work)

    def _created(self, event: Row) -> None:
        history, workload_id = self.history, event["workload_id"]
        if workload_id in history.works:
            raise Violation(f"{workload_id} was made twice")
        history.works[workload_id] = Work(
            workload_id,
            event["tenant_id"],
            event["application_id"],
            event["to_state"],
            event["eligible_at_ms"] or 0,
            max_attempts=0,
            born_ms=event["at_ms"],
            ready_ms=event["at_ms"],
        )

    def _claimed(self, call: Call, work: Work, event: Row) -> None:
        history, token = self.history, event["fencing_token"]
        worker_id, now = event["worker_id"], call.now
        peer, place = history.peers[worker_id], work.asked.placement
        labels = peer.labels.items()
        wrong = [
            (not place.required_labels.items() <= labels, f"it is only for {place}"),
            (bool(place.anti_affinity.items() & labels), f"it is not for {place}"),
            (token <= self.newest_token, f"token {self.newest_token} was issued before"),
            (work.eligible_at_ms > now.lease_ms, f"it is eligible at {work.eligible_at_ms}"),
            (times.passed(history, work, now), "a timeout of it has passed"),
            (work.spent >= work.max_attempts, f"{work.spent} attempts are spent"),
            (call.caller.worker_id != worker_id and call.verb != "give", "the caller is another"),
            (peer.drained, "the worker is drained"),
            (peer.confined, "the worker is quarantined"),
            (history.stopped(work) is not None, f"{history.stopped(work)} holds it"),
            (peer.removed or peer.lifecycle == "OFFLINE", "the worker is gone"),
            (len(history.live_of(worker_id)) >= peer.concurrency, "the worker is full"),
            (not history.chain_lives(peer.grant_id, now), "its grant is not live"),
            (
                (peer.tenant_id, peer.application_id) != (work.tenant_id, work.application_id),
                "the worker is of another application",
            ),
        ]
        for is_wrong, why in wrong:
            if is_wrong:
                raise Violation(f"{work.workload_id} was claimed as {token}, although {why}")
        self.reached["given"] += call.verb == "give"
        self.newest_token = work.token = token
        end_ms = event["expires_at_ms"]
        hold = Hold(token, work.workload_id, worker_id, peer.incarnation, end_ms, end_ms)
        hold.request_id = answers.request_id_of(call)
        start_ms = work.asked.timeouts.start_ms
        if start_ms is not None:
            hold.start_low_ms = hold.start_high_ms = now.lease_ms + start_ms
        history.holds[token] = hold

    def _ended(self, call: Call, work: Work, event: Row, body: Any) -> None:
        history, now, kind = self.history, call.now, event["end_kind"]
        hold = history.holds[event["fencing_token"]]
        if hold.ended is not None or work.token != hold.token:
            raise Violation(f"token {hold.token} ended twice: {hold.ended}, then {kind}")
        self._require_cause(call, hold, event, body)
        self.reached[f"end {kind}"] += 1
        self.reached[f"to {event['to_state']}"] += 1
        hold.ended = kind
        fates.check(call, work, hold, event, body)
        work.releases = work.releases + 1 if kind == "released" else 0
        spends = call.verb == "evict" and call.cmd.body.spend_attempt
        work.spent += spends or kind not in FREE
        if work.spent > work.max_attempts:
            raise Violation(f"{work.workload_id} spent {work.spent} of {work.max_attempts}")
        if kind == "completed":
            work.result = answers.result_of(call, body, hold, work.workload_id)
        elif work.cancel and event["to_state"] != "CANCELLED":
            raise Violation(f"{work.workload_id} was to be cancelled, and is {event['to_state']}")
        if event["to_state"] == "READY" and event["eligible_at_ms"] < now.lease_ms:
            raise Violation(f"{work.workload_id} is eligible before its claim ended")

    def _require_cause(self, call: Call, hold: Hold, event: Row, body: Any) -> None:
        """Every end has a cause that is known without the database."""
        verb, kind, now = event["kind"], event["end_kind"], call.now
        peer = self.history.peers[hold.worker_id]
        if verb in ENDING:
            # A fenced call, alone or in an exchange, has been judged; a delivered result has not.
            why = None if body is not None else self.history.forbids_claim(hold, now)
            known = why is None and call.caller.worker_id == hold.worker_id
        elif verb == "recover":
            known = times.lapses(self.history, self.history.works[hold.workload_id], hold, now)
        elif verb == "time_out":
            work = self.history.works[hold.workload_id]
            known = times.ends_claim(self.history, work, hold, kind, now)
        elif verb == "lose":
            moved = call.verb in ("register", "transition") and answers.is_about(call, peer)
            silent = peer.heard_ms + peer.timeout_ms <= now.lease_ms
            runs_out = self._lost(hold) == "lease"
            known = moved or (call.verb == "detect_failures" and silent and not runs_out)
        elif verb == "withdraw":
            known = call.verb in REGRANTING
        elif verb == "evict":
            known = call.verb in ("evict", "give_back")
        elif verb == "cancel":
            body = getattr(call.cmd.body, "cancel", call.cmd.body)
            known = isinstance(body, Cancel | CancelGroup) and body.force
        else:
            known = verb == "restore" and self.rolled_back
        if not known:
            raise Violation(f"token {hold.token} ended {kind} by {call.verb} at {now}: {hold}")


def _single(call: Call) -> Item:
    answer = call.answer if call.refusal is None else None
    assert answer is None or isinstance(answer, Outcome)
    code = call.refusal.code if call.refusal is not None else ""
    return Item(call.verb, call.cmd.id, call.cmd.body, call.caller, call.sound, answer, code)
