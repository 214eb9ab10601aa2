"""Who this process is to the daemon: registration, heartbeat, reconciliation, own drain.

The registrar's key (FELTD_KEY) is used to register and for nothing else; the worker key that comes
back is the bearer of every other call. Losing the name ends the process: it never fights back.
"""

import asyncio
import logging
import os
import random
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from feltd import __version__
from feltd.clock import boot_ms, wall_ms
from feltd.worker.channel import Channel
from feltd.worker.client import AsyncClient
from feltd.worker.expiry import Expiry
from feltd.worker.leases import RENEW_AT, Held, LeaseView
from feltd.worker.refusal import Refusal, Unreachable
from feltd.worker.transport import pause_s
from feltd.worker.verbs.calls import Json

log = logging.getLogger("feltd.worker")

DONE = 0
FAILED = 1
NAME_TAKEN = 3
#: A beat is small and comes again soon: one that is not answered by then is given up.
BEAT_ANSWER_S_MAX = 10.0
#: A start that reaches no daemon says so after the first of these, then after each further one.
WAIT_FOR_DAEMON_MS = (2_000, 30_000)
NO_KEY = "FELTD_KEY is not set: give it the key that 'feltd enroll' makes for a worker"
WRONG_KEY = "FELTD_KEY is no key of this daemon: 'feltd enroll' makes one for a worker"
#: What a grant calls the capabilities that its workers may have.
GRANTED = "worker:capability:"


class Stopped(Exception):
    """This process has to end, with this exit code, for this reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Settings(NamedTuple):
    """What a worker says of itself when it registers; None: as the grant has it."""

    name: str
    concurrency: int | None = None
    capabilities: tuple[str, ...] | None = None
    kinds: tuple[str, ...] = ()
    labels: dict[str, str] | None = None
    version: str = __version__
    runtime: str = "process"
    lease_ms: int = 30_000
    heartbeat_interval_ms: int | None = None
    heartbeat_timeout_ms: int | None = None


def host_name() -> str:
    """The name of this machine, made fit for a worker's name."""
    name = re.sub(r"[^A-Za-z0-9._@+-]", "-", socket.gethostname())[:128]
    return name if name.strip(".") else "worker"


class Session:
    """One process under one name. `begin` registers it; the rest are its calls."""

    def __init__(self, client: AsyncClient, settings: Settings) -> None:
        self.client = client
        self.settings = settings
        self.process_id = secrets.token_hex(16)
        self.leases = LeaseView()
        self.expiry = Expiry()
        self.worker_id = ""
        self.name = settings.name
        self.key: str | None = None
        self.lifecycle = "REGISTERED"
        self.offline_reason: str | None = None
        self.drain_intent: Json | None = None
        self.version = settings.version
        self.capability_version = 0
        self.incarnation = 1
        self.concurrency = 1
        self.interval_ms = 10_000
        self.timeout_ms = 30_000
        #: The way of exchanges and beats while it is open, and who exchanges by it.
        self.channel: Channel | None = None
        self.by_channel: Callable[[Channel, Json], Awaitable[Json]] | None = None
        self._clock_ms = 0
        self._asked: Json = {}
        #: Held while this process registers; a key that ends meanwhile is replaced by then.
        self.mending = asyncio.Lock()

    @property
    def every_ms(self) -> int:
        """How often to beat, so that a lease is renewed at a third of its length."""
        return max(250, min(self.interval_ms, int(self.settings.lease_ms * RENEW_AT)))

    @property
    def left(self) -> bool:
        """Whether a drain is complete, an operator's or our own: nobody waits for this worker."""
        return self.lifecycle == "OFFLINE" and self.offline_reason in ("drained", "left")

    @property
    def drained_by(self) -> str:
        """Who drained this worker and why, and what ends the drain, as a person reads it."""
        drain = self.drain_intent
        if drain is None or drain.get("by") == f"worker:{self.worker_id}":
            return "drained"
        why = f": {drain['reason']}" if drain.get("reason") else ""
        ends = f"'feltd worker resume {self.name}' ends the drain"
        if drain.get("until") == "registered":
            ends = "its next registration ends the drain"
        return f"drained by {drain.get('by')}{why} ({ends})"

    async def begin(self) -> None:
        """Find out what the key allows, and register; waits for a daemon that is not there.

        Ends the process where nothing of the capabilities it asks for is granted, before it could
        take the name from another.
        """
        me = await self._patiently(self.client.me)
        if me.get("worker_id"):
            # The key is a worker's own: it was registered by somebody else and is used as it is.
            shown = await self.client.worker(me["worker_id"], patience_ms=None)
            self._is(shown)
            self._compare(shown.get("granted_capabilities") or ())
            self._say_drain()
            return
        grant = me.get("grant") or {}
        if grant:
            held = [str(one) for one in grant.get("capabilities") or ()]
            self._compare([one.removeprefix(GRANTED) for one in held if one.startswith(GRANTED)])
        self._asked = self._registration(grant)
        await self._register(takeover=True, new_key=True)
        self._say_drain()

    def _compare(self, granted: Iterable[str], *, begins: bool = True) -> None:
        """Say which of the capabilities asked for are not granted.

        A process that begins ends where none is.
        """
        asked, held = set(self.settings.capabilities or ()), set(granted)
        if asked <= held:
            return
        lacking = ", ".join(sorted(asked - held))
        told = f"not granted: {lacking}; granted: {', '.join(sorted(held)) or 'none'}"
        if begins and not asked & held:
            raise Stopped(FAILED, f"no capability that was asked for is granted ({told})")
        log.warning("no work that needs it comes here: capability %s", told)

    def _say_drain(self) -> None:
        if self.drain_intent is not None:
            log.warning("no work will come: %s", self.drained_by)

    def _registration(self, grant: Json) -> Json:
        asked = self.settings
        most = (grant.get("constraints") or {}).get("max_concurrency")
        concurrency = asked.concurrency or most or min(os.cpu_count() or 1, 1_024)
        body: Json = {
            "name": asked.name,
            "runtime": asked.runtime,
            "version": asked.version,
            "capacity": {"concurrency": concurrency},
            "workload_kinds": sorted(set(asked.kinds)),
            "process_id": self.process_id,
        }
        for member, value in (
            ("capabilities", None if asked.capabilities is None else list(asked.capabilities)),
            ("labels", asked.labels),
            ("heartbeat_interval_ms", asked.heartbeat_interval_ms),
            ("heartbeat_timeout_ms", asked.heartbeat_timeout_ms),
        ):
            if value is not None:
                body[member] = value
        return body

    async def _register(self, *, takeover: bool, new_key: bool = False) -> Json:
        """Register, and answer the worker's row.

        The name is taken over at the start of the process and at no other time.
        """
        body = {**self._asked, "takeover": takeover, "issue_key": new_key}
        sent_ms = boot_ms()
        answer = await self._patiently(lambda **how: self.client.register(body, **how))
        self.leases.saw(sent_ms, answer.get("server_time_ms"))
        self.key = answer.get("worker_key") or self.key
        self._is(answer["worker"])
        log.info("registered as %s (%s)", self.settings.name, self.worker_id)
        worker: Json = answer["worker"]
        return worker

    async def _patiently(self, call: Any) -> Json:
        """Repeat a call of the start until the daemon answers, saying every while that it waits."""
        patience_ms, longer_ms = WAIT_FOR_DAEMON_MS
        while True:
            try:
                answer: Json = await call(patience_ms=patience_ms)
                return answer
            except Unreachable as silence:
                log.warning("waiting for the daemon: %s", silence)
            except Refusal as refused:
                if refused.next != "repeat":
                    raise self.stopped_by(refused) from refused
                log.warning("waiting for the daemon: %s", refused)
                # Patience may have ended before Retry-After did.
                await asyncio.sleep(pause_s(1, refused.retry_after_s, random.random()))
            patience_ms = longer_ms

    def _is(self, worker: Json) -> None:
        """Take what the daemon knows of this worker for true."""
        self.worker_id = worker["worker_id"]
        self.name = worker.get("name", self.name)
        self.lifecycle = worker.get("lifecycle", self.lifecycle)
        self.offline_reason = worker.get("offline_reason")
        self.drain_intent = worker.get("drain")
        self.version = worker.get("version", self.version)
        self.capability_version = worker.get("capability_version", self.capability_version)
        self.incarnation = worker.get("incarnation", self.incarnation)
        self.concurrency = (worker.get("capacity") or {}).get("concurrency", self.concurrency)
        self.interval_ms = worker.get("heartbeat_interval_ms", self.interval_ms)
        self.timeout_ms = worker.get("heartbeat_timeout_ms", self.timeout_ms)

    def stopped_by(self, refused: Refusal) -> Stopped:
        """The end of the process that a refusal means."""
        newer = refused.facts.get("incarnation")
        superseded = isinstance(newer, int) and newer > self.incarnation
        # Registering again is only ever refused as busy when another process has the name.
        busy = refused.code == "WORKER_BUSY" and "heard_ms_ago" in refused.facts
        if refused.reason == "taken_over" or superseded or (busy and self.worker_id):
            return Stopped(NAME_TAKEN, "another process took the name")
        if refused.status == 401:
            said = f"{refused.code}: {refused.reason_detail}"
            if not self.worker_id and refused.reason is None:
                # A key that has ended comes with a reason; this one was never a key here.
                said = f"{said}; {WRONG_KEY}" if self.client.transport.key else NO_KEY
            return Stopped(FAILED, said)
        return Stopped(FAILED, f"{refused.code}: {refused.detail}")

    # -- calls of a registered worker

    async def beat(self, held: Iterable[Held], active: int) -> Json:
        """One heartbeat that renews every lease in `held`; one try, a few seconds."""
        holding = list(held)
        body = {
            "worker_id": self.worker_id,
            "version": self.version,
            "capability_version": self.capability_version,
            "capacity": {"concurrency": self.concurrency, "active": active},
            "health": "HEALTHY",
            "timestamp_at_ms": max(0, wall_ms() + self._clock_ms),
            "running_claims": [one.claim_id for one in holding],
            "renew_leases": True,
            "lease_ms": self.settings.lease_ms,
            "process_id": self.process_id,
        }
        told = {one.claim_id: one.progress for one in holding if one.progress is not None}
        if told:
            body["progress"] = told
        lease_s = min(self.settings.lease_ms, self.timeout_ms) / 1000
        sent_ms = boot_ms()
        answer = await self._beat(body, min(BEAT_ANSWER_S_MAX, max(1.0, lease_s / 6)))
        self.leases.saw(sent_ms, answer.get("server_time_ms"))
        self.expiry.hear(answer)
        self._is(answer["worker"])
        return answer

    async def _beat(self, body: Json, answer_s: float) -> Json:
        """By the channel; what is refused there is asked again over HTTP, which says all of it."""
        if self.channel is not None:
            answer = await self.channel.call({"heartbeat": body}, answer_s)
            if answer["outcomes"][0]["ok"]:
                return answer
        return await self.client.heartbeat(
            self.worker_id, body, bearer=self.key, answer_s=answer_s, patience_ms=0
        )

    async def exchange(self, body: Json, **how: Any) -> Json:
        """One exchange as this worker; over its channel, if there is one, one try."""
        if self.channel is not None and self.by_channel is not None:
            return await self.by_channel(self.channel, body)
        return await self.client.exchange(self.worker_id, body, bearer=self.key, **how)

    async def fenced(self, verb: str, held: Held, body: Json, **how: Any) -> Json:
        """One fenced call for a claim."""
        whole = {**held.fence(self.worker_id), **body}
        sent_ms = boot_ms()
        answer = await self.client.fenced(verb, held.workload_id, whole, bearer=self.key, **how)
        held.renewed(answer.get("expires_at_ms"))
        log.debug("%s %s in %d ms", verb, held.claim_id, boot_ms() - sent_ms)
        return answer

    async def reconcile(self, held: Iterable[Held], results: list[Json]) -> Json:
        """Compare what this process holds with the daemon's rows; those decide. One try.

        What is held may be another when it is tried again, so each try tells anew.
        """
        body = {
            "worker_id": self.worker_id,
            "known_claims": [one.claim_id for one in held],
            "worker_version": self.version,
            "capability_version": self.capability_version,
            "results": results,
        }
        answer = await self.client.reconcile(self.worker_id, body, bearer=self.key, patience_ms=0)
        self._is(answer["worker"])
        return answer

    async def drain(self, reason: str, **how: Any) -> Json:
        """Say that this worker takes no more work."""
        body = {"reason": reason, "until": "registered"}
        answer = await self.client.drain(self.worker_id, body, bearer=self.key, **how)
        self._is(answer["worker"])
        return answer

    async def look(self) -> Json:
        """The worker's own row."""
        shown = await self.client.worker(self.worker_id, bearer=self.key, patience_ms=0)
        self._is(shown)
        return shown

    async def has_new_key(self, key: str | None) -> bool:
        """Whether `key`, which was refused, has been replaced while its call was under way."""
        async with self.mending:
            return key != self.key

    async def register_again(self) -> None:
        """Register with the same process_id, after a change of the grant or a removal.

        A removed name comes back as a new incarnation, whose keys are new too.
        """
        if not self._asked:
            raise Stopped(FAILED, "the worker has to be registered again by whoever registered it")
        async with self.mending:
            before = self.incarnation
            worker = await self._register(takeover=False)
            if self.incarnation > before:
                worker = await self._register(takeover=False, new_key=True)
            self._compare(worker.get("granted_capabilities") or (), begins=False)

    def set_clock(self, refused: Refusal) -> None:
        """Correct this process's clock by the daemon's wall time; the machine's is left alone."""
        theirs = refused.facts.get("wall_time_ms")
        if isinstance(theirs, int):
            self._clock_ms = theirs - wall_ms()
            log.warning("this machine's clock is %d ms off the daemon's", -self._clock_ms)
