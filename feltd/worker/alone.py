#!/usr/bin/env python3
"""A feltd worker in one file: Python 3.8 or newer and its standard library, nothing to install.

    curl -O $FELTD_URL/client/worker.py
    FELTD_URL=… FELTD_KEY=… python3 worker.py --exec 'jq .name'

runs a program for each workload: input on stdin, output on stdout, exit code 0 completes, 75 is
transient, else it fails. Or import it: `sys.exit(worker.Worker(function_of_a_job).run())`; an
OSError of the function is transient. It keeps max_duration_ms and refuses work under any tighter
runtime_policy. It goes by what comes `next`, and exits with 0 drained or told to stop, 1 refused,
3 when another process took FELTD_NAME. FELTD_LEASE_MS may be set too.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on in a suspend


class Refused(Exception):
    """A refusal, or silence: `next` says what to do, `told` is all that the daemon said."""

    def __init__(self, told: dict[str, Any], key: str, after: str) -> None:
        super().__init__(f"{told.get('code', 'no answer')}: {told.get('detail', '')}")
        self.told, self.key, self.next = told, key, told.get("next") or "repeat"
        self.after_s = float(after) if after.isdigit() else 0.2

    def pause(self) -> None:  # at least Retry-After, and not in step with others
        print(self, file=sys.stderr)
        time.sleep(self.after_s * (1 + random.random()))


class Job:
    """One piece of work; the handler is called with it, and what it returns is the output."""

    def __init__(self, worker: Worker, claim: dict[str, Any]) -> None:
        self.claim, self._worker = claim, worker
        self.id, self.workload_id = claim["claim_id"], claim["workload_id"]
        self.input, self.checkpoint_state = claim.get("input"), claim.get("checkpoint")
        self.fence, self.attempt = claim["fencing_token"], claim["attempt_number"]
        self.stopping, self.stopped = "", threading.Event()  # lost lease cancelled shutdown timeout
        self.renewed(claim["expires_at_ms"])

    def checkpoint(self, state: Any) -> None:
        """Store `state` for the next attempt. Raises InterruptedError when the work shall stop."""
        while not self.stopped.is_set():
            try:
                if not self._worker.fenced("checkpoint", self, {"data": state})["cancel_requested"]:
                    return
                self.stop("cancelled")
            except Refused as refused:
                if refused.next in ("fix_request", "ask_operator"):
                    raise
                self.stop("lost") if refused.next == "drop_claim" else refused.pause()
        raise InterruptedError(self.stopping)

    def renewed(self, expires_at_ms: int) -> None:  # believed until two thirds of it are over
        self.give_up_s = expires_at_ms / 1000 + self._worker.offset_s - self._worker.lease_ms / 3000

    def stop(self, why: str) -> None:
        """Tell the handler to stop: it looks at `stopped`, or meets it at a checkpoint."""
        self.stopping = why if why == "lost" else self.stopping or why
        self.stopped.set()


class Worker:
    """One process under one name; `run` serves until told to stop, and answers the exit code."""

    def __init__(self, handler: Any, name: str = "", concurrency: int = 1) -> None:
        env = os.environ  # in which nothing that the handler starts shall find the key
        self.url, self.registrar = env.get("FELTD_URL", "").rstrip("/"), env.pop("FELTD_KEY", "")
        self.handler, self.name = handler, name or env.get("FELTD_NAME") or os.uname().nodename
        self.concurrency, self.lease_ms = concurrency, int(env.get("FELTD_LEASE_MS") or 30_000)
        self.process_id, self.key, self.offset_s = os.urandom(16).hex(), "", 0.0
        self.me: dict[str, Any] = {}
        self.held: dict[str, Job] = {}
        self.over: list[tuple[int, str]] = []
        self.mending, self.leaving, self.beat_s = threading.RLock(), False, 0.0

    def call(self, path: str, body: Any, key: str = "", wait_s: float = 0) -> dict[str, Any]:
        """One try of one POST; silence is refused too, with `next` repeat."""
        key = key or self.key
        head = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
        path = path if path[0] == "/" else f"/v1/workers/{self.me['worker_id']}/{path}"
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), head)
        try:
            with urllib.request.urlopen(request, timeout=20 + wait_s) as answer:
                return dict(json.load(answer))
        except Exception as error:  # whatever is no answer
            told, after = {"detail": str(error)}, getattr(error, "headers", {}).get("Retry-After")
            with contextlib.suppress(Exception):  # silence has nothing to be read
                told = dict(json.load(error))  # type: ignore[arg-type]
            raise Refused(told, key, str(after)) from error

    def fenced(self, name: str, job: Job, body: dict[str, Any]) -> dict[str, Any]:
        fence = {"claim_id": job.id, "worker_id": self.me["worker_id"], "fencing_token": job.fence}
        return self.call(f"/v1/workloads/{job.workload_id}/{name}", {**fence, **body})

    def obey(self, refused: Refused) -> None:
        """Do what comes next for the worker as a whole; the caller then tries again."""
        with self.mending:
            if refused.key not in (self.key, self.registrar):
                return  # registered anew meanwhile, under another key
            if refused.next == "stop":
                drained = refused.told.get("offline_reason") in ("drained", "left")
                taken = any(one["code"] == "taken_over" for one in refused.told.get("reasons", ()))
                self.over.append((0 if drained else 3 if taken else 1, str(refused)))
            elif refused.next == "register":
                self.register(takeover=False)
            elif refused.next == "reconcile":
                try:
                    self.reconcile()
                except Refused as again:  # the answer to the next heartbeat says what to do
                    again.pause()
            else:
                refused.after_s += 5 * (refused.next in ("ask_operator", "fix_request"))
                refused.pause()

    def register(self, takeover: bool) -> None:  # only a process that begins takes its name over
        body = {"name": self.name, "runtime": "process", "version": "1", "takeover": takeover}
        body.update(capacity={"concurrency": self.concurrency}, process_id=self.process_id)
        while not self.over:
            try:
                told = self.call("/v1/workers", {**body, "issue_key": True}, self.registrar)
                self.key, self.me = told["worker_key"], told["worker"]
                self.who = {it: self.me[it] for it in ("worker_id", "capability_version")}
                return
            except Refused as refused:
                if refused.next not in ("repeat", "wait"):
                    busy = not takeover and "heard_ms_ago" in refused.told
                    self.over.append((3 if busy else 1, str(refused)))
                refused.pause()

    def beat(self) -> None:  # renews what is held, and hears what is not held any more
        jobs = [job for job in list(self.held.values()) if job.stopping not in ("lost", "lease")]
        body = {**self.who, "health": "HEALTHY", "renew_leases": True, "lease_ms": self.lease_ms}
        body.update(version="1", running_claims=[job.id for job in jobs])
        sent_s = time.clock_gettime(CLOCK)
        told = self.call("heartbeat", {**body, "capacity": {"concurrency": self.concurrency}})
        self.me, self.offset_s = told["worker"], sent_s - told["server_time_ms"] / 1000
        for job in jobs:
            if job.id in told["renewed"]:
                job.renewed(told["renewed"][job.id])
            if job.id in told["fenced_claims"] + told["cancel_claims"]:
                job.stop("lost" if job.id in told["fenced_claims"] else "cancelled")
        for claim in told["assigned_claims"]:
            self.begin(claim)
        if any(one not in self.held for one in told["unknown_claims"]):
            self.reconcile()

    def reconcile(self) -> None:  # both sides hold the same claims then; the daemon's rows decide
        jobs = dict(self.held)
        told = self.call("reconcile", {**self.who, "worker_version": "1", "known_claims": [*jobs]})
        live = {claim["claim_id"]: claim for claim in told["authoritative_claims"]}
        for id, job in jobs.items():
            job.renewed(live[id]["expires_at_ms"]) if id in live else job.stop("lost")
        for id in live.keys() - self.held.keys():
            self.deliver(Job(self, live[id]), "release", {})

    def beats(self) -> None:
        while not self.over:
            now_s = time.clock_gettime(CLOCK)
            for job in [one for one in list(self.held.values()) if one.give_up_s <= now_s]:
                job.stop("lease")
            if self.beat_s <= now_s:
                every_s = min(self.me["heartbeat_interval_ms"], self.lease_ms / 3) / 1000
                self.beat_s = now_s + every_s * random.uniform(0.8, 1)
                try:
                    self.beat()
                except Refused as refused:
                    self.obey(refused)
                    self.beat_s = 0.0
            time.sleep(0.1)

    def pulls(self) -> None:  # work for each free slot; the same request until it is answered
        while not self.leaving and not self.over:
            free, told = self.concurrency - len(self.held), None
            free *= self.me["lifecycle"] in ("READY", "BUSY")
            body: dict[str, Any] = {"max": free, "lease_ms": self.lease_ms, "start": True}
            body.update(wait_ms=20_000, request_id=os.urandom(16).hex())
            while told is None and free > 0 and not self.over:
                try:
                    told = self.call("claims", body, wait_s=20)
                except Refused as refused:
                    self.obey(refused)
            for claim in (told or {}).get("claims", ()):
                self.begin(claim)
            if told and told["lifecycle"] not in ("READY", "BUSY"):
                self.me["lifecycle"], self.beat_s = told["lifecycle"], 0.0
            time.sleep(0.05 if not told or told["claims"] else 0.5)

    def begin(self, claim: dict[str, Any]) -> None:
        if self.leaving:
            self.deliver(Job(self, claim), "release", {})
        elif claim["claim_id"] not in self.held:
            job = self.held[claim["claim_id"]] = Job(self, claim)
            threading.Thread(target=self.work, args=(job,), daemon=True).start()

    def work(self, job: Job) -> None:
        policy, kind = job.claim["runtime_policy"], "policy_unenforceable"
        timer = threading.Timer(min(policy["max_duration_ms"] / 1000, 1e9), self.overdue, (job,))
        try:
            if job.claim["state"] == "CLAIMED":
                self.deliver(job, "start", {})
            for it, asked in {**policy, "max_duration_ms": None, "artifact_policy": None}.items():
                if asked not in (None, "inherit"):
                    raise ValueError(f"{it} {asked} cannot be enforced here")
            timer.start()
            verb, kind = "complete", "execution_error"
            json.dumps(body := {"output": self.handler(job)})
        except Exception as error:  # whatever the handler raises is how the attempt ended
            said = f"{type(error).__name__}: {error}".replace("\0", "")[-2000:]
            kind = "transient" if isinstance(error, OSError) else kind
            why = {"kind": job.stopping or kind, "message": said, "on_secret": "redact"}
            verb, body = ("release", {}) if job.stopping in ("lease", "shutdown") else ("fail", why)
        timer.cancel()
        timer.join() if job.stopping == "timeout" else self.deliver(job, verb, body)
        self.held.pop(job.id)

    def overdue(self, job: Job) -> None:
        job.stop("timeout")
        time.sleep(0.5)  # a program has been killed by then
        if job.stopping == "timeout":
            self.deliver(job, "fail", {"kind": "timeout", "message": "max_duration_ms is over"})

    def deliver(self, job: Job, verb: str, body: dict[str, Any]) -> None:
        """Send one word on a claim until it is answered; the answer to a repeat is the same."""
        while job.stopping != "lost" and not self.over:
            try:
                self.fenced(verb, job, body)
                return
            except Refused as refused:
                why = {"kind": "execution_error", "message": f"the outcome: {refused}"}
                if refused.next == "fix_request" and verb in ("complete", "fail"):
                    verb, body = ("fail", why) if verb == "complete" else ("release", {})
                elif refused.next in ("stop", "repeat", "wait", "register", "reconcile"):
                    self.obey(refused) if refused.next == "stop" else refused.pause()
                else:
                    print(f"{verb} of {job.workload_id}: {refused}", file=sys.stderr)
                    job.stop("lost")

    def run(self) -> int:
        for it in (signal.SIGTERM, signal.SIGINT):
            signal.signal(it, lambda *_: setattr(self, "leaving", True) if self.key else sys.exit())
        threading.excepthook = lambda fault: self.over.append((1, f"a fault: {fault.exc_value!r}"))
        self.register(takeover=True)
        parts = [threading.Thread(target=part, daemon=True) for part in (self.beats, self.pulls)]
        for part in parts:
            part.start()
        while not self.leaving and not self.over:
            time.sleep(0.05)
        with contextlib.suppress(Refused):
            self.over or self.call("drain", {"reason": "the process was told to stop"})
        parts[1].join(2)  # what it was given in the same instant is given back
        for tenth in range(300):  # 25 s to finish, then 5 s to be given back
            if self.held and not self.over:
                for job in list(self.held.values()) if tenth >= 250 else ():
                    job.stop("shutdown")
                time.sleep(0.1)
        code, reason = (self.over or [(0, "told to stop")])[0]
        print(f"{self.name} stopped: {reason}", file=sys.stderr)
        return code


def run_program(text: str, job: Job) -> Any:
    """Run a program for a job; it is told its fence, and never sees the worker's key."""
    env = dict(os.environ, FELTD_WORKLOAD_ID=job.workload_id, FELTD_FENCING_TOKEN=str(job.fence))
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    given: Any = json.dumps(job.input).encode()
    program = subprocess.Popen(["/bin/sh", "-c", text], env=env, start_new_session=True, **pipes)
    while program.returncode is None:
        os.killpg(program.pid, signal.SIGKILL) if job.stopped.is_set() else None
        with contextlib.suppress(subprocess.TimeoutExpired):
            heard = program.communicate(given, timeout=0.1)
        given = None
    output, said = (stream.decode(errors="replace").strip() for stream in heard)
    if program.returncode != 0:
        kind = OSError if program.returncode == 75 else RuntimeError
        raise kind(f"exit code {program.returncode}: {said[-1900:]}")
    with contextlib.suppress(ValueError):
        return json.loads(output)
    return output


if __name__ == "__main__":
    usage = "usage: FELTD_URL=… FELTD_KEY=… python3 worker.py --exec CMD"
    right = len(sys.argv) == 3 and sys.argv[1] == "--exec"
    sys.exit(Worker(lambda job: run_program(sys.argv[2], job)).run() if right else usage)
