"""Backups as the ledger sees them: who may ask for one, and that one was made.

Making it is the daemon's; a backup changes no row of the mesh.
"""

from typing import NamedTuple

from feltd.clock import Now
from feltd.identity import answers, audit, principals
from feltd.identity.answers import Answered, Once
from feltd.mesh import events
from feltd.model.base import Ask
from feltd.store.tx import Tx


class Made(NamedTuple):
    """A backup that is whole and has its name: where, of which commit, with which checksum."""

    actor: str
    path: str
    sequence: int
    sha256: str


def permit(tx: Tx, cmd: Once[None], now: Now) -> Answered[None] | None:
    """Before a backup is begun: the answer kept under the request's key, None for none yet.

    Refuses as every verb does whose key has ended.
    """
    principals.confirm(tx, cmd.ask.caller, now)
    return answers.kept(tx, cmd, now)


def made(tx: Tx, cmd: Made, now: Now) -> None:
    """Write down that a backup was made, and by whom it was asked for."""
    events.tell(tx, now, "backup", actor=cmd.actor)
    audit.act(
        tx,
        now,
        cmd.actor,
        "backup",
        cmd.path,
        reason=f"commit {cmd.sequence}, sha256 {cmd.sha256}",
    )


def answer(tx: Tx, ask: Ask[object], now: Now) -> object:
    """The answer of a request that has a key, as it came: the key is what remembers it."""
    return ask.body
