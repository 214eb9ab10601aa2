"""A reconciliation as this process takes part in it: what it tells, and what it does about it.

The daemon's rows decide. What one body cannot carry, or what the daemon will not read, is never a
reason not to reconcile: it goes by itself afterwards.
"""

import logging

from feltd.worker.courier import BYTES_MAX, Parcel, results
from feltd.worker.desk import Desk
from feltd.worker.refusal import Refusal
from feltd.worker.session import Session
from feltd.worker.verbs.calls import Json

#: What a refused reconciliation has recorded nevertheless.
RECORDED = ("accepted_results", "late_results")

log = logging.getLogger("feltd.worker")


async def reconcile(session: Session, desk: Desk) -> None:
    """Make both sides hold the same claims, and hand in outcomes that could not be delivered.

    One try: raises Unreachable when no answer came, and the daemon may have done it. Raises
    Refusal when the daemon does not take this worker back; what it recorded of the outcomes all
    the same is settled by then.
    """
    courier = desk.courier
    # What is under way may have arrived or not: told twice, it is judged as at first.
    ended = [*courier.waiting.values(), *courier.under_way.values(), *courier.late]
    told, carried = results(ended)
    try:
        answer = await _tell(session, desk, told)
    except Refusal as refused:
        desk.reconciled({name: refused.facts.get(name) for name in RECORDED})
        if refused.next != "fix_request" or not told:
            raise
        log.warning("outcomes are not taken in a reconciliation, each goes by itself: %s", refused)
        answer = await _tell(session, desk, [])
    courier.late = [one for one in courier.late if one not in carried and _fits(one)]
    desk.reconciled(answer)


async def _tell(session: Session, desk: Desk, told: list[Json]) -> Json:
    """Name every claim this process stands for, once."""
    ended = {one["claim_id"] for one in told}
    held = [one for one in desk.reported() if one.claim_id not in ended]
    return await session.reconcile(held, told)


def _fits(parcel: Parcel) -> bool:
    """Whether a late outcome may go with a later reconciliation."""
    return parcel.bytes <= BYTES_MAX
