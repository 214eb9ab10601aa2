"""The claims of this process: each runs, is stopped when it must be, and is handed to the courier.

The daemon's word on a claim is applied here and nowhere else. A slot is taken for as long as a
handler runs, even one that was told to stop and does not listen.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from feltd.clock import boot_ms
from feltd.model.grant import RuntimeCaps
from feltd.model.policy import RuntimePolicy
from feltd.worker import runner
from feltd.worker.courier import Courier
from feltd.worker.failures import RELEASED, Ending, Fenced, failed, raised
from feltd.worker.leases import Held
from feltd.worker.refusal import Refusal, Unreachable
from feltd.worker.runner import Handler
from feltd.worker.runtimes.runtime import Unenforceable, policy_of, require_inline
from feltd.worker.session import Session, Stopped

log = logging.getLogger("feltd.worker")

#: The handler of whatever has no handler of its own.
ANY = "*"
#: Work that this process has no handler for is given back, but not in a tight circle.
UNHANDLED_PAUSE_S = 1.0
#: Answers to a fenced call after which the handler's work is over, whatever it did: the claim has
#: ended, or this process may not act as the worker any more. None of them is the handler's fault.
OVER = frozenset({"drop_claim", "stop", "register", "reconcile"})
#: Log lines of one call, below the daemon's body bound.
LINES_A_CALL = 200
#: A checkpoint is not begun again with less than this left of the lease.
AGAIN_MS_MIN = 100
#: How long the end of an attempt may be held up by its last log lines.
LINES_PATIENCE_MS = 2_000
#: Given claims that are remembered.
GIVEN_MAX = 1_024


class Desk:
    """What this process holds (`held`), runs (`slots`) and has finished (`courier`)."""

    def __init__(
        self,
        session: Session,
        handlers: Mapping[str, Handler],
        end: Callable[[Stopped], None],
        caps: RuntimeCaps | None = None,
    ) -> None:
        self.session = session
        self.handlers = handlers
        self.held: dict[str, Held] = {}
        self.slots: set[asyncio.Task[None]] = set()
        self.courier = Courier(self._settled)
        self.freed = asyncio.Event()
        self.completed = 0
        self._given_back: set[str] = set()
        # A dictionary for its order: the oldest is forgotten first.
        self._given: dict[str, None] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._end = end
        self.caps = caps

    @property
    def free(self) -> int:
        """Slots without a running handler."""
        return self.session.concurrency - len(self.slots)

    @property
    def credit(self) -> int:
        """Claims this process can hold at once: its slots, but for those of handlers that run on
        after their claim."""
        alive = sum(
            1
            for one in self.held.values()
            if one.task in self.slots and one.stopping not in ("lost", "lease", "timeout")
        )
        return self.session.concurrency - (len(self.slots) - alive)

    def reported(self) -> list[Held]:
        """The claims this process still stands for: what it runs, and outcomes under way."""
        return [one for one in self.held.values() if one.stopping not in ("lost", "lease")]

    def begin(self, claim: Mapping[str, Any]) -> None:
        """Run a claim; one that runs already, or was given back, is left alone."""
        claim_id = str(claim["claim_id"])
        if claim_id in self.held or claim_id in self._given_back:
            return
        held = Held(claim, self.session.settings.lease_ms, self.session.leases)
        self.held[claim_id] = held
        task = asyncio.create_task(self._work(held))
        held.task = task
        self.slots.add(task)
        task.add_done_callback(self._slot_freed)

    def newly_given(self, answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """What a person gave to this worker and it has not been told of before.

        It is told of a claim until it names it. An answer that was long on its way may tell of
        one that has ended here meanwhile: none is begun twice.
        """
        claims = answer.get("assigned_claims") or ()
        fresh = [claim for claim in claims if claim["claim_id"] not in self._given]
        for claim in fresh:
            self._given[claim["claim_id"]] = None
            if len(self._given) > GIVEN_MAX:
                del self._given[next(iter(self._given))]
        return fresh

    def give_back(self, claim: Mapping[str, Any]) -> None:
        """Release a claim that nothing here runs."""
        claim_id = str(claim["claim_id"])
        if claim_id not in self.held and claim_id not in self._given_back:
            self._given_back.add(claim_id)
            held = Held(claim, self.session.settings.lease_ms, self.session.leases)
            held.leaving = True
            self.held[claim_id] = held
            self.courier.hand(held, RELEASED)

    def knows(self, claim_id: object) -> bool:
        """Whether this process runs the claim or is ending it."""
        return claim_id in self.held or claim_id in self._given_back

    def hear(self, answer: Mapping[str, Any]) -> None:
        """Apply what a heartbeat or an exchange says about claims."""
        for claim_id, expires_at_ms in (answer.get("renewed") or {}).items():
            if claim_id in self.held:
                self.held[claim_id].renewed(expires_at_ms)
        for claim_id in answer.get("fenced_claims") or ():
            self.lose(claim_id)
        for claim_id in answer.get("cancel_claims") or ():
            held = self.held.get(claim_id)
            if held is not None and not held.leaving:
                held.stop("cancel")

    def reconciled(self, answer: Mapping[str, Any]) -> None:
        """Apply what a reconciliation says: keep, stop or give back each claim."""
        self.courier.reconciled(list(answer.get("accepted_results") or ()), accepted=True)
        self.courier.reconciled(list(answer.get("late_results") or ()), accepted=False)
        for claim_id in answer.get("fenced_claims") or ():
            self.lose(claim_id)
        cancelled = set(answer.get("cancel_attempts") or ())
        for held in list(self.held.values()):
            if held.claim.get("attempt_id") in cancelled:
                self.lose(held.claim_id)
        for claim in answer.get("authoritative_claims") or ():
            known = self.held.get(claim["claim_id"])
            if known is not None:
                known.renewed(claim["expires_at_ms"])
            elif not self.knows(claim["claim_id"]):
                log.warning("giving %s back: nothing here runs it", claim["claim_id"])
                self.give_back(claim)

    def lose(self, claim_id: str) -> None:
        """The claim is fenced: stop its handler. An outcome under way is answered for itself."""
        held = self.held.get(claim_id)
        if held is not None and not held.leaving:
            log.warning("lost %s of %s: stopping it", claim_id, held.workload_id)
            held.stop("lost")
        elif held is not None:
            self.courier.over(claim_id)

    def give_up(self) -> None:
        """Stop what has had no renewal for two thirds of its lease, by this machine's clock."""
        now_ms = boot_ms()
        for held in self.held.values():
            if held.leaving or held.stopping in ("lost", "lease"):
                continue
            if held.give_up_ms <= now_ms:
                log.warning(
                    "no renewal of %s in time: stopping %s", held.claim_id, held.workload_id
                )
                held.stop("lease")

    def stop_all(self, why: str) -> None:
        """Tell every running handler to stop."""
        for held in list(self.held.values()):
            if not held.leaving:
                held.stop(why)

    def release_all(self) -> None:
        """Hand back what is still running, because the process ends now."""
        for held in list(self.held.values()):
            if not held.leaving and held.stopping != "lost":
                held.leaving = True
                self.courier.hand(held, RELEASED)

    async def checkpoint(self, held: Held, state: Any) -> None:
        """Store a checkpoint for a handler; raises Fenced once the claim is not ours.

        The daemon is asked even when this process has given the claim up: its rows decide.
        """
        if held.leaving:
            raise Fenced(f"{held.claim_id} has been handed back")
        body = {"data": state, "lease_ms": self.session.settings.lease_ms}
        trouble: Refusal | Unreachable
        while True:
            left_ms = max(0, held.give_up_ms - boot_ms())
            key = self.session.key
            try:
                answer = await self.session.fenced("checkpoint", held, body, patience_ms=left_ms)
                break
            except Refusal as refused:
                if refused.status == 401 and await self.session.has_new_key(key):
                    continue
                if refused.next in OVER:
                    self.lose(held.claim_id)
                    raise Fenced(str(refused)) from refused
                if refused.next != "repeat":
                    raise
                trouble = refused
            except Unreachable as silence:
                trouble = silence
            # Renewals may have gone through meanwhile: then there is time for more.
            if held.stopped.is_set() or held.give_up_ms <= boot_ms() + AGAIN_MS_MIN:
                raise ConnectionError(f"the checkpoint was not stored: {trouble}") from trouble
        if answer.get("cancel_requested"):
            held.stop("cancel")

    # -- one claim from begin to end

    async def _work(self, held: Held) -> None:
        try:
            ending = await self._attempt(held)
            if held.sending is not None:
                await asyncio.wait([held.sending])
            if held.lines and not held.leaving and held.stopping not in ("lost", "lease"):
                await self.send_lines(held, patience_ms=LINES_PATIENCE_MS)
            self._finish(held, ending)
        except Stopped as stopped:
            self._end(stopped)

    async def _attempt(self, held: Held) -> Ending | None:
        handler = self.handlers.get(held.definition) or self.handlers.get(ANY)
        if handler is None:
            log.error("no handler for %s: giving %s back", held.definition, held.workload_id)
            await asyncio.sleep(UNHANDLED_PAUSE_S)
            return RELEASED
        if held.claim.get("state") == "CLAIMED":
            try:
                await self.session.fenced("start", held, {})
            except (Refusal, Unreachable) as error:
                log.warning("could not start %s: %s", held.claim_id, error)
                held.stop("lost" if getattr(error, "next", "") in OVER else "lease")
                return None
        log.info(
            "started %s %s, attempt %s, token %d",
            held.definition, held.workload_id, held.claim.get("attempt_number"), held.fencing_token,
        )  # fmt: skip
        if getattr(handler, "enforces_policy", False):
            return await runner.run(handler, held, self.checkpoint)
        return await self._inline(handler, held)

    async def _inline(self, handler: Handler, held: Held) -> Ending | None:
        """Run a handler in this process, under as much of a policy as can be kept to here.

        Once its duration is over its attempt ends, and the handler is told to stop; one that does
        not listen keeps its slot, and what it returns is not accepted.
        """
        try:
            policy = policy_of(held.claim, self.caps)
            require_inline(policy)
        except Unenforceable as error:
            return raised(error)
        limit_s = policy.max_duration_ms / 1_000
        over = asyncio.get_running_loop().call_later(limit_s, self._overdue, held, policy)
        try:
            return await runner.run(handler, held, self.checkpoint)
        finally:
            over.cancel()

    def _overdue(self, held: Held, policy: RuntimePolicy) -> None:
        if held.leaving or held.stopping == "lost":
            return
        held.stop("timeout")
        held.leaving = True
        said = f"it ran longer than max_duration_ms {policy.max_duration_ms}"
        ending = asyncio.get_running_loop().create_task(self._end_overdue(held, said))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _end_overdue(self, held: Held, said: str) -> None:
        try:
            await self.send_lines(held, patience_ms=LINES_PATIENCE_MS)
        finally:
            self.courier.hand(held, failed("timeout", said))

    def _finish(self, held: Held, ending: Ending | None) -> None:
        """Decide how the claim ends, from how the handler ended and why it was stopped."""
        if held.leaving:
            return
        if held.stopping == "lost":
            self.held.pop(held.claim_id, None)
            log.warning("dropped %s of %s: not ours any more", held.claim_id, held.workload_id)
            return
        # A result is always worth sending: the fence decides whether it still counts.
        unfinished = ending is None or ending.verb != "complete"
        if unfinished and held.stopping in ("lease", "shutdown"):
            ending = RELEASED
        elif unfinished and held.stopping == "cancel":
            ending = failed("cancelled", "stopped because it was cancelled")
        ending = ending or failed("execution_error", "the handler said nothing")
        held.leaving = True
        self.courier.hand(held, ending)

    async def send_lines(self, held: Held, *, patience_ms: int | None = None) -> None:
        """Send the log lines that wait; lines that cannot be sent never fail the work."""
        while held.lines:
            lines, held.lines = held.lines[:LINES_A_CALL], held.lines[LINES_A_CALL:]
            body: dict[str, Any] = {"lines": lines}
            try:
                await self._lines(held, body, patience_ms)
            except (Refusal, Unreachable) as error:
                log.warning("lost %d log lines of %s: %s", len(lines), held.workload_id, error)
                if isinstance(error, Refusal) and error.next in OVER:
                    self.lose(held.claim_id)
                    return

    async def _lines(self, held: Held, body: dict[str, Any], patience_ms: int | None) -> None:
        try:
            await self.session.fenced("log", held, body, patience_ms=patience_ms)
        except Refusal as refused:
            if refused.code != "WORKLOAD_SECRET_IN_TEXT":
                raise
            redacted = {**body, "on_secret": "redact"}
            await self.session.fenced("log", held, redacted, patience_ms=patience_ms)

    def _settled(self, held: Held, state: str) -> None:
        self.held.pop(held.claim_id, None)
        if state == "COMPLETED":
            self.completed += 1
        if state:
            log.info("%s is %s", held.workload_id, state)

    def _slot_freed(self, task: asyncio.Task[None]) -> None:
        self.slots.discard(task)
        self.freed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a fault of the worker itself", exc_info=error)
            self._end(Stopped(1, f"a fault of the worker itself: {error!r}"))
