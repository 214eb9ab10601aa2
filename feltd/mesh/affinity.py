"""Work that leans towards some workers: it is left for a better match, but not for long.

A head whose placement names affinity is passed over by a pull while another worker could take it
now and has more of the labels, until the head is affinity_wait_ms old. Judged on heads alone, and
by the same conditions as every placement. Nobody is made to take it: after the wait anybody may.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from feltd.clock import Now
from feltd.mesh import holds, placement, pools
from feltd.model.policy import AFFINITY_WAIT_MS
from feltd.store.tx import Row, Tx

#: Workers of an application that one pull looks at; a better match beyond them is not waited for.
OTHERS_MAX = 500
#: Labels of other workers that one pull compares with heads, some 10 ms; what it has not compared
#: by then it does not leave.
COMPARED_MAX = 10_000
#: A better worker may be gone before the wait is over: who waits for it looks again so often.
LOOK_AGAIN_MS = 1_000
#: Offers of workers remembered by their versions.
OFFERS_MAX = 5_000

OTHERS = """
SELECT k.worker_id, k.incarnation, k.content_version, k.capability_version,
       k.granted_capabilities, k.workload_kinds, k.resource_profile, k.labels, k.concurrency,
       k.health, k.lifecycle, k.drain_at_ms, k.last_seen_at_ms, k.heartbeat_timeout_ms,
       k.authority_live, k.authority_unsettled, k.authority_expires_at_ms, k.quarantined_at_ms,
       k.quarantined_until_at_ms,
       (SELECT count(*)
          FROM claims c
         WHERE c.worker_id = k.worker_id
           AND c.ended_at_ms IS NULL) AS active
  FROM workers k
 WHERE k.tenant_id = :tenant_id
   AND k.application_id = :application_id
   AND k.lifecycle = 'READY'
 ORDER BY k.worker_id
 LIMIT :limit
"""


class Affinity(Struct, frozen=True):
    """What a demand leans towards, and how long its heads wait for it."""

    wanted: placement.Wanted
    labels: dict[str, str]
    wait_ms: int


class Leaning(Struct, frozen=True):
    """An affinity, and how many of its labels one worker has."""

    affinity: Affinity
    met: int


def asked(wanted: placement.Wanted, told: Mapping[str, Any]) -> Affinity:
    """The affinity of a placement as it is stored."""
    return Affinity(wanted, told["affinity"], told.get("affinity_wait_ms", AFFINITY_WAIT_MS))


def leaning(affinity: Affinity, offered: placement.Offered) -> Leaning:
    """How far a worker meets an affinity."""
    return Leaning(affinity, met(affinity.labels, offered.labels))


def met(labels: Mapping[str, str], had: Mapping[str, str]) -> int:
    """How many of these labels a worker has."""
    return sum(had.get(key) == text for key, text in labels.items())


class Waits:
    """What one pull of a worker leaves for others, and when it is over."""

    def __init__(self, tx: Tx, now: Now, worker: Row) -> None:
        self._tx = tx
        self._now = now
        self._worker = worker
        #: The others that could take work at this instant, by each label they have.
        self._others: dict[tuple[str, str], list[placement.Offered]] | None = None
        self._compared = 0
        #: Lease time at which something of what was left is to be looked at again.
        self.again_at_ms: int | None = None

    def left(self, leaning: Leaning, eligible_at_ms: int) -> bool:
        """Whether a head, eligible since then, is left for a worker that matches better."""
        over_at_ms = eligible_at_ms + leaning.affinity.wait_ms
        if leaning.met == len(leaning.affinity.labels) or over_at_ms <= self._now.lease_ms:
            return False
        if self._compared > COMPARED_MAX or not self._better(leaning):
            return False
        again_at_ms = min(over_at_ms, self._now.lease_ms + LOOK_AGAIN_MS)
        self.again_at_ms = min(again_at_ms, self.again_at_ms or again_at_ms)
        return True

    def _better(self, leaning: Leaning) -> bool:
        """Whether one of the others has more of the labels, and the work fits it."""
        others = self._could()
        having = [other for pair in leaning.affinity.labels.items() for other in others[pair]]
        self._compared += len(having)
        counts = Counter(other.worker_id for other in having)
        return any(
            counts[other.worker_id] > leaning.met and self._fits(other, leaning.affinity.wanted)
            for other in having
        )

    def _fits(self, other: placement.Offered, wanted: placement.Wanted) -> bool:
        worker = self._worker
        owner = (worker["tenant_id"], worker["application_id"], worker["gate_generation"])
        known = pools.of_application(self._tx, *owner)
        return not placement.unfit(other, wanted, known, holds.of_application(self._tx, *owner))

    def _could(self) -> dict[tuple[str, str], list[placement.Offered]]:
        if self._others is None:
            self._others = defaultdict(list)
            worker = self._worker
            asked = {
                "tenant_id": worker["tenant_id"],
                "application_id": worker["application_id"],
                "limit": OTHERS_MAX,
            }
            for row in self._tx.rows(OTHERS, asked):
                if row["worker_id"] == worker["worker_id"]:
                    continue
                if not placement.standing(row, self._now, active=row["active"]):
                    offered = _offer(self._tx, row)
                    for pair in offered.labels.items():
                        self._others[pair].append(offered)
        return self._others


def _offer(tx: Tx, row: Row) -> placement.Offered:
    """What a worker offers, read once for each of its versions."""
    offers: dict[tuple[str, int, int, int], placement.Offered] = tx.memo.setdefault("offers", {})
    key = (
        row["worker_id"],
        row["incarnation"],
        row["content_version"],
        row["capability_version"],
    )
    offered = offers.get(key)
    if offered is None:
        if len(offers) >= OFFERS_MAX:
            offers.clear()
        offered = offers[key] = placement.of_worker(row)
    return offered
