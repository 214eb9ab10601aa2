"""Whatever lies in the folder of backups, and however the clock stepped: nothing is lost by it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from feltd.daemon.examining import compare
from feltd.store import backup
from feltd.store.backup import INSTANT_MS_MAX, Manifest
from feltd.store.connect import StoreProblem
from tests.store.backup.test_folder import BEGIN_MS, DAY_MS, Put, days
from tests.store.backup.test_folder import folder as folder
from tests.store.backup.test_folder import put as put

DATABASE = Path("/srv/feltd.db")


def piped(file: Path) -> None:
    os.mkfifo(file)


def endless(file: Path) -> None:
    file.symlink_to("/dev/zero")


def a_folder(file: Path) -> None:
    file.mkdir()


def deep(file: Path) -> None:
    file.write_text('{"x":' + "[" * 100_000)


def long(file: Path) -> None:
    file.write_bytes(b" " * (backup.MANIFEST_BYTES_MAX + 1))


def bytes_of_nobody(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize("hostile", [piped, endless, a_folder, deep, long, bytes_of_nobody])
def test_what_is_no_manifest_is_no_backup_and_keeps_none_from_being_seen(
    folder: Path, put: Put, hostile: Callable[[Path], None]
) -> None:
    put(1)
    odd = folder / "feltd-20260101T000000Z-9.db"
    odd.write_text("x")
    hostile(odd.with_suffix(".json"))
    assert days(folder) == [1]
    with pytest.raises(StoreProblem, match="is no "):
        compare(odd)
    with backup.held(folder):
        assert days(folder) == [1]


@pytest.mark.parametrize(
    "nonsense",
    [{"created_at_ms": 2**62}, {"created_at_ms": -1}, {"bytes": -1}, {"sequence": 2**63}],
)
def test_a_manifest_of_nonsense_is_none(folder: Path, put: Put, nonsense: dict[str, int]) -> None:
    """An instant of the year 140,000 would leave a database that is put back no token to issue."""
    made = put(1)
    file = Path(made.path).with_suffix(".json")
    wrong = replace(made, **nonsense)
    text = file.read_text()
    for name, value in nonsense.items():
        text = text.replace(f'"{name}": {getattr(made, name)}', f'"{name}": {value}')
    assert wrong != made
    file.write_text(text)
    assert days(folder) == []
    with pytest.raises(StoreProblem, match="is no manifest"):
        compare(Path(made.path))
    assert INSTANT_MS_MAX * 1_000 < 2**53


def test_a_folder_by_the_name_of_a_draft_stops_no_backup(folder: Path, put: Put) -> None:
    (folder / "feltd-20260101T000000Z-9.db.partial").mkdir()
    with backup.held(folder):
        put(1)
    assert days(folder) == [1]


def test_files_of_others_that_are_named_after_feltd_stay(folder: Path, put: Put) -> None:
    """The folder may be that of everything an operator has of feltd."""
    others = {"feltd-dashboard.json", "feltd-alerts.partial.yml", "feltd-2026.json", "feltd-.json"}
    for name in others:
        (folder / name).write_text("mine")
    with backup.held(folder):
        put(1)
    assert others <= {file.name for file in folder.iterdir()}


def test_after_a_clock_that_was_ahead_new_backups_stay(folder: Path, put: Put) -> None:
    """Those of the future went first, not the one just made; nor the ones made since."""
    for day in (1_000, 1_001, 1_002):
        put(day)
    for day in (1, 2, 3):
        made = put(day)
        backup.rotate(folder, 3, made)
        assert Path(made.path).exists()
    assert days(folder) == [3, 2, 1]


def test_the_age_is_not_that_of_a_clock_which_was_ahead(folder: Path, put: Put) -> None:
    now_ms = BEGIN_MS + 5 * DAY_MS
    put(1_000)
    only = backup.newest_verified(backup.listing(folder), DATABASE, now_ms)
    assert only is not None
    assert backup.age_ms(only, now_ms) == 995 * DAY_MS
    put(4)
    newest = backup.newest_verified(backup.listing(folder), DATABASE, now_ms)
    assert newest is not None
    assert backup.age_ms(newest, now_ms) == DAY_MS


def test_another_database_at_the_same_path_elsewhere_loses_nothing(folder: Path, put: Put) -> None:
    """Two containers have one /data/feltd.db each, and one folder of backups together."""
    for day in (1, 2, 3):
        put(day)
    for file in folder.glob("*.json"):
        file.write_text(file.read_text().replace("instance_1", "instance_2"))
    made: Manifest = [put(day) for day in (4, 5, 6)][-1]
    backup.rotate(folder, 1, made)
    assert days(folder) == [6, 3, 2, 1]
    shutil.rmtree(folder)
