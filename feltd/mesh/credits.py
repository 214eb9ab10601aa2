"""What the worker behind a channel is told unasked: work to its credit, and what became of claims.

A look of the daemon, not a call of the worker: it never counts as heard, and it gives no work to a
worker that has not been heard in time. What was told already is the channel's to know.
"""

from collections.abc import Collection
from functools import partial

from msgspec import Struct

from feltd.clock import Now
from feltd.errors import Refused
from feltd.mesh import claims, heartbeat, lifecycle, placement, workers
from feltd.mesh.claims import Post
from feltd.model.base import Ask
from feltd.model.channel import Credit
from feltd.model.claim import Claim, Pull, Pulled, Reason
from feltd.model.worker import Drain
from feltd.store.tx import Row, Tx

#: Whether a claim that is over was ended by its worker's own verb.
OWN_END = """
SELECT c.fencing_token
  FROM claims c
 WHERE c.fencing_token = :fencing_token
   AND c.end_sha256 IS NOT NULL
"""

PULL_MAX = 256
REACHED = Reason("WORKER_FULL", "the worker holds as many claims as its credit")
SILENT = Reason("WORKER_NOT_READY", "the worker has not been heard within its timeout")


class Looking(Struct, frozen=True):
    """What a look is for: the credit, and the claims that the worker may believe it holds."""

    credit: Credit | None
    held: tuple[str, ...] = ()


class Looked(Struct, frozen=True, kw_only=True):
    """What a look found.

    `claims` were taken just now, `given` by an operator; `live` is all that the worker holds, and
    `pulled` says why nothing more came, None where nothing more is wanted.
    """

    claims: list[Claim]
    given: list[Claim]
    fenced: list[str]
    cancelled: list[str]
    drain: Drain | None
    live: list[str]
    pulled: Pulled | None


def missing(credit: Credit, active: int) -> Pull | None:
    """The pull that fills a credit up, None where it is full."""
    if credit.most <= active:
        return None
    return Pull(
        max=min(credit.most - active, PULL_MAX),
        lease_ms=credit.lease_ms,
        workload_kinds=credit.workload_kinds,
        start=credit.start,
    )


def look(tx: Tx, ask: Ask[Looking], now: Now) -> tuple[Post, Looked]:
    """Fill the credit of the worker `ask.id` up, and name what its rows say beside.

    Repeating takes nothing more than is missing. Refuses UNAUTHENTICATED, FORBIDDEN,
    WORKER_NOT_FOUND.
    """
    wish = ask.body
    row = claims.puller(tx, ask.caller, now, ask.id, None, heard=False)
    worker = workers.present(tx, ask.id)
    live = workers.live_claims(tx, ask.id)
    found = heartbeat.differences(tx, worker, [*wish.held, *live], (), now)
    pulled, again_ms = _fill(tx, ask, now, row, len(live))
    taken = [] if pulled is None else pulled.claims
    looked = Looked(
        claims=taken,
        given=found.assigned_claims,
        fenced=_taken_away(tx, found.fenced_claims),
        cancelled=found.cancel_claims,
        drain=workers.drain_of(worker),
        live=[*live, *(claim.claim_id for claim in taken)],
        pulled=pulled,
    )
    wants = wish.credit is not None and missing(wish.credit, len(looked.live)) is not None
    post = claims.post_of(tx, row, wish.credit)
    return post._replace(again_ms=again_ms, wants=wants), looked


def _fill(
    tx: Tx, ask: Ask[Looking], now: Now, row: Row, active: int
) -> tuple[Pulled | None, int | None]:
    """What the credit brings and when to look again if not before; None: it wants nothing."""
    credit = ask.body.credit
    pull = None if credit is None else missing(credit, active)
    if pull is None:
        return None, None
    reason = SILENT
    if "stale" not in placement.standing(row, now, active=active):
        own = Ask(caller=ask.caller, body=pull, id=ask.id, limits=ask.limits)
        try:
            post, pulled = tx.attempt(partial(claims.pull_for, tx, own, now, heard=False))
            return pulled, post.again_ms
        except Refused as refused:
            reason = Reason(refused.code, refused.detail)
    shown = lifecycle.shown(row, active)
    return Pulled(claims=[], lifecycle=shown, reasons=[reason], server_time_ms=now.lease_ms), None


def _taken_away(tx: Tx, claim_ids: Collection[str]) -> list[str]:
    """Of claims that are over, those that somebody else ended."""
    return [claim_id for claim_id in claim_ids if not _ended_itself(tx, claim_id)]


def _ended_itself(tx: Tx, claim_id: str) -> bool:
    number = claim_id.removeprefix("claim_")
    token = int(number) if number.isascii() and number.isdigit() and len(number) < 19 else 0
    return tx.row(OWN_END, {"fencing_token": token}) is not None
