"""Which definitions of an application have work that is due, in its turn. Only reads.

For a worker that can run more kinds of work than it may name at once.
"""

from feltd.clock import Now
from feltd.store.tx import Tx

#: As many kinds as an application can have waiting.
ROWS_MAX = 2_000

DUE = """
SELECT d.definition_id, d.head_rank, d.head_seq
  FROM demands d
 WHERE d.tenant_id = :tenant_id
   AND d.application_id = :application_id
   AND d.head_rank IS NOT NULL
 ORDER BY d.head_rank, d.head_seq
 LIMIT :rows
"""


def due_definitions(tx: Tx, place: tuple[str, str], now: Now) -> list[str]:
    """The definitions of (tenant, application) with due work, whose turn comes first first."""
    tenant_id, application_id = place
    owner = {"tenant_id": tenant_id, "application_id": application_id, "rows": ROWS_MAX}
    return list(dict.fromkeys(row["definition_id"] for row in tx.rows(DUE, owner)))
