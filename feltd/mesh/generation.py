"""What every application remembers of pools and holds ends when one of them changes.

A generation per application, raised in the transaction of the change: whatever was found out under
an earlier one is found out again. The waiting workers of the applications it touches look again.
"""

from feltd.store.tx import Tx

EVERYBODY = "*"

RAISE = """
UPDATE applications
   SET gate_generation = gate_generation + 1
 WHERE (:tenant_id = '*' OR tenant_id = :tenant_id)
   AND (:application_id IS NULL OR application_id = :application_id)
RETURNING tenant_id, application_id
"""


def touch(tx: Tx, tenant_id: str, application_id: str | None) -> None:
    """Pools or holds of these applications changed; '*' and None mean all of them.

    An application without a row has no work yet, and nothing is remembered of it.
    """
    scope = {"tenant_id": tenant_id, "application_id": application_id}
    for row in tx.rows(RAISE, scope):
        tx.tell("ready", f"{row['tenant_id']}/{row['application_id']}")
