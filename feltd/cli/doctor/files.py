"""What can be told of a database without asking its daemon: the files, who has them, the disk.

It opens the database through the store alone, read-only, and only when no daemon serves it.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from feltd.api.health import DISK_FREE_BYTES_MIN, WAL_BYTES_MAX
from feltd.api.listen import find_local_socket
from feltd.api.metrics import free_bytes
from feltd.cli.doctor.findings import (
    DAY_MS,
    HOUR_MS,
    Finding,
    fail,
    ok,
    size,
    some,
    span,
    warn,
)
from feltd.clock import SKEW_MS_MAX, Now, wall_ms
from feltd.daemon.start import CLOCK_BEHIND_MS_MAX
from feltd.identity import keyring
from feltd.mesh import ledger
from feltd.model.checkup import Checkup
from feltd.state import checkup
from feltd.store import backup, lock, migrate, private, sidecar
from feltd.store.connect import StoreProblem, open_local, verify
from feltd.store.tx import Tx

T = TypeVar("T")

#: A backup needs as much again as the database; below this somebody should look.
DISK_FREE_LOW_BYTES = 1024 * 1024 * 1024
#: A WAL of this size beside somebody who has the file open is not emptied because of him.
WAL_BYTES_LOOK = 16 * 1024 * 1024
BACKUP_OLD_MS, BACKUP_LOST_MS = 26 * HOUR_MS, 7 * DAY_MS
AS_ITS_USER = "run it as the daemon's user: sudo -u feltd feltd doctor"
#: Bits that let others than the owner read or write.
OTHERS, GROUP = 0o007, 0o070


class Place(NamedTuple):
    """Where the files of one database are."""

    data: Path
    keyring: Path
    backups: Path


def identity(data: Path) -> Finding | None:
    """What keeps the file from being a database of feltd; None where nothing does."""
    if not data.exists() and not data.is_symlink():
        others = [str(one) for one in _databases_in(data.parent)]
        seen = f"no database at {data}"
        if others:
            return fail("database", seen, f"did you mean {others[0]}? Name it with --data")
        return fail("database", seen, f"name the file with --data, or: feltd init --data {data}")
    if data.is_file() and not os.access(data, os.R_OK):
        return fail("database", f"{data} is not for this user", AS_ITS_USER)
    try:
        verify(data)
    except StoreProblem as problem:
        foreign = data.is_file() and os.geteuid() not in (0, data.stat().st_uid)
        return fail("database", problem.detail, AS_ITS_USER if foreign else problem.remedy)
    return None


def files(place: Place, served: bool) -> Iterator[Finding]:
    """A line for each of: keyring, modes, disk, size and WAL, backups."""
    yield _keyring(place.keyring)
    yield _modes(place)
    yield disk(place.data)
    yield wal(place.data)
    yield _backups(place)
    if not served:
        yield _clock(place.data)


def look(data: Path) -> Checkup:
    """The look over the rows of a file that nobody serves. Raises as `read`."""
    migrate.check(data)
    return read(data, checkup.look)


def read(data: Path, rule: Callable[[Tx, None, Now], T]) -> T:
    """What a rule that only reads answers over a file. Raises StoreProblem or sqlite3.Error."""
    conn = open_local(data, read_only=True)
    try:
        conn.execute("BEGIN")
        tx = Tx(conn)
        at_ms = wall_ms()
        return rule(tx, None, Now(max(ledger.read(tx)["lease_ms"], at_ms), at_ms))
    finally:
        conn.close()


def holder(data: Path) -> tuple[int, str]:
    """The process that has the lock and its state as /proc tells it; (0, '') where nobody has.

    Raises OSError where this user may not know.
    """
    held = lock.holder(data)
    if held is None:
        return 0, ""
    with suppress(OSError, IndexError):
        text = Path(f"/proc/{held.pid}/stat").read_text()
        return held.pid, text.rpartition(")")[2].split()[0]
    return held.pid, "?"


def disk(data: Path) -> Finding:
    """Free bytes beside the database."""
    return room(free_bytes(data), data.stat().st_size)


def room(free: int, used: int) -> Finding:
    """What so many free bytes beside a database of so many mean."""
    seen = f"{size(free)} free beside {size(used)} of database"
    if free < DISK_FREE_BYTES_MIN:
        return fail("disk", seen, "make room, or move the database; then feltd compact")
    if free < max(used, DISK_FREE_LOW_BYTES):
        return warn("disk", seen, "a backup needs as much again: feltd compact --dry-run")
    return ok("disk", seen)


def wal(data: Path) -> Finding:
    """The write-ahead log, and who else has the file open."""
    wal_file = data.with_name(data.name + "-wal")
    length = wal_file.stat().st_size if wal_file.exists() else 0
    others = _openers(data)
    seen = f"write-ahead log of {size(length)}"
    if others:
        seen += f"; also open in {', '.join(others)}"
    if length > WAL_BYTES_MAX or (others and length > WAL_BYTES_LOOK):
        helps = "end the read that keeps it from being emptied" if others else "feltd health"
        return warn("wal", seen, helps)
    return ok("wal", seen)


def _keyring(path: Path) -> Finding:
    try:
        keyring.parse(private.read(path))
    except StoreProblem as problem:
        return fail("keyring", problem.detail, problem.remedy)
    except ValueError as error:
        return fail("keyring", f"{path} {error}", "name the right file with --keyring")
    return ok("keyring", str(path))


def _modes(place: Place) -> Finding:
    data = place.data
    beside = [data.with_name(data.name + end) for end in ("-wal", "-shm", ".mark", ".lock")]
    private_files = [data, *beside, Path(find_local_socket(str(data))), place.backups]
    if place.backups.is_dir():
        private_files += sorted(place.backups.glob("feltd-*"))[-5:]
    owner = data.stat().st_uid
    wrong, worst = [], 0
    for path in private_files:
        try:
            found = path.stat()
        except OSError:
            continue
        loose = stat.S_IMODE(found.st_mode) & (OTHERS | GROUP)
        if loose:
            wrong.append(f"{path} has mode {stat.S_IMODE(found.st_mode):04o}")
            worst |= loose
        if found.st_uid != owner:
            wrong.append(f"{path} belongs to another user than the database")
            worst |= OTHERS
    if not wrong:
        return ok("file modes", "private to their owner")
    first = wrong[0].partition(" ")[0]
    helps = f"chmod go= {first}" if "mode" in wrong[0] else f"chown --reference={data} {first}"
    seen = wrong[0] + (f", and {len(wrong) - 1} more" if len(wrong) > 1 else "")
    return fail("file modes", seen, helps) if worst & OTHERS else warn("file modes", seen, helps)


def _backups(place: Place) -> Finding:
    try:
        found = backup.listing(place.backups)
    except OSError as error:
        return warn("backup", f"{place.backups}: {error.strerror}", "look at --backup-dir")
    newest = backup.newest_verified(found, place.data, wall_ms())
    if newest is None:
        seen = f"none in {place.backups}"
        if found:
            seen = f"{some(len(found), 'backup', 'backups')}, none verified and of this database"
        return warn("backup", seen, "feltd backup create, then enable feltd-backup.timer")
    age_ms = backup.age_ms(newest, wall_ms())
    seen = f"{span(age_ms)} old, {size(newest.bytes)}, verified: {newest.path}"
    if found[0].broken:
        told = f"the newest is broken: {found[0].broken[0]}; {seen}"
        return fail("backup", told, "feltd check, then feltd backup create")
    if age_ms > BACKUP_LOST_MS:
        return fail("backup", seen, "feltd backup create; see why feltd-backup.timer does not run")
    if age_ms > BACKUP_OLD_MS:
        return warn("backup", seen, "feltd backup create")
    return ok("backup", seen)


def _clock(data: Path) -> Finding:
    """Whether a start would be refused, or leases judged by a clock ahead of the machine's."""
    mark = sidecar.read(data)
    if mark is None:
        seen = f"no mark beside {data}: a start takes the file for an earlier one"
        return warn("clock", seen, "see the README on restoring, then feltd health acknowledge")
    behind_ms = mark.lease_ms - wall_ms()
    if behind_ms > CLOCK_BEHIND_MS_MAX:
        return fail(
            "clock",
            f"the machine's clock is {span(behind_ms)} behind the last run: a start is refused",
            "set the clock right, or start once with feltd serve --accept-clock",
        )
    if behind_ms > SKEW_MS_MAX:
        seen = f"the machine's clock is {span(behind_ms)} behind the last run"
        return warn("clock", seen, "set the clock right; leases follow the last run until then")
    return ok("clock", "not behind the last run")


def _databases_in(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        for path in sorted(folder.glob("*.db"))[:20]:
            with suppress(StoreProblem):
                verify(path)
                yield path


def _openers(data: Path) -> list[str]:
    """Processes, but for the daemon and this one, that have the database open; as far as seen."""
    wanted = {str(data), str(data) + "-wal", str(data) + "-shm"}
    mine = {os.getpid(), holder(data)[0]}
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in mine:
            continue
        with suppress(OSError):
            if any(os.readlink(one) in wanted for one in (entry / "fd").iterdir()):
                name = (entry / "comm").read_text().strip()
                found.append(f"process {entry.name} ({name})")
    return found
