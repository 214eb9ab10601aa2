"""A PostgreSQL server of its own, on a socket in a temporary folder, gone after the story."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 30.0


@contextmanager
def server() -> Iterator[str]:
    """The folder of the socket of a running server, whose superuser is `sink`."""
    import psycopg

    folder = Path(tempfile.mkdtemp(prefix="feltd-sink-"))
    # The server refuses to run as root.
    who: dict[str, Any] = {}
    if os.geteuid() == 0:
        postgres = pwd.getpwnam("postgres")
        os.chown(folder, postgres.pw_uid, postgres.pw_gid)
        who = {"user": postgres.pw_uid, "group": postgres.pw_gid, "extra_groups": []}
    told = folder / "log"
    # Debian's programs of the server need not be on the path: they stand beside `postgres`.
    programs = Path(os.path.realpath(shutil.which("postgres") or "postgres")).parent
    running = None
    try:
        subprocess.run(
            [programs / "initdb", "-D", folder / "db", "-A", "trust", "-U", "sink", "--no-sync"],
            check=True, capture_output=True, cwd=folder, **who,
        )  # fmt: skip
        with told.open("wb") as log:
            running = subprocess.Popen(
                [programs / "postgres", "-D", folder / "db", "-k", folder, "-h", "", "-F"],
                stdout=log, stderr=log, cwd=folder, **who,
            )  # fmt: skip
        ends = time.monotonic() + PATIENCE_S
        while True:
            try:
                connect(str(folder)).close()
                break
            except psycopg.OperationalError:
                assert running.poll() is None, told.read_text()
                assert time.monotonic() < ends, told.read_text()
                time.sleep(0.05)
        yield str(folder)
    finally:
        if running is not None:
            running.send_signal(signal.SIGQUIT)
            running.wait(PATIENCE_S)
        shutil.rmtree(folder, ignore_errors=True)


def connect(folder: str, **options: Any) -> Any:
    """A connection of the superuser."""
    import psycopg

    return psycopg.connect(host=folder, user="sink", dbname="postgres", **options)
