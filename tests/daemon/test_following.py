"""The file of signing keys is followed whole, also where the storage was busy at that moment."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from feltd.api.health import CLEAN, Finding, Health
from feltd.clock import LeaseClock
from feltd.daemon.signing import Following, load
from feltd.errors import Refused
from feltd.identity import keyring
from feltd.store.writer import Writer
from tests.mesh.world import Mesh


class Busy:
    """A writer over a mesh in memory that refuses the first `refusals` operations."""

    def __init__(self, mesh: Mesh, refusals: int) -> None:
        self.mesh, self.refusals = mesh, refusals

    async def submit(self, rule: Any, cmd: Any, **_how: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise Refused("STORAGE_BUSY", "another program holds the locks", committed=False)
        return self.mesh.run(rule, cmd)


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    world = Mesh()
    yield world
    world.close()


def test_what_a_busy_storage_refused_is_told_again(mesh: Mesh, tmp_path: Path) -> None:
    """The keyring follows at once; the retired key's authority ends once the writer takes it."""
    path = tmp_path / "signing.keyring"
    first = keyring.render("old", b"o" * 32)
    path.write_bytes(first)
    path.chmod(0o600)
    held = load(path)
    writer = Busy(mesh, refusals=0)
    health = Health(Finding(CLEAN, None, "clean"), LeaseClock(0))
    following = Following(path, held, cast(Writer, writer), health)
    asyncio.run(following.look())

    path.write_bytes(keyring.retired(keyring.rotated(first, "new", b"n" * 32), "old"))
    writer.refusals = 2
    for _ in range(2):
        with pytest.raises(Refused):
            asyncio.run(following.look())
        assert (held.kid, held.retired) == ("new", {"old"})
    asyncio.run(following.look())
    asyncio.run(following.look())

    rows = mesh.conn.execute("SELECT action, subject FROM audit WHERE actor = 'service:feltd'")
    acts = [tuple(row) for row in rows if row["action"].endswith("signing_key")]
    assert acts == [("rotate_signing_key", "new"), ("retire_signing_key", "old")]
