"""The handlers of `feltd demo`: real work on real input, the files of the installed package.

They are written as anybody's would be. `survey` is slow on purpose, so that a worker can be killed
in the middle of it; what it notes about a refused write is the demo's evidence.
"""

import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import feltd
from feltd.worker import Context, Fenced, Worker

ROOT = Path(feltd.__file__).resolve().parent
BLOCK_BYTES = 65_536
#: Short, so that losing a worker shows within seconds; a real one leaves the defaults.
LEASE_MS = 3_000
HEARTBEAT_INTERVAL_MS = 1_000
HEARTBEAT_TIMEOUT_MS = 3_000

worker = Worker(
    lease_ms=LEASE_MS,
    heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
    heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS,
)


@worker.handles("hash")
def hash_(ctx: Context) -> dict[str, Any]:
    """SHA-256 of one file."""
    path = ctx.input["path"]
    return {"path": path, "sha256": digest(ROOT / path)}


@worker.handles("summarise")
def summarise(ctx: Context) -> dict[str, Any]:
    """Lines, words and the commonest words of one file, with a checkpoint between the two."""
    path = ctx.input["path"]
    text = (ROOT / path).read_text(errors="replace")
    counted = ctx.checkpoint_state or {"lines": text.count("\n"), "words": len(text.split())}
    ctx.checkpoint(counted)
    return {"path": path, **counted, "commonest": commonest(text)}


@worker.handles("survey")
def survey(ctx: Context) -> dict[str, Any]:
    """One digest over many files in order; the next attempt goes on behind the last checkpoint."""
    paths = ctx.input["paths"]
    reached = ctx.checkpoint_state or {"done": 0, "digest": ""}
    resumed_at = reached["done"]
    for place in range(resumed_at, len(paths)):
        linked = reached["digest"] + digest(ROOT / paths[place])
        reached = {"done": place + 1, "digest": hashlib.sha256(linked.encode()).hexdigest()}
        ctx.progress(place + 1, len(paths), paths[place])
        ctx.wait(ctx.input["pace_ms"] / 1000)
        try:
            ctx.checkpoint(reached)
        except Fenced as late:
            note(ctx, paths[place], late)
            raise
    return {"files": len(paths), "digest": reached["digest"], "resumed_at": resumed_at}


def digest(path: Path) -> str:
    """SHA-256 of a file, hex."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            found.update(block)
    return found.hexdigest()


def commonest(text: str) -> list[str]:
    """The five commonest words of a text, by count, then by name."""
    words = Counter(word for word in text.split() if word.isalpha())
    return [word for word, _count in sorted(words.items(), key=lambda one: (-one[1], one[0]))[:5]]


def surveyed(paths: list[str]) -> str:
    """What `survey` answers for these files, worked out at once."""
    found = ""
    for path in paths:
        found = hashlib.sha256((found + digest(ROOT / path)).encode()).hexdigest()
    return found


def note(ctx: Context, path: str, late: Fenced) -> None:
    """Write down that a write came too late, for whoever runs the demo."""
    place = os.environ.get("FELTD_DEMO_NOTES")
    if not place:
        return
    refusal = late.__cause__
    line = {
        "workload_id": ctx.workload_id,
        "token": ctx.fence,
        "path": path,
        "code": getattr(refusal, "code", ""),
        "status": getattr(refusal, "status", 0),
        "detail": getattr(refusal, "detail", str(late)),
    }
    with open(place, "a") as file:
        file.write(json.dumps(line) + "\n")
