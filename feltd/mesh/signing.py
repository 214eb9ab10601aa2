"""What follows in the mesh when a signing key is retired: what it proved is proved no more.

A worker keeps, beside its grant, the key that signed the token it showed. Retiring the key takes
the authority of each such worker in one statement: from that commit on no fenced write of theirs
passes, their keys end, and the next rounds end their claims `authority_lost`. They come back by
registering with a token of a key that stands. A worker under the grant its key is bound to showed
no token and is not concerned. The keyring itself is a file, which the daemon follows.
"""

from typing import NamedTuple

from feltd.clock import Now
from feltd.identity import worker_keys
from feltd.identity.audit import act
from feltd.store.tx import Tx

#: Stands in the place of a key that was retired: nothing proves the worker's authority.
NO_PROOF = ""

ACTOR = "service:feltd"

UNPROVE = """
UPDATE workers
   SET authority_kid = '',
       authority_unsettled = 1
 WHERE authority_kid = :kid
RETURNING worker_id
"""


class Moved(NamedTuple):
    """How the keyring stands: the kid that signs, and those that are retired.

    `rotated`: another signed before. `seen`: the daemon saw the change happen; at a start it does
    not know when a key was retired, and writes only down what that took from somebody.
    """

    active: str
    retired: tuple[str, ...]
    rotated: bool = False
    seen: bool = False


def follow(tx: Tx, moved: Moved, now: Now) -> int:
    """Take what retired keys had proved, and write down what changed; how many workers lost it.

    Repeating finds no worker.
    """
    if moved.rotated:
        act(tx, now, ACTOR, "rotate_signing_key", moved.active)
    lost = 0
    for kid in moved.retired:
        found = [row["worker_id"] for row in tx.rows(UNPROVE, {"kid": kid})]
        for worker_id in found:
            worker_keys.end_issued(tx, now, worker_id, "grant_ended")
            tx.tell("worker", worker_id)
        if found or moved.seen:
            reason = f"{len(found)} workers had shown a token of it"
            act(tx, now, ACTOR, "retire_signing_key", kid, reason=reason)
        lost += len(found)
    return lost
