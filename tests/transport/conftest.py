"""Daemons as in tests/daemon, and an authority of one's own."""

from pathlib import Path

import pytest

from tests.daemon.conftest import daemons
from tests.transport.certificates import Authority

__all__ = ["daemons"]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    folder = tmp_path / "certificates"
    folder.mkdir()
    return Authority(folder)
