"""A migrated database in memory, made from a picture of one: the migrations run once a process."""

import sqlite3
from functools import cache

from feltd.store import connect, migrate


@cache
def _image() -> bytes:
    conn = connect.memory()
    migrate.apply(conn)
    try:
        return conn.serialize()
    finally:
        conn.close()


def migrated() -> sqlite3.Connection:
    """The whole schema and no row, with the settings of `connect.memory`."""
    conn = connect.memory()
    conn.deserialize(_image())
    return conn
