"""Small files nobody else may read: made once, whole, 0600; never read when others could.

For signing keys and key files. Unlike the database they are read and written directly.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from feltd.store.connect import StoreProblem, sync_folder

#: Far above any keyring; a larger file is not one.
BYTES_MAX = 1024 * 1024


def create(path: Path, content: bytes) -> None:
    """Write a new file (mode 0600), durable when this returns; refuses to replace one.

    It appears whole or not at all: a crash leaves at most `<path>.new`, which the next call
    removes.
    """
    draft = path.with_name(path.name + ".new")
    try:
        draft.unlink(missing_ok=True)
        made = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(made, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # link, not rename: it refuses to take the place of a file that is there.
        os.link(draft, path)
    except FileExistsError as error:
        raise StoreProblem(
            f"{path} exists already.", "Keep it, or name another file; it is never replaced."
        ) from error
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path)


def change(path: Path, made: Callable[[bytes], bytes]) -> bytes:
    """Put what `made` makes of a private file in its place (mode 0600), durable when this returns.

    A reader sees the old file or the new one, never a part; and nobody else changes it between the
    reading and the writing. Raises StoreProblem when it cannot be read or written, when another
    command is changing it at this moment, and what `made` raises: then nothing was changed.
    """
    draft = path.with_name(path.name + ".next")
    try:
        opened = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise StoreProblem(
            f"{draft} is there: another command is writing the file, or was killed doing so.",
            f"If none is running, remove {draft}; {path} is whole.",
        ) from error
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with os.fdopen(opened, "wb") as file:
            content = made(read(path))
            os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise _unwritable(path, error) from error
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path)
    return content


def read(path: Path) -> bytes:
    """The content of a private file.

    Raises StoreProblem when it is missing, no plain file, a symbolic link, larger than 1 MiB,
    belongs to another user than this one or root, or may be read by anybody else. A file of root
    that its group may read is taken: that is how a service manager hands over credentials.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise StoreProblem(
            f"{path} does not exist." if missing else f"{path} cannot be read: {error.strerror}.",
            "Run `feltd init`, or name the right file." if missing else "Name a plain file.",
        ) from error
    try:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode) or found.st_size > BYTES_MAX:
            raise StoreProblem(f"{path} is no small plain file.", "Name the right file.")
        _refuse_loose(path, found)
        content = b""
        while part := os.read(opened, BYTES_MAX):
            content += part
        return content
    finally:
        os.close(opened)


def _unwritable(path: Path, error: OSError) -> StoreProblem:
    return StoreProblem(
        f"{path} cannot be written: {error.strerror}.", "Name a folder this user can write to."
    )


def _refuse_loose(path: Path, found: os.stat_result) -> None:
    mine = found.st_uid == os.geteuid()
    if not mine and found.st_uid != 0:
        raise StoreProblem(
            f"{path} belongs to another user.", "Give it to the user that runs feltd."
        )
    if found.st_mode & (0o077 if mine else 0o037):
        raise StoreProblem(
            f"{path} may be read or changed by others (mode {stat.S_IMODE(found.st_mode):04o}).",
            f"Run `chmod 600 {path}`, and make new keys if somebody may have read it.",
        )
