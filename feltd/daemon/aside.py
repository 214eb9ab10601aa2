"""Work on files that may never come back: a folder on a network that is gone, a disk that hangs.

Each piece runs on a thread that nothing waits for, neither the keeper's round nor the end of the
process; and one at a time, so that what hangs is not hung up behind itself. Not for the database's
own folder: where that hangs there is nothing left to keep going.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

#: How long somebody waits. A slow disk needs a second; a round of the keeper may not wait for more.
PATIENCE_S = 2.0


class Aside:
    """One place where such work is done. Used on the event loop."""

    def __init__(self) -> None:
        self._at_work: asyncio.Future[Any] | None = None

    async def run(self, work: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
        """What `work` gives or raises; TimeoutError while it, or what came before it, hangs.

        What was not waited for goes on, and its outcome is nobody's.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + patience_s
        while (before := self._at_work) is not None and not before.done():
            await self._wait(before, until_s)
        self._at_work = done = loop.create_future()
        # Looked at here too: whoever asked may have gone.
        done.add_done_callback(lambda found: found.cancelled() or found.exception())
        threading.Thread(
            target=_do, args=(work, loop, done), name="feltd-aside", daemon=True
        ).start()
        await self._wait(done, until_s)
        found: T = done.result()
        return found

    async def _wait(self, work: "asyncio.Future[Any]", until_s: float) -> None:
        left_s = until_s - asyncio.get_running_loop().time()
        await asyncio.wait((work,), timeout=max(0.0, left_s))
        if not work.done():
            raise TimeoutError("it does not answer")


def _do(
    work: Callable[[], Any], loop: asyncio.AbstractEventLoop, done: "asyncio.Future[Any]"
) -> None:
    try:
        found = work()
    except BaseException as error:
        told, outcome = done.set_exception, error
    else:
        told, outcome = done.set_result, found
    # The loop may be over by now: the process ends without waiting for this.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(told, outcome)
