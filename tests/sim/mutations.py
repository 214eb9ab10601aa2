"""Faults put into the real rules, one at a time, to see that schedules find them.

Each takes a condition out of a statement, or a step out of a rule, in this process alone and only
while it is entered. One whose wall has a second wall behind it takes down both, and says so.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from feltd.clock import Now
from feltd.identity import worker_keys
from feltd.mesh import (
    attempts,
    authority,
    claims,
    demands,
    dependencies,
    drain,
    fence,
    gates,
    intake,
    lanes,
    ledger,
    outcomes,
    parents,
    placement,
    sweep,
    taking,
    vitals,
)
from feltd.model.base import Caller
from feltd.store.tx import Row, Tx
from tests.sim.oracle import Oracle

#: The statements that carry the fence.
FENCES: tuple[tuple[Any, str], ...] = (
    (fence, "START"),
    (fence, "RENEW"),
    (fence, "CHECKPOINT"),
    (fence, "HOLDS"),
    (outcomes, "COMPLETE"),
    (outcomes, "FAIL"),
    (outcomes, "RELEASE"),
)

KEY = r"   AND \(:key_id = ''\n(?:.*\n)*?.*> :wall_ms\)\)\n"

Patches = list[Any]


def without(module: Any, name: str, *patterns: str, instead: str = "") -> Any:
    """A patch that takes text out of a statement; the text must be there."""
    text = getattr(module, name)
    for pattern in patterns:
        text, count = re.subn(pattern, instead, text)
        if count == 0:
            raise AssertionError(f"{name} has no {pattern!r}: look where the rule went")
    return patch.object(module, name, text)


def fences(*patterns: str) -> Patches:
    """The same taken out of every fence."""
    return [without(module, name, *patterns) for module, name in FENCES]


# -- the fence -------------------------------------------------------------------------------


def no_token() -> Patches:
    """Any claim of the workload by this worker will do."""
    return fences(r"   AND (w\.)?fencing_token = :fencing_token\n")


def no_expiry() -> Patches:
    """A lease that is over holds until somebody recovers it."""
    return fences(r"   AND (w\.)?expires_at_ms > :now_ms\n")


def no_worker() -> Patches:
    """Any worker may write that knows the token."""
    return fences(
        r"   AND (w\.)?claim_worker_id = :worker_id\n",
    )


#: A process that registers again still ends the key it had; only former processes keep theirs.
OF_NOW = "AND incarnation = (SELECT k.incarnation FROM workers k WHERE k.worker_id = :worker_id)"


def old_keys_live_on() -> Patches:
    """A takeover ends no keys: the incarnation they are bound to must do."""
    return [
        patch.object(worker_keys, "revoke_keys_of_worker", lambda *_: []),
        without(worker_keys, "ISSUED", r"AND incarnation IS NOT NULL", instead=OF_NOW),
        patch.object(Oracle, "compares_keys", False),
    ]


def no_incarnation() -> Patches:
    """An earlier incarnation may write. Its key has ended too, so that wall falls with it."""
    return [
        *old_keys_live_on(),
        *fences(
            r" +AND k\.incarnation = (workloads|w)\.claim_incarnation\n",
            r" +AND k\.incarnation = coalesce\([^\n]*\n",
        ),
    ]


def no_state() -> Patches:
    """A verb works in any state."""
    return fences(r"   AND (w\.)?state (= '|IN \()[^\n]*\n")


def no_authority() -> Patches:
    """A worker whose grant has ended writes on."""
    return fences(
        r" +AND k\.authority_live = 1\n",
        r" +AND k\.authority_unsettled = 0\n",
        r" +AND coalesce\(k\.authority_expires_at_ms[^\n]*?> :wall_ms",
    )


def no_key() -> Patches:
    """A revoked key writes on, when it came through the door before."""
    return fences(KEY)


# -- claims ----------------------------------------------------------------------------------


def claim_in_any_state() -> Patches:
    """Work is taken in whatever state it is. It is looked at before, so that look goes too."""
    state = r"   AND (w\.)?state = 'READY'\n"
    return [
        without(taking, "ISSUE", state),
        without(taking, "TAKE", state),
        _looking_away(state="READY"),
    ]


def claim_too_early() -> Patches:
    """Work is taken before it is eligible; the look before goes too."""
    early = r"   AND (w\.)?eligible_at_ms <= :now_ms\n"
    return [
        without(taking, "ISSUE", early),
        without(taking, "TAKE", early),
        _looking_away(eligible_at_ms=0),
    ]


def claim_beyond_capacity() -> Patches:
    """A full worker gets more; that it is full is not noticed before, either."""
    return [
        without(taking, "ISSUE", r"   AND \(SELECT count\(\*\)\n(?:.*\n){3}"),
        standing_without("full"),
        patch.object(claims, "_take", _greedy(claims._take)),
    ]


def claim_while_drained() -> Patches:
    """A drain is written down and forgotten."""
    return [
        without(taking, "ISSUE", r"   AND k\.drain_at_ms IS NULL\n"),
        standing_without("draining"),
        patch.object(drain, "settle", lambda *_: None),
    ]


def claim_beyond_a_key() -> Patches:
    """A concurrency key counts its claims and keeps nobody back."""
    full = r"            AND NOT EXISTS \(SELECT 1\n *FROM concurrency_keys c\n(?:.*\n){2}"
    return [without(taking, "ISSUE", full), patch.object(lanes, "close", lambda *_: None)]


def claim_beyond_a_rate() -> Patches:
    """A rate key notes its uses and keeps nobody back."""
    full = r"                               AND u\.at_ms > :now_ms - r\.period_ms"
    return [
        without(taking, "ISSUE", full, instead=" AND 1 = 0"),
        patch.object(lanes, "close", lambda *_: None),
    ]


def key_that_is_never_left() -> Patches:
    """The end of a claim makes no room in its keys."""
    return [patch.object(gates, "leave", lambda *_: None)]


def repeated_request_claims_again() -> Patches:
    """A repeated request_id takes other work."""
    return [without(claims, "PULLER", r"c\.request_id = :request_id", instead="c.number < 0")]


# -- ends ------------------------------------------------------------------------------------


def split_end() -> Patches:
    """The workload's side of an end is committed before the claim's."""
    close = attempts._close

    def split(tx: Tx, now: Now, held: Row, *more: Any) -> None:
        for statement in ("COMMIT", "BEGIN IMMEDIATE", "SAVEPOINT operation", "SAVEPOINT attempt"):
            tx.change(statement)
        close(tx, now, held, *more)

    return [patch.object(attempts, "_close", split)]


def recover_too_early() -> Patches:
    """The keeper ends leases that are not over."""
    lapsed = r"   AND \(:lapsed = 0 OR expires_at_ms <= :now_ms\)\n"
    return [
        without(sweep, "LAPSED", r"   AND w\.expires_at_ms <= :now_ms\n"),
        *(
            without(attempts, name, lapsed)
            for name in ("RETURN_TO_READY", "DEAD_LETTER", "CANCEL_HELD")
        ),
    ]


def heads_not_withdrawn() -> Patches:
    """Work that was taken stays at the head of its lane."""
    return [patch.object(demands, "withdraw", lambda *_: None)]


def attempts_without_end() -> Patches:
    """An attempt that failed is not counted."""
    return [
        without(
            attempts,
            name,
            r"attempts_spent = attempts_spent \+ :spent",
            instead="attempts_spent = attempts_spent",
        )
        for name in ("RETURN_TO_READY", "DEAD_LETTER")
    ]


def cancel_is_forgotten() -> Patches:
    """What was to be cancelled is tried again."""
    fate = attempts.retry.fate

    def forgetful(held: Row, *args: Any, **named: Any) -> Any:
        return fate({**dict(held), "cancel_requested": 0}, *args, **named)

    return [patch.object(attempts.retry, "fate", forgetful)]


# -- work ------------------------------------------------------------------------------------


def any_body_for_a_key() -> Patches:
    """An idempotency key answers with its workload whatever is asked."""
    return [patch.object(intake, "body_digest", lambda *_: "same")]


def other_tenants_are_seen() -> Patches:
    """Everybody sees every tenant's work."""
    return [patch.object(Caller, "may_see", lambda *_: True)]


# -- workers, grants, restarts ---------------------------------------------------------------


def revoked_without_fencing() -> Patches:
    """A revoked or shrunk grant reaches nobody."""
    return [
        patch.object(authority, "settle", lambda *_, **__: []),
        without(authority, "UNSETTLE", r"unsettled = 1", instead="unsettled = 0"),
    ]


def taken_over_with_claims() -> Patches:
    """A takeover leaves the claims of the process before."""
    return [patch.object(attempts, "end_claims_of", lambda *_, **__: [])]


def no_credit() -> Patches:
    """Time in which the daemon could not hear is held against the workers."""
    return [patch.object(vitals, "credit", lambda *_: 0)]


def restored_tokens_repeat() -> Patches:
    """A start does not raise the floor under the tokens."""
    return [patch.object(ledger.dialect, "raise_sequence", lambda *_: None)]


def failed_too_early() -> Patches:
    """Workers fail before their time."""
    early = r"k\.heartbeat_timeout_ms <= :now_ms"
    return [without(vitals, "SILENT", early, instead="1000 <= :now_ms")]


def _looking_away(**unseen: Any) -> Any:
    """Before a claim by id the work is looked at as if it were so."""
    look = claims._require_claimable

    def looked(tx: Tx, row: Row, wanted: Row, now: Now) -> None:
        look(tx, row, {**dict(wanted), **unseen}, now)

    return patch.object(claims, "_require_claimable", looked)


def children_are_not_told() -> Patches:
    """The end of work is told to nobody who waits for it."""
    return [patch.object(dependencies, "ended", lambda *_: None)]


def failures_do_not_spread() -> Patches:
    """What needed a parent completed runs after any end of it."""
    return [patch.object(dependencies, "_fail", lambda *_: [])]


def one_parent_is_enough() -> Patches:
    """The first parent that ends makes a child READY."""
    return [without(dependencies, "CHILDREN", "o.parent <> d.parent", instead="1 = 0")]


def what_failed_before_is_not_seen() -> Patches:
    """A creation after the failure of what it needs does not see it."""
    look = parents.look
    return [patch.object(parents, "look", lambda *of: look(*of[:-1], "all_finished"))]


def standing_without(rule: str) -> Any:
    """Nothing asks for this rule before it takes work."""
    found = placement.standing

    def standing(*args: Any, **named: Any) -> list[str]:
        return [name for name in found(*args, **named) if name != rule]

    return patch.object(placement, "standing", standing)


def _greedy(take: Callable[..., Any]) -> Callable[..., Any]:
    def greedy(tx: Tx, ask: Any, now: Now, row: Row, fit: Any) -> Any:
        return take(tx, ask, now, {**dict(row), "concurrency": 9}, fit)

    return greedy


MUTATIONS: tuple[Callable[[], Patches], ...] = (
    no_token,
    no_expiry,
    no_worker,
    no_incarnation,
    no_state,
    no_authority,
    no_key,
    claim_in_any_state,
    claim_too_early,
    claim_beyond_capacity,
    claim_while_drained,
    claim_beyond_a_key,
    claim_beyond_a_rate,
    key_that_is_never_left,
    children_are_not_told,
    failures_do_not_spread,
    one_parent_is_enough,
    what_failed_before_is_not_seen,
    repeated_request_claims_again,
    split_end,
    recover_too_early,
    heads_not_withdrawn,
    attempts_without_end,
    cancel_is_forgotten,
    any_body_for_a_key,
    other_tenants_are_seen,
    revoked_without_fencing,
    taken_over_with_claims,
    no_credit,
    restored_tokens_repeat,
    failed_too_early,
)


@contextmanager
def entered(mutation: Callable[[], Patches]) -> Iterator[None]:
    """The rules with this fault in them."""
    begun: list[Any] = []
    try:
        for one in mutation():
            one.start()
            begun.append(one)
        yield
    finally:
        for one in reversed(begun):
            one.stop()
