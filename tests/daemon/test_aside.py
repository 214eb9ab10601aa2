"""Files that hang: nobody waits for them, nor are they hung up behind each other."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from feltd.config import Config
from feltd.daemon import backups
from feltd.daemon.aside import Aside
from feltd.daemon.backups import Backups
from feltd.errors import Refused

pytestmark = pytest.mark.anyio

BRIEF_S = 0.05


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    """Set it, and what hangs comes back."""
    event = threading.Event()
    yield event
    event.set()


async def test_what_hangs_is_not_waited_for_and_not_begun_twice(hung: threading.Event) -> None:
    begun: list[str] = []

    def work(name: str) -> str:
        begun.append(name)
        if name == "hangs":
            hung.wait()
        return name

    aside = Aside()
    for name in ("hangs", "behind it"):
        with pytest.raises(TimeoutError):
            await aside.run(lambda name=name: work(name), BRIEF_S)  # type: ignore[misc]
    assert begun == ["hangs"]
    hung.set()
    assert await aside.run(lambda: work("after it")) == "after it"
    assert begun == ["hangs", "after it"]


async def test_what_it_raises_is_raised() -> None:
    def work() -> None:
        raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError):
        await Aside().run(work)


async def test_a_backup_folder_that_hangs_keeps_no_round_waiting(
    tmp_path: Path, hung: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one on a network share that is gone: told, and looked at again once it is back."""
    listing = backups.backup.listing

    def hangs(folder: Path) -> Any:
        hung.wait()
        return listing(folder)

    monkeypatch.setattr(backups.backup, "listing", hangs)
    monkeypatch.setattr("feltd.daemon.aside.Aside.run.__defaults__", (BRIEF_S,))
    config = Config(data=str(tmp_path / "feltd.db"), backup_dir=str(tmp_path / "share"))
    found = Backups(config, cast(Any, None), cast(Any, None), asyncio.Event())
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            await found.look()
        assert refused.value.code == "STORAGE_UNAVAILABLE"
        assert "does not answer" in refused.value.detail
    hung.set()
    assert (await found.listing()).items == ()
