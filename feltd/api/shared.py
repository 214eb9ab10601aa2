"""Reads shared by all who ask the same at the same time: one look at the database for a commit.

A read is shared only until the next commit that its topic tells of: nobody joins one that began
before what he was woken for.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from feltd.api.polls import Polls
from feltd.clock import Now
from feltd.store.readers import Readers
from feltd.store.tx import Tx

C = TypeVar("C", bound=Hashable)
R = TypeVar("R")

#: The key under which a topic is told once a commit, beside those of whom it concerns.
ALL = "*"


class SharedReads(Generic[C, R]):
    """Reads under way, one for all who ask the same. Used on the event loop alone.

    `rule(tx, cmd, now)` reads, `made(cmd, found)` is what is shared of it. Every commit that may
    change an answer tells (topic, ALL).
    """

    def __init__(
        self,
        readers: Readers,
        polls: Polls,
        topic: str,
        rule: Callable[[Tx, C, Now], Any],
        made: Callable[[C, Any], R],
    ) -> None:
        self._readers = readers
        self._rule = rule
        self._made = made
        self._under_way: dict[C, asyncio.Task[R]] = {}
        self._hearing = polls.watching(topic, ALL, self._under_way.clear)
        self._hearing.__enter__()

    async def read(self, cmd: C) -> R:
        """The answer as it is after every commit told so far. Refuses what the rule refuses."""
        task = self._under_way.get(cmd)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._read(cmd))
            self._under_way[cmd] = task
            task.add_done_callback(lambda done: self._over(cmd, done))
        return await asyncio.shield(task)

    async def _read(self, cmd: C) -> R:
        return self._made(cmd, await self._readers.read(self._rule, cmd))

    def _over(self, cmd: C, task: "asyncio.Task[R]") -> None:
        if self._under_way.get(cmd) is task:
            del self._under_way[cmd]
        if not task.cancelled():
            # Looked at here too: those who waited for it may all have gone.
            task.exception()
