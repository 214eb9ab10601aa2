"""A wire that parts a worker from its daemon, and the worker processes that can be asked.

The weather of a wire says what it does to each request and reply while it lasts. A process here
writes down what it holds whenever it is told to (SIGUSR1), so that both accounts can be compared.
"""

import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

from feltd.worker import Context, Permanent, Transient, Worker
from tests.worker.lossy import Wire, message

#: What a wire does: pass, swallow replies, lose requests, be late with replies, or all of it.
CLEAR, DEAF, TORN, SLOW, MIXED = "clear", "deaf", "torn", "slow", "mixed"
SLOW_S = (0.05, 0.6)


class Weather(Wire):
    """A wire with a weather; `reconciled` counts reconciliations whose answer got through.

    `lose_answers` of the next reconciliations are swallowed, whatever the weather.
    """

    def __init__(self, url: str, chance: random.Random) -> None:
        self.weather = CLEAR
        self.chance = chance
        self.reconciled = 0
        self.lose_answers = 0
        super().__init__(url)

    def part(self, weather: str) -> None:
        """From now on, for what is under way too."""
        self.weather = weather

    async def _exchange(self, reader: Any, writer: Any, there: Any, back: Any) -> bool:
        head, body = await message(reader)
        await self._while_silent()
        if self._does(TORN):
            return False
        back.write(head + body)
        await back.drain()
        answer, content = await message(there)
        await self._while_silent()
        if self._does(SLOW):
            await self.pause(self.chance.uniform(*SLOW_S))
        if self._does(DEAF) or self._does(TORN):
            return False
        reconciles = b"/reconcile " in head.split(b"\r\n", 1)[0]
        if reconciles and self.lose_answers > 0:
            self.lose_answers -= 1
            return False
        writer.write(answer + content)
        await writer.drain()
        self.reconciled += reconciles and answer.startswith(b"HTTP/1.1 200")
        return True

    def _does(self, deed: str) -> bool:
        if self.weather == MIXED:
            return self.chance.random() < 1 / 4
        return self.weather == deed


class Askable:
    """A worker process that writes down what it holds when it is told to."""

    def __init__(self, pid: int, file: Path) -> None:
        self.pid = pid
        self.file = file

    def holds(self) -> set[str]:
        """The claims it stands for at this moment."""
        self.file.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        ends = time.monotonic() + 30.0
        while not self.file.exists():
            assert time.monotonic() < ends, "the process does not say what it holds"
            time.sleep(0.002)
        return set(json.loads(self.file.read_text()))


worker = Worker(
    lease_ms=60_000,
    heartbeat_interval_ms=1_000,
    heartbeat_timeout_ms=2_000,
    grace_ms=5_000,
    concurrency=4,
)


@worker.handles("nap")
def nap(ctx: Context) -> Any:
    """Sleep as long as the input says; end as it says, listening or not."""
    given = ctx.input
    if given["deaf"]:
        time.sleep(given["nap_s"])
    elif ctx.wait(given["nap_s"]):
        ctx.raise_if_cancelled()
        raise Transient(f"told to stop: {ctx.stopping}")
    if given["end"] == "transient" and ctx.attempt < 3:
        raise Transient("once more", retry_after_ms=10)
    if given["end"] == "permanent":
        raise Permanent("never", kind="no_such_page")
    return {"slept": given["nap_s"]}


def _tell(*_signal: object) -> None:
    """Signal handlers run between two steps of the loop's thread: what is held is whole here."""
    loop = worker._loop
    held = [] if loop is None else [one.claim_id for one in loop.desk.reported()]
    file = Path(os.environ["FELTD_TEST_HOLDS"])
    # The rename shows the whole file or none.
    fresh = file.with_suffix(".fresh")
    fresh.write_text(json.dumps(held))
    fresh.rename(file)


if "FELTD_TEST_HOLDS" in os.environ and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGUSR1, _tell)
