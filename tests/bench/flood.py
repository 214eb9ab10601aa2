"""One load process of a flood: many connections of one tenant that create batches without pause.

`python -m tests.bench.flood` reads its order as JSON from stdin (see `Order`), says "ready", begins
at the next line, and ends when stdin does: then it says what it did. It encodes nothing while it
runs: a batch is one prepared body with its mark replaced, so that the flood is the daemon's to
bear and not the client's.
"""

import asyncio
import sys

import msgspec

from tests.bench.machine import workload
from tests.bench.wire import Answered, Line

#: Stands in the keys of the prepared body; what replaces it is as long.
MARK = b"@@@@@@@@@@@@"
#: A refused client asks again after this, far sooner than Retry-After says.
AGAIN_S = 0.25


class Order(msgspec.Struct):
    """What to flood: `connections` clients send `items` a batch; `tag` makes their keys unique."""

    port: int
    bearer: str
    tenant: str
    connections: int
    items: int
    atomic: bool
    tag: str


class Done(msgspec.Struct):
    """What came of it."""

    created: int = 0
    refused: int = 0


async def flood(order: Order, stop: asyncio.Event) -> Done:
    """Send batches on every connection until `stop`."""
    done = Done()
    work = [workload(f"{MARK.decode()}-{n}", order.tenant) for n in range(order.items)]
    prepared = msgspec.json.encode({"workloads": work, "atomic": order.atomic})

    async def client(number: int) -> None:
        line = Line("127.0.0.1", order.port, order.bearer)
        sent = 0
        while not stop.is_set():
            mark = f"{order.tag:>4.4}{number:04x}{sent:04x}".replace(" ", "-").encode()
            try:
                await line.send("POST", "/v1/workloads/batch", prepared.replace(MARK, mark))
                sent += 1
                done.created += order.items
            except Answered as refused:
                if refused.args[0] != 503:
                    raise
                done.refused += 1
                await asyncio.sleep(AGAIN_S)
        line.close()

    await asyncio.gather(*(client(number) for number in range(order.connections)))
    return done


async def main() -> None:
    order = msgspec.json.decode(sys.stdin.readline(), type=Order)
    print("ready", flush=True)
    sys.stdin.readline()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.run_in_executor(None, sys.stdin.read).add_done_callback(lambda _: stop.set())
    print(msgspec.json.encode(await flood(order, stop)).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
