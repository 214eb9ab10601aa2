"""A real daemon of which a story alters one thing from outside: this file is its program.

`python -m tests.cases.altered …` is `feltd …`, except that
- the wall clock is the machine's plus the milliseconds written in the file FELTD_CASES_OFFSET
  names; CLOCK_BOOTTIME goes on, as it does when somebody sets a machine's clock;
- with FELTD_CASES_SIGNALS_ALONE a parked poll is woken by what it is told of, and never looks
  again by the clock.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.daemon.running import Daemon

PROGRAM = (sys.executable, "-m", "tests.cases.altered")


class Altered(Daemon):
    """A daemon run by this program."""

    def init(self) -> "Altered":
        """Make the database; its admin key is `key`."""
        key = self.data.with_suffix(".key")
        ran = subprocess.run(
            (*PROGRAM, "init", "--data", str(self.data), "--key-file", str(key)),
            env=os.environ | self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        self.key = key.read_text().strip()
        return self

    def spawn(self, *flags: str, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
        """Start a process and wait for nothing."""
        arguments = (*PROGRAM, "serve", "--data", str(self.data), "--port", "0")
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                (*arguments, *self.flags, *flags),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | self.env | (env or {}),
            )
        return self.process


class Clocked(Altered):
    """A daemon whose wall clock the story sets, from `init` on."""

    def __init__(self, data: Path, *flags: str, **env: str) -> None:
        self.offset = data.with_name("offset")
        self.offset.write_text("0")
        super().__init__(data, *flags, env=env | {"FELTD_CASES_OFFSET": str(self.offset)})

    def set_by(self, ms: int) -> None:
        """Set the wall clock to the machine's plus `ms`, at once."""
        aside = self.offset.with_suffix(".new")
        aside.write_text(str(ms))
        aside.replace(self.offset)

    def wall_ms(self) -> int:
        """What the daemon's wall clock shows."""
        return time.time_ns() // 1_000_000 + int(self.offset.read_text())


def main() -> None:
    """feltd, altered as the environment says."""
    if "FELTD_CASES_OFFSET" in os.environ:
        offset = Path(os.environ["FELTD_CASES_OFFSET"])
        true_ns, true_s = time.time_ns, time.time
        time.time_ns = lambda: true_ns() + int(offset.read_text()) * 1_000_000
        time.time = lambda: true_s() + int(offset.read_text()) / 1_000
    if "FELTD_CASES_SIGNALS_ALONE" in os.environ:
        from feltd.api import polls

        polls.LOOK_AGAIN_S = 1e6
    from feltd.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
