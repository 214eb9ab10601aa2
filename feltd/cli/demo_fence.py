"""`feltd demo --fence`: a worker paused past its lease wakes and writes late, to two files.

Both files are written by the same handler, one through a guard. The price changes while the first
worker is stopped, so a late write puts back what is no longer true. Fails unless exactly that is
seen: refused at the guarded file, damage at the other.
"""

import signal
from pathlib import Path
from typing import Any

from feltd.cli.demo_show import Show
from feltd.cli.demo_stage import APPLICATION, TENANT, Failed, Stage

HANDLERS = "feltd.cli.demo_sink:worker"
KIND = "publish"
SINKS = ("fenced", "unfenced")
BEFORE, AFTER = "10", "12"

Note = dict[str, Any]


def play(stage: Stage, show: Show) -> None:
    """The whole story, on a stage where nothing runs yet."""
    stage.serve()
    source = stage.folder / "price.txt"
    source.write_text(BEFORE)
    show.head("A price to publish to two files, one of them behind a fence")
    show.fact("daemon", stage.url)
    key = stage.enrolled([KIND])
    jobs = _create(stage, source)
    stage.start_worker("first", key, len(SINKS), HANDLERS)
    stage.until(show, "the first worker has read the price", lambda: len(_told(stage, "read")) == 2)
    stage.signal("first", signal.SIGSTOP)
    tokens = {note["workload_id"]: note["token"] for note in _told(stage, "read")}
    show.fact("first", f"read {BEFORE}, then SIGSTOP before it writes; tokens {_list(tokens)}")

    source.write_text(AFTER)
    show.head("The price changes, and another worker takes over")
    stage.start_worker("second", key, len(SINKS), HANDLERS)
    stage.until(show, "the second worker has published", lambda: _done(stage, jobs))
    newer = {note["workload_id"]: note["token"] for note in _told(stage, "written")}
    show.fact("second", f"read {AFTER} and wrote it to both; tokens {_list(newer)}")
    _expect(stage, fenced=AFTER, unfenced=AFTER)

    show.head("The first worker wakes: it does not know, and writes")
    stage.signal("first", signal.SIGCONT)
    stage.until(show, "both late writes were tried", lambda: len(_late(stage, tokens)) == 2)
    _verdicts(stage, show, jobs, tokens, newer)
    for name in ("first", "second"):
        if (code := stage.stop_worker(name)) != 0:
            raise Failed(f"{name} ended with {code}:\n{stage.last_lines(name)}")


def _create(stage: Stage, source: Path) -> dict[str, str]:
    """One workload a sink; their ids."""
    made = stage.client.create_batch(
        [
            {
                "tenant_id": TENANT,
                "application_id": APPLICATION,
                "definition_id": KIND,
                "idempotency_key": sink,
                "capability_snapshot": [KIND],
                "input": {
                    "source": str(source),
                    "sink": str(_file(stage, sink)),
                    "fenced": sink == "fenced",
                },
            }
            for sink in SINKS
        ],
        atomic=True,
    )
    refused = [one for one in made if "workload_id" not in one]
    if refused:
        raise Failed(f"a workload was refused: {refused[0]}")
    return {sink: str(one["workload_id"]) for sink, one in zip(SINKS, made, strict=True)}


def _verdicts(
    stage: Stage, show: Show, jobs: dict[str, str], old: dict[str, int], new: dict[str, int]
) -> None:
    """What each file holds now, beside what feltd has as the result."""
    late = {note["workload_id"]: note for note in _late(stage, old)}
    fenced, unfenced = late[jobs["fenced"]], late[jobs["unfenced"]]
    if (fenced["what"], unfenced["what"]) != ("refused", "written"):
        raise Failed(f"the late writes went otherwise: {fenced}, {unfenced}")
    if fenced["highest"] != new[jobs["fenced"]]:
        raise Failed(f"the fence has seen another token than the second worker's: {fenced}")
    _expect(stage, fenced=AFTER, unfenced=BEFORE)
    for sink, job in jobs.items():
        found = stage.client.workload(job)
        if found["result"]["output"] != {"price": AFTER} or found["fencing_token"] != new[job]:
            raise Failed(f"the result of {sink} is not the second worker's: {found['result']}")
    show.fact(
        "fenced",
        f"refused: token {fenced['token']} is below {fenced['highest']}; the file says {AFTER}",
    )
    show.fact(
        "unfenced", f"written over: the file says {BEFORE}, and nobody will correct it: the damage"
    )
    show.fact("feltd", f"has {AFTER} as the one result of each, by the second worker's token")


def _expect(stage: Stage, **prices: str) -> None:
    for sink, price in prices.items():
        found = _file(stage, sink).read_text()
        if found != price:
            raise Failed(f"{sink}.txt says {found!r} where {price!r} was expected")


def _file(stage: Stage, sink: str) -> Path:
    return stage.folder / f"{sink}.txt"


def _told(stage: Stage, what: str) -> list[Note]:
    return [note for note in stage.noted() if note["what"] == what]


def _late(stage: Stage, tokens: dict[str, int]) -> list[Note]:
    """What became of the writes under these tokens."""
    return [
        note
        for note in stage.noted()
        if note["what"] != "read" and note["token"] == tokens[note["workload_id"]]
    ]


def _done(stage: Stage, jobs: dict[str, str]) -> bool:
    return all(stage.client.workload(job)["state"] == "COMPLETED" for job in jobs.values())


def _list(tokens: dict[str, int]) -> str:
    return " and ".join(str(token) for token in sorted(tokens.values()))
