"""Why a fenced call changed no row: read after the conditional UPDATE, never before it.

The order is the law's and is what clients are written against: key → not the caller's worker →
no such workload → other application → ended, expired, superseded or made up → authority → state.
A repeat of the verb by which this very claim ended is no refusal: it gets the recorded outcome.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import principals
from feltd.mesh import authority, workers
from feltd.mesh.retry import RESERVED
from feltd.mesh.states import LIVE_STATES
from feltd.model.base import Ask, Caller
from feltd.model.claim import Fence, Outcome
from feltd.store.tx import Row, Tx

READ = """
SELECT k.tenant_id, k.application_id, k.incarnation, k.authority_live, k.authority_unsettled,
       k.authority_expires_at_ms, w.tenant_id AS work_tenant_id,
       w.application_id AS work_application_id, w.state, w.fencing_token, w.claim_worker_id,
       w.claim_incarnation, w.expires_at_ms, w.cancel_requested, d.at_ms AS timeout_at_ms
  FROM workers k
  LEFT JOIN workloads w ON w.workload_id = :workload_id
  LEFT JOIN deadlines d ON d.workload_id = w.workload_id
 WHERE k.worker_id = :worker_id
"""

RECORDED = """
SELECT c.end_kind, c.end_state, c.end_sha256, c.retry_at_ms, w.result_id, w.result_token,
       w.cancel_requested
  FROM claims c
  JOIN workloads w ON w.workload_id = c.workload_id
 WHERE c.fencing_token = :fencing_token
   AND c.workload_id = :workload_id
   AND c.worker_id = :worker_id
   AND c.ended_at_ms IS NOT NULL
"""

UNSETTLED = """
SELECT k.authority_unsettled
  FROM workers k
 WHERE k.worker_id = :worker_id
   AND k.authority_unsettled = 1
"""


F = TypeVar("F", bound=Fence)


class Verb(NamedTuple):
    """A fenced verb as a refusal needs it: its name, the states it works in, its body's digest."""

    name: str
    states: frozenset[str]
    body_sha256: str | None = None


def token_of(claim_id: str) -> int | None:
    """The fencing token in `claim_<token>`; None for a text that is no claim's id."""
    digits = claim_id.removeprefix("claim_")
    if digits == claim_id or not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        return None
    token = int(digits)
    return token if f"claim_{token}" == claim_id else None


def presented(ask: Ask[F], now: Now) -> dict[str, object]:
    """The parameters of the fence: what the caller is, and what it says it holds.

    A claim id of another token than the one beside it names no claim at all: token 0.
    """
    caller, fence = ask.caller, ask.body
    agrees = token_of(fence.claim_id) == fence.fencing_token
    return {
        "workload_id": ask.id,
        "fencing_token": fence.fencing_token if agrees else 0,
        "worker_id": own_worker(caller, fence.worker_id),
        "incarnation": caller.incarnation,
        "key_id": caller.key_id,
        "now_ms": now.lease_ms,
        "wall_ms": now.wall_ms,
    }


def own_worker(caller: Caller, named: str) -> str:
    """The worker a call acts as if it is the one it names, else ''."""
    acting = named if caller.open else caller.worker_id
    return named if acting == named else ""


def settled(tx: Tx, now: Now, worker_id: object) -> bool:
    """Compare a worker's claims with its changed grant, if that is still to be done.

    True when it was: then the fenced UPDATE deserves a second try.
    """
    if tx.row(UNSETTLED, {"worker_id": worker_id}) is None:
        return False
    authority.settle(tx, now, str(worker_id))
    return True


def explain(tx: Tx, ask: Ask[F], now: Now, params: Mapping[str, object], verb: Verb) -> Outcome:
    """The recorded outcome when this claim was ended by this verb and body; else raise why not.

    A repeat is an accepted call: the worker counts as heard.
    """
    principals.confirm(tx, ask.caller, now)
    row = tx.row(READ, params)
    if row is None:
        raise _crossing("worker", "the claim is of another worker than the caller")
    if row["work_tenant_id"] != row["tenant_id"]:
        absent = principals.not_found("WORKLOAD_NOT_FOUND")
        raise Refused(absent.code, absent.detail, next="drop_claim")
    if row["work_application_id"] != row["application_id"]:
        raise _crossing("application", "the workload is of another application")
    if not _lives(row, params, now):
        recorded = _recorded(tx, now, params, verb)
        workers.heard(tx, str(params["worker_id"]), now)
        return recorded
    if not _authorized(row, now):
        raise Refused(
            "MESH_CAPABILITY_DENIED",
            "claim capability snapshot is invalid",
            reasons=[
                {"code": "grant", "detail": "the grant this worker registered with is not live"}
            ],
        )
    if row["state"] in verb.states:
        raise RuntimeError(f"{verb.name} changed no row although nothing speaks against it")
    if verb.name == "start":
        workers.heard(tx, str(params["worker_id"]), now)
        return outcome(params, row)
    raise Refused(
        "WORKLOAD_TRANSITION_DENIED",
        f"{verb.name} is for {', '.join(sorted(verb.states))}; the workload is {row['state']}",
    )


def outcome(params: Mapping[str, object], row: Row) -> Outcome:
    """What a verb answers while the claim lives on."""
    return Outcome(
        workload_id=str(params["workload_id"]),
        state=row["state"],
        claim_id=f"claim_{row['fencing_token']}",
        fencing_token=row["fencing_token"],
        expires_at_ms=row["expires_at_ms"],
        cancel_requested=bool(row["cancel_requested"]),
    )


def _crossing(code: str, detail: str) -> Refused:
    return Refused(
        "MESH_CLAIM_SCOPE_DENIED",
        "claim crosses worker/workload scope",
        reasons=[{"code": code, "detail": detail}],
    )


def _lives(row: Row, params: Mapping[str, object], now: Now) -> bool:
    named = params["incarnation"]
    return (
        row["state"] in LIVE_STATES
        and row["fencing_token"] == params["fencing_token"]
        and row["claim_worker_id"] == params["worker_id"]
        and row["claim_incarnation"] == row["incarnation"]
        and (named is None or named == row["incarnation"])
        and row["expires_at_ms"] > now.lease_ms
        and (row["timeout_at_ms"] is None or row["timeout_at_ms"] > now.lease_ms)
    )


def _authorized(row: Row, now: Now) -> bool:
    ends_at_ms = row["authority_expires_at_ms"]
    return bool(row["authority_live"]) and (ends_at_ms is None or ends_at_ms > now.wall_ms)


def _recorded(tx: Tx, now: Now, params: Mapping[str, object], verb: Verb) -> Outcome:
    ended = tx.row(RECORDED, params)
    if ended is None or not _by(verb.name, ended):
        raise Refused(
            "WORKLOAD_STALE_FENCE",
            "the claim has ended, its lease or a timeout is over, or it never was: stop working",
            server_time_ms=now.lease_ms,
        )
    if verb.name == "complete" and ended["end_sha256"] != verb.body_sha256:
        raise Refused(
            "WORKLOAD_STALE_FENCE",
            "this claim completed the workload with another body",
            recorded=True,
        )
    token = params["fencing_token"]
    return Outcome(
        workload_id=str(params["workload_id"]),
        state=ended["end_state"],
        claim_id=f"claim_{token}",
        fencing_token=int(str(token)),
        cancel_requested=bool(ended["cancel_requested"]),
        result_id=ended["result_id"] if ended["result_token"] == token else None,
        eligible_at_ms=ended["retry_at_ms"],
    )


def _by(verb: str, ended: Row) -> bool:
    """Whether this verb, called by the claim itself, is what ended it."""
    if ended["end_sha256"] is None:
        return False
    if verb == "complete":
        return bool(ended["end_kind"] == "completed")
    if verb == "release":
        return bool(ended["end_kind"] == "released")
    return verb == "fail" and ended["end_kind"] not in RESERVED | {"completed"}
