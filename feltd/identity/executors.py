"""Where the daemon's own worker may work: the live grants that name it. Only reads.

Whoever may issue grants in a tenant decides with such a grant that the daemon runs programs there,
and under which capabilities; without one nothing runs.
"""

from feltd.clock import Now
from feltd.identity.grants import grant_of
from feltd.model.base import Subject
from feltd.model.grant import Grant
from feltd.store.tx import Tx

EXECUTOR = Subject(kind="service", id="feltd-executor")

#: Applications that one daemon executes for; each is a worker with its own poll.
EXECUTED_MAX = 256

OF_SUBJECT = """
SELECT grant_id, issuer, subject_kind, subject_id, tenant_id, application_id, capabilities,
       resources, constraints, issued_at_ms, expires_at_ms, chain_expires_at_ms, chain_live,
       parent_grant_id, depth, revision, status
  FROM grants
 WHERE subject_kind = :kind
   AND subject_id = :id
   AND chain_live = 1
   AND chain_expires_at_ms > :wall_ms
 ORDER BY tenant_id, application_id, chain_expires_at_ms DESC, grant_id
 LIMIT :rows
"""


def standing(tx: Tx, cmd: None, now: Now) -> list[Grant]:
    """The live grants that name the executor, by tenant and application, longest to live first.

    At most EXECUTED_MAX.
    """
    sought = {
        "kind": EXECUTOR.kind,
        "id": EXECUTOR.id,
        "wall_ms": now.wall_ms,
        "rows": EXECUTED_MAX,
    }
    return [grant_of(row) for row in tx.rows(OF_SUBJECT, sought)]
