"""What SQLite says in its own way: counters of AUTOINCREMENT and the version of a schema.

A second engine replaces this file, not the rules. It holds no rule and knows no noun.
"""

import sqlite3

from feltd.store.tx import Tx

SEQUENCE = """
SELECT q.seq
  FROM sqlite_sequence q
 WHERE q.name = :name
"""

RAISE_SEQUENCE = """
UPDATE sqlite_sequence
   SET seq = :floor
 WHERE name = :name
   AND seq < :floor
"""

BEGIN_SEQUENCE = """
INSERT INTO sqlite_sequence (name, seq)
VALUES (:name, :floor)
"""

SCHEMA_VERSION = """
SELECT v.user_version
  FROM pragma_user_version v
"""

#: What a query raises over a stored value that it cannot read, such as JSON that is none.
UNREADABLE = sqlite3.OperationalError


def sequence(tx: Tx, name: str) -> int:
    """The greatest number the table's counter has given out; 0 when it gave none."""
    found = tx.row(SEQUENCE, {"name": name})
    return int(found["seq"]) if found else 0


def raise_sequence(tx: Tx, name: str, floor: int) -> None:
    """Every number the table's counter gives from now on is greater than `floor`.

    A floor below what was given out already changes nothing.
    """
    if tx.change(RAISE_SEQUENCE, {"name": name, "floor": floor}):
        return
    if tx.row(SEQUENCE, {"name": name}) is None:
        tx.change(BEGIN_SEQUENCE, {"name": name, "floor": floor})


def schema_version(tx: Tx) -> int:
    """The number of the newest migration in the file."""
    found = tx.row(SCHEMA_VERSION)
    return int(found["user_version"]) if found else 0
