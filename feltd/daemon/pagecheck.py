"""Reading every page of a large file beside serving, after an unclean stop."""

import asyncio
import sqlite3
from pathlib import Path

import structlog

from feltd.api.health import Health
from feltd.daemon.start import first_damage
from feltd.store import migrate
from feltd.store.connect import open_reader

#: A check that shall end is told so this often.
INTERRUPT_AGAIN_S = 0.05

log = structlog.get_logger("feltd.daemon")


async def check_pages(path: Path, health: Health, stop: asyncio.Event) -> None:
    """Note STORAGE_DAMAGED in the health where a page is damaged; a stop ends the check."""
    conn = await open_reader(path)
    stopping = asyncio.ensure_future(stop.wait())
    checking = asyncio.ensure_future(conn.run(migrate.quick_check))
    try:
        await asyncio.wait((checking, stopping), return_when=asyncio.FIRST_COMPLETED)
        while not checking.done():
            # Again and again: between two statements nobody hears it.
            await conn.interrupt()
            await asyncio.wait((checking,), timeout=INTERRUPT_AGAIN_S)
        damage = checking.result()
    except sqlite3.OperationalError:
        if not stop.is_set():
            raise
        return
    finally:
        stopping.cancel()
        await conn.close()
    log.info("pages checked", damage=damage)
    if damage:
        health.note("STORAGE_DAMAGED", f"the database is damaged: {first_damage(damage)}")
