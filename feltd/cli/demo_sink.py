"""The handler of `feltd demo --fence`: reads a price, takes its time, publishes it to a file.

With `fenced` it writes through feltd.worker.FileFence, without it like any program: that one line
is all the difference. Its notes are the demo's evidence.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from feltd.cli import demo_work
from feltd.worker import Context, FileFence, StaleFence, Worker

#: Long enough to be stopped between reading and writing.
WORK_S = 2.0

worker = Worker(
    lease_ms=demo_work.LEASE_MS,
    heartbeat_interval_ms=demo_work.HEARTBEAT_INTERVAL_MS,
    heartbeat_timeout_ms=demo_work.HEARTBEAT_TIMEOUT_MS,
)


@worker.handles("publish")
def publish(ctx: Context) -> dict[str, Any]:
    """Copy the price from `source` to `sink`, slowly."""
    price = Path(ctx.input["source"]).read_text()
    note(ctx, "read", price)
    time.sleep(WORK_S)
    try:
        if ctx.input["fenced"]:
            FileFence(ctx.input["sink"]).write(ctx.fence, price)
        else:
            Path(ctx.input["sink"]).write_text(price)
    except StaleFence as late:
        note(ctx, "refused", price, highest=late.highest)
        raise
    note(ctx, "written", price)
    return {"price": price}


def note(ctx: Context, what: str, price: str, highest: int | None = None) -> None:
    """Write down what was done, for whoever runs the demo."""
    place = os.environ.get("FELTD_DEMO_NOTES")
    if not place:
        return
    line = {
        "what": what,
        "price": price,
        "workload_id": ctx.workload_id,
        "token": ctx.fence,
        "highest": highest,
    }
    with open(place, "a") as file:
        file.write(json.dumps(line) + "\n")
