"""Handlers of the worker processes in these stories; what they saw goes into FELTD_TEST_SEEN."""

import asyncio
import json
import os
import time
from typing import Any

from feltd.worker import AsyncContext, Context, Fenced, Permanent, Transient, Worker

worker = Worker(
    lease_ms=int(os.environ.get("FELTD_TEST_LEASE_MS", "3000")),
    heartbeat_interval_ms=int(os.environ.get("FELTD_TEST_INTERVAL_MS", "1000")),
    heartbeat_timeout_ms=int(os.environ.get("FELTD_TEST_TIMEOUT_MS", "3000")),
    grace_ms=int(os.environ.get("FELTD_TEST_GRACE_MS", "5000")),
    concurrency=2,
    channel=os.environ.get("FELTD_TEST_CHANNEL") == "1",
)


def saw(what: str, ctx: Any, **facts: Any) -> None:
    """Tell the story's reader."""
    line = {"what": what, "workload_id": ctx.workload_id, "token": ctx.fence, **facts}
    with open(os.environ["FELTD_TEST_SEEN"], "a") as file:
        file.write(json.dumps(line) + "\n")


@worker.handles("echo")
def echo(ctx: Context) -> Any:
    """The input, and what the claim says."""
    ctx.log("echoing")
    return {"input": ctx.input, "attempt": ctx.attempt, "fence": ctx.fence}


@worker.handles("echo_async")
async def echo_async(ctx: AsyncContext) -> Any:
    """The same without a thread, with a checkpoint."""
    await ctx.checkpoint({"half": True})
    return {"input": ctx.input, "attempt": ctx.attempt}


@worker.handles("steps")
def steps(ctx: Context) -> Any:
    """Count up with a checkpoint a step; goes on where an earlier attempt was."""
    first = (ctx.checkpoint_state or {"done": 0})["done"]
    for step in range(first, ctx.input["steps"]):
        ctx.progress(step, ctx.input["steps"])
        if ctx.wait(ctx.input.get("pace_s", 0.1)):
            saw("told", ctx, why=ctx.stopping)
        try:
            ctx.checkpoint({"done": step + 1})
        except Fenced as late:
            saw("fenced", ctx, code=getattr(late.__cause__, "code", ""))
            raise
        saw("step", ctx, step=step)
    return {"first": first, "steps": ctx.input["steps"]}


@worker.handles("hold")
def hold(ctx: Context) -> Any:
    """Run until told to stop."""
    saw("begun", ctx)
    ctx.wait(60)
    saw("told", ctx, why=ctx.stopping)
    ctx.raise_if_cancelled()


@worker.handles("hold_async")
async def hold_async(ctx: AsyncContext) -> Any:
    """Run until cancelled."""
    saw("begun", ctx)
    try:
        await asyncio.sleep(60)
    finally:
        saw("told", ctx, why=ctx.stopping)


@worker.handles("deaf")
def deaf(ctx: Context) -> Any:
    """Does not listen, and comes back with a result all the same."""
    saw("begun", ctx)
    time.sleep(ctx.input["seconds"])
    return "late"


@worker.handles("flaky")
def flaky(ctx: Context) -> Any:
    """Transient at first."""
    if ctx.attempt < 3:
        raise (
            Transient("not yet", retry_after_ms=50) if ctx.attempt < 2 else ConnectionError("gone")
        )
    return "third time"


@worker.handles("broken")
def broken(ctx: Context) -> Any:
    """Fails as its input says."""
    how = ctx.input["how"]
    if how == "permanent":
        raise Permanent("never", kind="no_such_page")
    if how == "secret":
        raise RuntimeError("login failed with password=hunter2hunter2")
    if how == "unserialisable":
        return object()
    if how == "deep":
        deep: Any = 1
        for _ in range(40):
            deep = [deep]
        return deep
    if how == "bad_kind":
        raise Permanent("never", kind="Not A Kind")
    raise KeyError("page")
