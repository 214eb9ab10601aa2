"""The folder of backups: what counts as one, what is cleared, what is kept."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from feltd.errors import Refused
from feltd.store import backup
from feltd.store.backup import Manifest

DAY_MS = 86_400_000
BEGIN_MS = 1_790_000_000_000

Put = Callable[..., Manifest]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "backups"
    backup.prepare(made)
    return made


@pytest.fixture
def put(folder: Path) -> Put:
    """A backup of a day, published as a job does it."""

    def publish(day: int, *, verified: bool = True, database: str = "/srv/feltd.db") -> Manifest:
        at_ms = BEGIN_MS + day * DAY_MS
        draft = backup.draft_in(folder, at_ms)
        draft.write_bytes(b"x" * (100 + day))
        return backup.publish(
            draft,
            Manifest(
                path="",
                bytes=100 + day,
                sha256="0" * 64,
                sequence=day,
                created_at_ms=at_ms,
                version="0",
                schema=1,
                audit_seq=day,
                audit_hash="",
                instance_id="instance_1",
                database=database,
                verified_at_ms=at_ms if verified else None,
                broken=() if verified else ("I2 state agrees: w1",),
            ),
        )

    return publish


def stamp(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y%m%dT%H%M%SZ")


def days(folder: Path) -> list[int]:
    return [one.sequence for one in backup.listing(folder)]


def test_a_missing_folder_lists_nothing_and_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "backups"
    assert backup.listing(folder) == ()
    backup.prepare(folder)
    backup.prepare(folder)
    assert oct(folder.stat().st_mode)[-4:] == "0700"


def test_a_folder_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(Refused) as refused:
        backup.prepare(folder)
    assert refused.value.code == "STORAGE_UNAVAILABLE"
    assert "0777" in refused.value.detail


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Refused) as refused:
            backup.prepare(path)
        assert refused.value.code == "STORAGE_UNAVAILABLE"


def test_what_is_published_is_private_named_by_its_instant_and_listed_newest_first(
    folder: Path, put: Put
) -> None:
    put(2)
    put(1)
    newest = put(3)
    assert days(folder) == [3, 2, 1]
    assert backup.listing(folder)[0] == newest
    assert Path(newest.path).name == f"feltd-{stamp(BEGIN_MS + 3 * DAY_MS)}-3.db"
    for file in folder.iterdir():
        assert oct(file.stat().st_mode)[-4:] == "0600", file
    assert not [file for file in folder.iterdir() if ".partial" in file.name]


def test_two_of_one_second_and_one_commit_both_stay(folder: Path, put: Put) -> None:
    assert put(1).path != put(1).path
    assert days(folder) == [1, 1]


def test_what_is_no_whole_backup_is_not_listed(folder: Path, put: Put) -> None:
    kept = put(1)
    for day, harm in (
        (2, lambda copy: copy.with_suffix(".json").unlink()),
        (3, lambda copy: copy.with_suffix(".json").write_text("{")),
        (4, lambda copy: copy.with_suffix(".json").write_bytes(b"\xff\x00")),
        (5, lambda copy: copy.write_bytes(b"short")),
        (6, lambda copy: copy.unlink()),
        (7, lambda copy: copy.with_suffix(".json").write_bytes(b" " * 300_000)),
    ):
        harm(Path(put(day).path))
    (folder / "feltd-note.db").mkdir()
    (folder / "other.db").write_text("")
    assert backup.listing(folder) == (kept,)


def test_a_manifest_of_a_later_feltd_is_understood(folder: Path, put: Put) -> None:
    file = Path(put(1).path).with_suffix(".json")
    told = msgspec.json.decode(file.read_bytes())
    file.write_bytes(msgspec.json.encode(told | {"colour": "green"}))
    assert days(folder) == [1]


def test_a_folder_that_was_moved_tells_where_its_files_are_now(
    folder: Path, put: Put, tmp_path: Path
) -> None:
    put(1)
    moved = folder.rename(tmp_path / "elsewhere")
    assert backup.listing(moved)[0].path.startswith(str(moved))


def test_the_newest_are_kept_and_those_of_other_databases_do_not_count(
    folder: Path, put: Put
) -> None:
    made = [put(day) for day in range(1, 6)][-1]
    put(9, database="/srv/other.db")
    gone = backup.rotate(folder, 2, made)
    assert len(gone) == 3
    assert days(folder) == [9, 5, 4]
    assert len(list(folder.glob("*.json"))) == 3
    assert backup.rotate(folder, 2, made) == []


def test_the_only_verified_one_is_never_rotated_away(folder: Path, put: Put) -> None:
    """BC-076: however many come after it on which promises are broken."""
    put(1)
    put(2)
    made = [put(day, verified=False) for day in (3, 4, 5, 6)][-1]
    backup.rotate(folder, 2, made)
    assert days(folder) == [6, 5, 2]
    found = backup.newest_verified(
        backup.listing(folder), Path("/srv/feltd.db"), made.created_at_ms
    )
    assert found is not None
    assert found.sequence == 2


def test_what_crashes_left_is_cleared_and_nothing_else(folder: Path, put: Put) -> None:
    put(1)
    Path(put(2).path).unlink()
    draft = backup.draft_in(folder, BEGIN_MS)
    draft.with_name(draft.name + "-journal").write_text("")
    (folder / "feltd-20260101T000000Z-9.json.partial").write_text("")
    alone = folder / "feltd-20260101T000000Z-9.db"
    alone.write_text("somebody's")
    (folder / "notes.txt").write_text("mine")
    with backup.held(folder):
        assert days(folder) == [1]
    kept = Path(backup.listing(folder)[0].path)
    left = {kept.name, kept.with_suffix(".json").name, alone.name, "notes.txt", backup.LOCK}
    assert {file.name for file in folder.iterdir()} == left


def test_a_folder_is_held_by_one_backup_at_a_time(folder: Path) -> None:
    with backup.held(folder):
        draft = backup.draft_in(folder, BEGIN_MS)
        with pytest.raises(Refused) as refused, backup.held(folder):
            pass
        assert refused.value.code == "STORAGE_BUSY"
        assert draft.exists(), "the one at work keeps its draft"
    with backup.held(folder):
        assert not draft.exists()


def test_a_link_in_the_place_of_the_lock_is_not_followed(folder: Path, tmp_path: Path) -> None:
    os.symlink(tmp_path / "target", folder / backup.LOCK)
    with pytest.raises(Refused), backup.held(folder):
        pass
    assert not (tmp_path / "target").exists()
