"""A whole worker in sixty lines that knows no code of the daemon's, only what comes `next`."""

import http.client
import json
import random
import sys
import time
import urllib.request
import uuid

URL, KEY, NAME = sys.argv[1:4]
PROCESS = uuid.uuid4().hex
ME = {}


def call(path, body, bearer=None):
    """The answer and '', or the refusal and its `next`; repeats what may be repeated."""
    head = {"Authorization": f"Bearer {bearer or ME['key']}", "Content-Type": "application/json"}
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), head)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=40) as got:
                return json.load(got), ""
        except (OSError, http.client.HTTPException) as lost:
            told = json.load(lost) if hasattr(lost, "read") else {"next": "repeat"}
            if told["next"] not in ("repeat", "wait"):
                return told, told["next"]
        time.sleep(0.2 + random.random() / 2)


def obey(told, next):  # for the worker as a whole; the caller drops its claim or asks again
    if next in ("stop", "fix_request", "ask_operator"):
        sys.exit(f"{next}: {told['detail']}")
    if next == "register":
        register()
    if next == "reconcile":
        obey(*call(ME["path"] + "reconcile", ME["who"] | {"worker_version": "1"}))


def register(takeover=False):
    body = {"name": NAME, "runtime": "process", "version": "1", "capacity": {"concurrency": 1}}
    body |= {"process_id": PROCESS, "issue_key": True, "takeover": takeover}
    body["heartbeat_interval_ms"], body["heartbeat_timeout_ms"] = 1000, 2000
    told, next = call("/v1/workers", body, KEY)
    obey(told, next)
    ME.update(key=told["worker_key"], path=f"/v1/workers/{told['worker']['worker_id']}/")
    ME["who"] = {name: told["worker"][name] for name in ("worker_id", "capability_version")}


def beat(held):
    body = {"version": "1", "capacity": {"concurrency": 1}, "health": "HEALTHY"}
    body |= ME["who"] | {"running_claims": held, "renew_leases": True}
    obey(*call(ME["path"] + "heartbeat", body))


def work(claim):
    fence = {name: claim[name] for name in ("claim_id", "worker_id", "fencing_token")}
    path, done = f"/v1/workloads/{claim['workload_id']}/", (claim.get("checkpoint") or 0)
    for step in range(done, claim["input"]["steps"]):
        time.sleep(0.1)  # the work itself
        beat([claim["claim_id"]])
        told, next = call(path + "checkpoint", fence | {"data": step + 1})
        if next:
            return obey(told, next)
    return obey(*call(path + "complete", fence | {"output": {"from": done}}))


register(takeover=True)
while True:
    beat([])
    pull = {"wait_ms": 500, "lease_ms": 2000, "start": True, "request_id": uuid.uuid4().hex}
    told, next = call(ME["path"] + "claims", pull)
    [work(claim) for claim in told.get("claims", [])] or obey(told, next)
