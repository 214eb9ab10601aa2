"""One call as it crosses the simulated daemon: what is asked, and what became of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from feltd.clock import Now
from feltd.errors import Refused
from feltd.identity import grants, keys, principals
from feltd.mesh import (
    authority,
    bulk,
    cancel,
    claims,
    creation,
    decisions,
    directed,
    drain,
    edit,
    evict,
    exchange,
    fence,
    fences,
    groups,
    heartbeat,
    holds,
    moves,
    outcomes,
    pools,
    quarantine,
    reconcile,
    register,
    requeue,
)
from feltd.model.base import Ask, Caller
from feltd.model.workload import Creation, Made, Tombstone
from feltd.state import consumers, definitions, evaluation, held, runs, transactions, triggers
from feltd.store.tx import Row, Tx

Rule = Callable[..., Any]

NEVER = Now(0, 0)

#: The verbs that carry a fence, in the order in which an exchange does them.
FENCED: tuple[str, ...] = ("start", "renew", "checkpoint", "complete", "fail", "release", "log")
ENDING = frozenset({"complete", "fail", "release"})


def taking_a_key(tx: Tx, ask: Ask[Creation], now: Now) -> Made | Tombstone:
    """A creation of the time before keys that triggers name their work by were kept for them."""
    principals.confirm(tx, ask.caller, now)
    return creation.make(tx, now, ask.caller, ask.body, ask.fresh)


#: Every call a client can make. Looked up when it is made: a mutation may have put another there.
RULES: Mapping[str, Callable[[], Rule]] = {
    "start": lambda: fence.start,
    "renew": lambda: fence.renew,
    "checkpoint": lambda: fence.checkpoint,
    "log": lambda: fence.log,
    "complete": lambda: outcomes.complete,
    "fail": lambda: outcomes.fail,
    "release": lambda: outcomes.release,
    "pull": lambda: claims.pull,
    "claim": lambda: claims.claim,
    "exchange": lambda: exchange.exchange,
    "heartbeat": lambda: heartbeat.heartbeat,
    "reconcile": lambda: reconcile.reconcile,
    "register": lambda: register.register,
    "drain": lambda: drain.drain,
    "resume": lambda: drain.resume,
    "recover": lambda: moves.recover,
    "transition": lambda: moves.transition,
    "remove": lambda: moves.remove,
    "create": lambda: creation.create,
    "take_key": lambda: taking_a_key,
    "create_batch": lambda: creation.create_batch,
    "cancel": lambda: cancel.cancel,
    "edit": lambda: edit.edit,
    "bulk": lambda: bulk.change,
    "requeue": lambda: requeue.requeue,
    "evict": lambda: evict.evict,
    "seal_group": lambda: groups.seal,
    "cancel_group": lambda: groups.cancel,
    "issue_grant": lambda: grants.issue,
    "replace_grant": lambda: authority.replace_grant,
    "revoke_grant": lambda: authority.revoke_grant,
    "create_key": lambda: keys.create,
    "revoke_key": lambda: keys.revoke,
    "create_pool": lambda: pools.create,
    "replace_pool": lambda: pools.replace,
    "delete_pool": lambda: pools.delete,
    "place_hold": lambda: holds.place,
    "lift_hold": lambda: holds.lift,
    "give": lambda: directed.claim,
    "try_out": lambda: directed.try_out,
    "look_back": lambda: decisions.get,
    "validate": lambda: fences.validate,
    "fence": lambda: fences.fence,
    "quarantine": lambda: quarantine.quarantine,
    "unquarantine": lambda: quarantine.unquarantine,
    "write": lambda: transactions.write,
    "transact": lambda: transactions.transact,
    "held_write": lambda: held.write,
    "acknowledge": lambda: consumers.acknowledge,
    "forget_consumer": lambda: consumers.delete,
    "define": lambda: definitions.define,
    "enable": lambda: triggers.enable,
    "disable": lambda: triggers.disable,
    "delete_trigger": lambda: triggers.delete,
    "preview": lambda: triggers.preview,
    "evaluate_now": lambda: evaluation.evaluate_now,
    "run_now": lambda: runs.run_now,
}


NEW_EVENTS = """
SELECT e.seq, e.at_ms, e.kind, e.tenant_id, e.application_id, e.workload_id, e.worker_id,
       e.fencing_token, e.from_state, e.to_state, e.eligible_at_ms, e.expires_at_ms, e.end_kind
  FROM events e
 WHERE e.seq > :seq
 ORDER BY e.seq
"""

LAST_EVENT = """
SELECT max(e.seq) AS seq
  FROM events e
"""


@dataclass
class Call:
    """A verb, its rule and its command; the world fills in the rest when it has run.

    `sound`: nothing in the body itself is to be refused. Of a call that was rolled back nothing
    is filled in but `lost`.
    """

    verb: str
    rule: Rule
    cmd: Any
    sound: bool = True
    keep_alive: bool = False
    answer: Any = None
    refusal: Refused | None = None
    events: list[Row] = field(default_factory=list)
    now: Now = NEVER
    committed: bool = False
    #: The client was told nothing.
    lost: bool = False

    @property
    def caller(self) -> Caller:
        """Who asks; only for a client's call."""
        assert isinstance(self.cmd, Ask)
        return self.cmd.caller

    @property
    def ok(self) -> bool:
        """Whether it was done, as far as the client knows."""
        return self.committed and not self.lost and self.refusal is None

    @property
    def code(self) -> str:
        """What it was refused with, as far as the client knows; '' for none."""
        return self.refusal.code if self.refusal is not None and not self.lost else ""

    def asked(self) -> str:
        """Who asks what, for a trace."""
        if not isinstance(self.cmd, Ask):
            return self.verb
        body = self.cmd.body
        token = getattr(body, "fencing_token", None)
        about = "" if token is None else f" under {token}"
        return f"{self.caller.subject.id[-12:]} {self.verb} {self.cmd.id[-12:]}{about}"

    def told(self) -> str:
        """Who asked what, and what became of it."""
        if not self.committed:
            became = "rolled back"
        elif self.refusal is not None:
            became = f"{self.refusal.code} ({self.refusal.detail[:60]})"
        else:
            became = brief(self.answer)
        return f"{self.asked()}: {became}"

    def again(self) -> "Call":
        """The same call, not yet sent."""
        return Call(self.verb, self.rule, self.cmd, self.sound, self.keep_alive)


def brief(answer: Any) -> str:
    """An answer in a few words."""
    if isinstance(answer, int | str | None):
        return "ok" if answer is None else f"ok {answer}"
    told = []
    for name in ("state", "fencing_token", "lifecycle", "created", "remaining", "grant_id"):
        found = getattr(answer, name, None)
        if found is not None:
            told.append(f"{name}={found}")
    for name in ("claims", "authoritative_claims"):
        held = getattr(answer, name, None)
        if held:
            told.append(f"{name}={[getattr(one, 'fencing_token', one) for one in held]}")
    outcomes_of = getattr(answer, "outcomes", None)
    if outcomes_of:
        told.append(str([one.op if one.ok else f"{one.op}:{one.code}" for one in outcomes_of]))
    return " ".join(["ok", *told])


def watched(call: Call) -> Any:
    """The rule of a call, with its answer and the events it wrote kept on the call."""

    def ran(tx: Tx, cmd: Any, now: Now) -> Any:
        call.answer, call.events = None, []
        seq = tx.rows(LAST_EVENT)[0]["seq"] or 0
        call.answer = call.rule(tx, cmd, now)
        call.events = tx.rows(NEW_EVENTS, {"seq": seq})
        return call.answer

    return ran
