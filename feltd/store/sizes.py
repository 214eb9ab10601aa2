"""How large the file is inside: rows of each table, pages, the engine's settings, the schema.

For diagnostics alone: it shows, nothing is decided by it. Counts stop at a cap, so that asking
costs a tenth of a second whatever the file holds.
"""

from msgspec import Struct

from feltd.clock import Now
from feltd.store.tx import Tx

#: Rows counted of one table.
ROWS_MAX = 100_000

TABLES = """
SELECT 'answers' AS name, count(*) AS size FROM (SELECT 1 FROM answers LIMIT :most)
UNION ALL
SELECT 'applications', count(*) FROM (SELECT 1 FROM applications LIMIT :most)
UNION ALL
SELECT 'audit', count(*) FROM (SELECT 1 FROM audit LIMIT :most)
UNION ALL
SELECT 'change_logs', count(*) FROM (SELECT 1 FROM change_logs LIMIT :most)
UNION ALL
SELECT 'changes', count(*) FROM (SELECT 1 FROM changes LIMIT :most)
UNION ALL
SELECT 'checkpoints', count(*) FROM (SELECT 1 FROM checkpoints LIMIT :most)
UNION ALL
SELECT 'claim_logs', count(*) FROM (SELECT 1 FROM claim_logs LIMIT :most)
UNION ALL
SELECT 'claims', count(*) FROM (SELECT 1 FROM claims LIMIT :most)
UNION ALL
SELECT 'collections', count(*) FROM (SELECT 1 FROM collections LIMIT :most)
UNION ALL
SELECT 'compaction_places', count(*) FROM (SELECT 1 FROM compaction_places LIMIT :most)
UNION ALL
SELECT 'concurrency_keys', count(*) FROM (SELECT 1 FROM concurrency_keys LIMIT :most)
UNION ALL
SELECT 'consumers', count(*) FROM (SELECT 1 FROM consumers LIMIT :most)
UNION ALL
SELECT 'deadlines', count(*) FROM (SELECT 1 FROM deadlines LIMIT :most)
UNION ALL
SELECT 'decisions', count(*) FROM (SELECT 1 FROM decisions LIMIT :most)
UNION ALL
SELECT 'deleted_triggers', count(*) FROM (SELECT 1 FROM deleted_triggers LIMIT :most)
UNION ALL
SELECT 'demands', count(*) FROM (SELECT 1 FROM demands LIMIT :most)
UNION ALL
SELECT 'dependency_edges', count(*) FROM (SELECT 1 FROM dependency_edges LIMIT :most)
UNION ALL
SELECT 'dependency_waits', count(*) FROM (SELECT 1 FROM dependency_waits LIMIT :most)
UNION ALL
SELECT 'events', count(*) FROM (SELECT 1 FROM events LIMIT :most)
UNION ALL
SELECT 'fence_counts', count(*) FROM (SELECT 1 FROM fence_counts LIMIT :most)
UNION ALL
SELECT 'fences', count(*) FROM (SELECT 1 FROM fences LIMIT :most)
UNION ALL
SELECT 'floors', count(*) FROM (SELECT 1 FROM floors LIMIT :most)
UNION ALL
SELECT 'grants', count(*) FROM (SELECT 1 FROM grants LIMIT :most)
UNION ALL
SELECT 'holds', count(*) FROM (SELECT 1 FROM holds LIMIT :most)
UNION ALL
SELECT 'keys', count(*) FROM (SELECT 1 FROM keys LIMIT :most)
UNION ALL
SELECT 'lanes', count(*) FROM (SELECT 1 FROM lanes LIMIT :most)
UNION ALL
SELECT 'late_results', count(*) FROM (SELECT 1 FROM late_results LIMIT :most)
UNION ALL
SELECT 'ledger', count(*) FROM (SELECT 1 FROM ledger LIMIT :most)
UNION ALL
SELECT 'pools', count(*) FROM (SELECT 1 FROM pools LIMIT :most)
UNION ALL
SELECT 'rate_keys', count(*) FROM (SELECT 1 FROM rate_keys LIMIT :most)
UNION ALL
SELECT 'rate_uses', count(*) FROM (SELECT 1 FROM rate_uses LIMIT :most)
UNION ALL
SELECT 'records', count(*) FROM (SELECT 1 FROM records LIMIT :most)
UNION ALL
SELECT 'schedule_firings', count(*) FROM (SELECT 1 FROM schedule_firings LIMIT :most)
UNION ALL
SELECT 'schema_migrations', count(*) FROM (SELECT 1 FROM schema_migrations LIMIT :most)
UNION ALL
SELECT 'sessions', count(*) FROM (SELECT 1 FROM sessions LIMIT :most)
UNION ALL
SELECT 'settlements', count(*) FROM (SELECT 1 FROM settlements LIMIT :most)
UNION ALL
SELECT 'storage_probe', count(*) FROM (SELECT 1 FROM storage_probe LIMIT :most)
UNION ALL
SELECT 'tombstones', count(*) FROM (SELECT 1 FROM tombstones LIMIT :most)
UNION ALL
SELECT 'trigger_firings', count(*) FROM (SELECT 1 FROM trigger_firings LIMIT :most)
UNION ALL
SELECT 'triggers', count(*) FROM (SELECT 1 FROM triggers LIMIT :most)
UNION ALL
SELECT 'users', count(*) FROM (SELECT 1 FROM users LIMIT :most)
UNION ALL
SELECT 'worker_edges', count(*) FROM (SELECT 1 FROM worker_edges LIMIT :most)
UNION ALL
SELECT 'workers', count(*) FROM (SELECT 1 FROM workers LIMIT :most)
UNION ALL
SELECT 'workload_edges', count(*) FROM (SELECT 1 FROM workload_edges LIMIT :most)
UNION ALL
SELECT 'workload_groups', count(*) FROM (SELECT 1 FROM workload_groups LIMIT :most)
UNION ALL
SELECT 'workloads', count(*) FROM (SELECT 1 FROM workloads LIMIT :most)
"""

SETTINGS = """
SELECT 'application_id' AS name, p.application_id AS setting FROM pragma_application_id p
UNION ALL
SELECT 'auto_vacuum', p.auto_vacuum FROM pragma_auto_vacuum p
UNION ALL
SELECT 'cache_size', p.cache_size FROM pragma_cache_size p
UNION ALL
SELECT 'encoding', p.encoding FROM pragma_encoding p
UNION ALL
SELECT 'foreign_keys', p.foreign_keys FROM pragma_foreign_keys p
UNION ALL
SELECT 'freelist_count', p.freelist_count FROM pragma_freelist_count p
UNION ALL
SELECT 'journal_mode', p.journal_mode FROM pragma_journal_mode p
UNION ALL
SELECT 'page_count', p.page_count FROM pragma_page_count p
UNION ALL
SELECT 'page_size', p.page_size FROM pragma_page_size p
UNION ALL
SELECT 'synchronous', p.synchronous FROM pragma_synchronous p
UNION ALL
SELECT 'trusted_schema', p.trusted_schema FROM pragma_trusted_schema p
UNION ALL
SELECT 'user_version', p.user_version FROM pragma_user_version p
"""

SCHEMA = """
SELECT s.type, s.name, s.sql
  FROM sqlite_schema s
 WHERE s.sql IS NOT NULL
 ORDER BY s.type, s.name
"""


class Inside(Struct, frozen=True):
    """`rows` of a table are at most ROWS_MAX + 1, which then means more than ROWS_MAX."""

    rows: dict[str, int]
    pragmas: dict[str, int | str]
    schema: list[str]


def look(tx: Tx, cmd: None, now: Now) -> Inside:
    """Look inside the file, through a connection that reads."""
    return Inside(
        {row["name"]: row["size"] for row in tx.rows(TABLES, {"most": ROWS_MAX + 1})},
        {row["name"]: row["setting"] for row in tx.rows(SETTINGS)},
        [row["sql"] for row in tx.rows(SCHEMA)],
    )
