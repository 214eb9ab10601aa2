"""Handlers of the worker processes behind the pages: one that must be mended, one that runs on."""

import os
from pathlib import Path
from typing import Any

from feltd.worker import Context, Permanent, Worker

worker = Worker(
    lease_ms=3_000, heartbeat_interval_ms=1_000, heartbeat_timeout_ms=3_000, grace_ms=5_000,
    concurrency=2,
)  # fmt: skip


@worker.handles("extract")
def extract(ctx: Context) -> Any:
    """Fails for good until somebody mends it."""
    mended = Path(os.environ["FELTD_TEST_FOLDER"]) / "mended"
    if not mended.exists():
        raise Permanent("the parser lost page 3")
    return {"pages": 3}


@worker.handles("hold")
def hold(ctx: Context) -> Any:
    """Runs until a file tells it to finish, or it is told to stop."""
    finish = Path(os.environ["FELTD_TEST_FOLDER"]) / "finish"
    for step in range(600):
        ctx.progress(step, 600)
        if ctx.wait(0.1) or finish.exists():
            break
    ctx.raise_if_cancelled()
    return "finished"
