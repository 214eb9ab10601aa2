"""Somebody who listens to the feed: a key, and a stream read line by line."""

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.daemon.running import PATIENCE_S, Daemon


class Reader(NamedTuple):
    """A key that may read events."""

    key_id: str
    key: str


class Heard(NamedTuple):
    """One block of a stream: its number, its name and its JSON; None where it has none."""

    id: int | None
    event: str | None
    data: Any


def reader(daemon: Daemon, *tenants: str, **members: Any) -> Reader:
    """A new key for the events of some tenants."""
    made = daemon.post(
        "/v1/keys",
        {"name": "reader", "scopes": ["events:read"], "tenants": list(tenants), **members},
    )
    return Reader(made["key_id"], made["secret"])


class Listener:
    """One stream. Iterating gives what comes, until the daemon ends it."""

    def __init__(
        self,
        url: str,
        key: str,
        after: int | None = None,
        *,
        last: int | str | None = None,
        path: str = "/v1/events",
    ) -> None:
        address = urlsplit(url)
        self.connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=PATIENCE_S
        )
        headers = {"Accept": "text/event-stream", "Authorization": f"Bearer {key}"}
        if last is not None:
            headers["Last-Event-ID"] = str(last)
        if after is not None:
            path += ("&" if "?" in path else "?") + f"after={after}"
        self.connection.request("GET", path, headers=headers)
        self.answer = self.connection.getresponse()
        self.status = self.answer.status

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_ended: object) -> None:
        self.close()

    def close(self) -> None:
        """Go away, whatever still comes."""
        if self.connection.sock is not None:
            with contextlib.suppress(OSError):
                self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.answer.close()
        self.connection.close()

    def __iter__(self) -> Iterator[Heard]:
        """Blocks that say anything, comments aside."""
        number, name, text = None, None, None
        while line := self.answer.readline():
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "id":
                number = int(value)
            elif field == "event":
                name = value
            elif field == "data":
                text = json.loads(value)
            elif field == "":
                if number is not None or name is not None or text is not None:
                    yield Heard(number, name, text)
                number, name, text = None, None, None

    def take(self, count: int) -> list[Any]:
        """The next so many events."""
        found: list[Any] = []
        for heard in self:
            if heard.data is not None and heard.event is None:
                found.append(heard.data)
            if len(found) == count:
                break
        return found

    def farewell(self) -> Any:
        """Read to the end; what the daemon said last."""
        last = None
        for heard in self:
            last = heard
        assert last is not None
        assert last.event == "end", last
        return last.data


def gauge(daemon: Daemon, name: str) -> float:
    """A gauge of the daemon."""
    for line in str(daemon.get("/metrics")).splitlines():
        if line.startswith(name + " "):
            return float(line.split()[1])
    raise AssertionError(f"no gauge {name}")


def until(daemon: Daemon, name: str, value: float) -> None:
    """Wait for a gauge to be something."""
    ends = time.monotonic() + PATIENCE_S
    while (found := gauge(daemon, name)) != value:
        assert time.monotonic() < ends, f"{name} stays {found}"
        time.sleep(0.02)


def resident_bytes(daemon: Daemon) -> int:
    """Memory of the process."""
    with open(f"/proc/{daemon.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096
