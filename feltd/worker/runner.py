"""Runs one handler for one claim, on a thread of its own or as a task, and says how it ended.

A blocking handler cannot be stopped, only told; its thread is a daemon thread, so that one that
does not listen never keeps the process alive. Nothing here talks to the daemon.
"""

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any

from feltd.worker.context import AsyncContext, Checkpoint, Context
from feltd.worker.failures import Ending, raised, returned
from feltd.worker.leases import Held

#: A handler takes its context and returns the output; plain or `async def`.
Handler = Callable[[Any], Any]


def is_async(handler: Handler) -> bool:
    """Whether calling it gives something to await."""
    call = getattr(handler, "__call__", None)  # noqa: B004 - the method, to look at it
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


async def run(handler: Handler, held: Held, checkpoint: Checkpoint) -> Ending | None:
    """How the handler ended; None where it was stopped in the middle and said nothing.

    An asynchronous handler is cancelled when its claim shall stop.
    """
    loop = asyncio.get_running_loop()
    if not is_async(handler):
        return await _on_thread(handler, Context(held, checkpoint, loop))
    task = loop.create_task(handler(AsyncContext(held, checkpoint, loop)))
    held.on_stop = lambda: _cancel(task)
    if held.stopped.is_set():
        task.cancel()
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        held.on_stop = None
    if task.cancelled():
        return None if held.stopping else raised(RuntimeError("the handler cancelled itself"))
    error = task.exception()
    return returned(task.result()) if error is None else raised(error)


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()


async def _on_thread(handler: Handler, context: Context) -> Ending | None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Ending] = loop.create_future()
    inherited = contextvars.copy_context()

    def settle(ending: Ending) -> None:
        if not ended.done():
            ended.set_result(ending)

    def body() -> None:
        try:
            ending = returned(inherited.run(handler, context))
        except BaseException as error:  # whatever ends the thread ends the attempt
            ending = raised(error)
        # A closed loop means that the process is ending: the lease decides.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, ending)

    threading.Thread(target=body, name=f"feltd-{context.workload_id}", daemon=True).start()
    return await ended
