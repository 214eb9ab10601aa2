"""Chores of the keeper are bounded: none of them keeps a round from coming back to the leases."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from feltd.daemon import chores
from feltd.daemon.chores import Chores
from feltd.identity import audit
from feltd.mesh import audited
from tests.mesh.world import Mesh


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    world = Mesh()
    yield world
    world.close()


def test_a_new_mirror_of_a_long_chain_takes_rounds(
    mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chores, "AUDIT_PAGES_MAX", 2)
    monkeypatch.setattr(audited, "AHEAD_ROWS", 5)
    for number in range(23):
        mesh.run(lambda tx, _, now, at=number: audit.act(tx, now, "human:ann", "hold", f"{at}"))
    head = mesh.row("SELECT max(seq) AS seq FROM audit")["seq"]

    async def read(rule: Any, cmd: Any) -> Any:
        return mesh.run(rule, cmd)

    path = tmp_path / "audit.jsonl"
    daemon = SimpleNamespace(
        config=SimpleNamespace(keyring_path=tmp_path / "none", audit_path=path),
        context=SimpleNamespace(keyring=None),
        writer=None,
        readers=SimpleNamespace(read=read),
        health=SimpleNamespace(note=lambda code, detail: None),
    )
    mirror = Chores(cast(Any, daemon))

    lengths = []
    for _ in range(4):
        asyncio.run(mirror.audit_file())
        lengths.append(len(path.read_bytes().splitlines()))
    assert lengths[:2] == [10, 20]
    assert lengths[-1] == head
