"""Passwords at work: two threads of their own, a short queue, and nothing else waits for them.

One verification takes about 20 ms of a core and 19 MiB, so strangers decide neither how many run
nor how long a person waits: beyond sixteen that wait, a call is refused. Nobody here holds a permit
of the work: who waits is not at work yet.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from feltd.errors import Refused
from feltd.identity import passwords

THREADS = 2
WAITING_MAX = 16
#: What somebody waits who comes too many: by then sixteen have been served.
RETRY_AFTER_S = 1

T = TypeVar("T")


class Passwords:
    """The threads of one daemon; they begin with the first password. Used on the event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="feltd-passwords")
        self._at_work = 0
        #: How many were compared, a stranger's among them.
        self.verified = 0

    async def prove(self, look: Callable[[], Awaitable[str | None]], password: str) -> str | None:
        """What is kept of a password, as `look` finds it, if that is the one; None otherwise.

        The look is made within the room of a comparison: strangers keep no more readers at work.
        Refuses SERVICE_OVERLOADED when too many wait, and what `look` refuses.
        """
        self._enter()
        try:
            kept = await look()
        except BaseException:
            self._at_work -= 1
            raise
        return kept if await self._compare(kept, password) else None

    async def verify(self, kept: str | None, password: str) -> bool:
        """Whether a password is the one behind `kept`; None is a stranger's, and takes as long.

        Refuses SERVICE_OVERLOADED when too many wait.
        """
        self._enter()
        return await self._compare(kept, password)

    async def hash(self, password: str) -> str:
        """What is kept of a new password. Refuses as `verify` does."""
        self._enter()
        salt = os.urandom(passwords.SALT_BYTES)
        return await self._run(lambda: passwords.hashed(password, salt))

    async def _compare(self, kept: str | None, password: str) -> bool:
        right = await self._run(
            lambda: passwords.matches(passwords.NOBODY if kept is None else kept, password)
        )
        self.verified += 1
        return right and kept is not None

    def _enter(self) -> None:
        if self._at_work >= THREADS + WAITING_MAX:
            raise Refused(
                "SERVICE_OVERLOADED",
                "authentication temporarily unavailable",
                committed=False,
                retry_after_s=RETRY_AFTER_S,
            )
        self._at_work += 1

    async def _run(self, work: Callable[[], T]) -> T:
        """Do it in a thread, for somebody who has entered."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        # Whoever asked may go: the thread is busy until it is done, and only then counted free.
        future.add_done_callback(self._free)
        return await asyncio.shield(future)

    def _free(self, future: "asyncio.Future[T]") -> None:
        self._at_work -= 1
        if not future.cancelled():
            future.exception()
