"""Outcomes on their way to the daemon: kept until it has answered, sent again when it has not.

A finished attempt stands here until its claim is settled. What the daemon says about one item
decides about that item alone; no failure is ever lost to a refusal of its text or its size.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from feltd.clock import boot_ms
from feltd.worker.failures import RELEASED, Ending, failed
from feltd.worker.leases import Held

log = logging.getLogger("feltd.worker")

ITEMS_MAX = 256
#: Below the daemon's 1 MiB body, with room for one output of the greatest size.
BYTES_MAX = 900 * 1024
#: An item that the daemon asked to repeat goes again after this.
AGAIN_MS = 500


class Parcel:
    """The outcome of one claim: a verb of the fence and the body that goes with it."""

    def __init__(self, held: Held, ending: Ending) -> None:
        self.held = held
        self.verb = ending.verb
        self.body = dict(ending.body)
        self.hint = ending.hint
        self.not_before_ms = 0
        self.alone = False

    @property
    def bytes(self) -> int:
        """Bytes of the body on the wire, about."""
        return len(msgspec.json.encode(self.body)) + 256

    def become(self, ending: Ending) -> None:
        """End the claim in another way than was refused."""
        self.verb = ending.verb
        self.body = dict(ending.body)
        self.hint = ending.hint
        self.alone = False

    def say_failed(self, *, screened: bool = True) -> None:
        """Log the failure, once the daemon has taken it.

        Only the daemon knows what looks like a secret: a text that it refused, or has not screened,
        is not shown.
        """
        held, text = self.held, self.body.get("message")
        if not screened or "on_secret" in self.body:
            text = f"(its text, redacted: feltd workload show {held.workload_id})"
        log.warning(
            "failed %s %s: %s: %s",
            held.definition, held.workload_id, self.body.get("kind"), text,
        )  # fmt: skip
        if self.hint:
            log.info("hint: %s", self.hint)


class Courier:
    """The outcomes that wait (`waiting`) and those under way; each claim at most once.

    `on_settled` is called once for each claim whose end is known.
    """

    def __init__(self, on_settled: Callable[[Held, str], None]) -> None:
        self.waiting: dict[str, Parcel] = {}
        self.under_way: dict[str, Parcel] = {}
        #: Outcomes that came too late: the next reconciliation leaves them as evidence.
        self.late: list[Parcel] = []
        self.arrived = asyncio.Event()
        self._on_settled = on_settled

    def __len__(self) -> int:
        return len(self.waiting) + len(self.under_way)

    def hand(self, held: Held, ending: Ending) -> None:
        """Take the outcome of a claim to be delivered."""
        self.waiting[held.claim_id] = Parcel(held, ending)
        self.arrived.set()

    def load(self, *, hurry: bool = False) -> list[Parcel]:
        """Take what may go now, oldest first, within an exchange's bounds.

        A parcel whose exchange was refused whole goes alone. `hurry` ignores pauses.
        """
        now_ms, size = boot_ms(), 0
        loaded: list[Parcel] = []
        for claim_id, parcel in list(self.waiting.items()):
            if parcel.not_before_ms > now_ms and not hurry:
                continue
            size += parcel.bytes
            if loaded and (size > BYTES_MAX or len(loaded) >= ITEMS_MAX or parcel.alone):
                break
            loaded.append(parcel)
            self.under_way[claim_id] = self.waiting.pop(claim_id)
            if parcel.alone:
                break
        if not self.waiting:
            self.arrived.clear()
        return loaded

    def put_back(self, parcels: list[Parcel], *, pause_ms: int = 0, alone: bool = False) -> None:
        """Nothing is known of these: they go again with the same bodies."""
        for parcel in parcels:
            if self.under_way.pop(parcel.held.claim_id, None) is not None:
                parcel.not_before_ms = boot_ms() + pause_ms
                parcel.alone = alone
                self.waiting[parcel.held.claim_id] = parcel
        if self.waiting:
            self.arrived.set()

    def settle(self, parcels: list[Parcel], outcomes: list[dict[str, Any]]) -> None:
        """Apply the daemon's word on each item; one without a word goes again."""
        said = {
            (one.get("op"), one.get("claim_id")): one for one in outcomes if isinstance(one, dict)
        }
        for parcel in parcels:
            one = said.get((parcel.verb, parcel.held.claim_id))
            if one is None:
                self.put_back([parcel], pause_ms=AGAIN_MS)
            elif one.get("ok"):
                if parcel.verb == "fail":
                    parcel.say_failed()
                self._settled(parcel, str(one.get("state") or ""))
            else:
                self.refused(
                    parcel,
                    str(one.get("code") or ""),
                    str(one.get("next") or ""),
                    str(one.get("detail") or ""),
                )

    def refused(self, parcel: Parcel, code: str, next: str, detail: str) -> None:
        """One item was refused: change it so that it can be accepted, or let the claim go."""
        held = parcel.held
        if next in ("repeat", "wait"):
            self.put_back([parcel], pause_ms=AGAIN_MS)
        elif code == "WORKLOAD_SECRET_IN_TEXT" and "on_secret" not in parcel.body:
            parcel.body["on_secret"] = "redact"
            self.put_back([parcel])
        elif next == "fix_request" and parcel.verb == "complete":
            parcel.become(failed("execution_error", f"the result was refused: {code}: {detail}"))
            self.put_back([parcel])
        elif next == "fix_request" and parcel.verb == "fail":
            log.error("the failure of %s was refused: %s: %s", held.claim_id, code, detail)
            plain = failed("execution_error", f"a failure whose text was refused with {code}")
            parcel.become(RELEASED if parcel.body == plain.body else plain)
            self.put_back([parcel])
        else:
            log.warning(
                "the %s of %s was refused, its work is not accepted: %s: %s",
                parcel.verb, held.claim_id, code, detail,
            )  # fmt: skip
            if next == "drop_claim" and parcel.verb != "release":
                self.late = [*self.late, parcel][-ITEMS_MAX:]
            self._settled(parcel, "")

    def reconciled(self, attempt_ids: list[str], *, accepted: bool) -> None:
        """A reconciliation settled these attempts: their outcome stands, or came too late."""
        for parcel in [*self.waiting.values(), *self.under_way.values()]:
            held = parcel.held
            if held.claim.get("attempt_id") in attempt_ids:
                self.waiting.pop(held.claim_id, None)
                self.under_way.pop(held.claim_id, None)
                if not accepted:
                    log.warning("the outcome of %s came too late", held.claim_id)
                elif parcel.verb == "fail":
                    parcel.say_failed(screened=False)
                done = "COMPLETED" if parcel.verb == "complete" else ""
                self._on_settled(held, done if accepted else "")

    def over(self, claim_id: str) -> None:
        """The daemon says that this claim has ended: to give it back has nothing left to do."""
        parcel = self.waiting.get(claim_id) or self.under_way.get(claim_id)
        if parcel is not None and parcel.verb == RELEASED.verb:
            self.waiting.pop(claim_id, None)
            self.under_way.pop(claim_id, None)
            self._on_settled(parcel.held, "")

    def _settled(self, parcel: Parcel, state: str) -> None:
        if self.under_way.pop(parcel.held.claim_id, None) is not None:
            self._on_settled(parcel.held, state)


def items(parcels: list[Parcel], worker_id: str) -> dict[str, list[dict[str, Any]]]:
    """The lists of an exchange that carry these parcels."""
    lists: dict[str, list[dict[str, Any]]] = {}
    for parcel in parcels:
        item = {
            "workload_id": parcel.held.workload_id,
            **parcel.held.fence(worker_id),
            **parcel.body,
        }
        lists.setdefault(parcel.verb, []).append(item)
    return lists


def results(parcels: list[Parcel]) -> tuple[list[dict[str, Any]], list[Parcel]]:
    """Completed and failed attempts among these, as a reconciliation tells them, and their parcels.

    As many as one body holds; the others go in their turn.
    """
    told: list[dict[str, Any]] = []
    carried: list[Parcel] = []
    size = 0
    for parcel in parcels:
        if parcel.verb not in ("complete", "fail") or len(told) >= ITEMS_MAX:
            continue
        if size + parcel.bytes > BYTES_MAX:
            continue
        size += parcel.bytes
        carried.append(parcel)
        told.append(_result(parcel))
    return told, carried


def _result(parcel: Parcel) -> dict[str, Any]:
    held = parcel.held
    result: dict[str, Any] = {
        "attempt_id": held.claim.get("attempt_id"),
        "claim_id": held.claim_id,
        "fencing_token": held.fencing_token,
    }
    if parcel.verb == "complete":
        return {**result, "outcome": "completed", "result": parcel.body}
    body = {name: value for name, value in parcel.body.items() if name != "on_secret"}
    return {**result, "outcome": "failed", "failure": body}
