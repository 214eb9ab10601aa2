"""What an open page hears: topics and nothing of any row, of its own tenants, until it logs out."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.console.reading import Reading
from tests.console.test_frame import call
from tests.console.test_login import log_in, send, session
from tests.console.test_work_pages import make
from tests.console.town import PASSWORD, Town, wait


class Ear:
    """One stream, read in a thread of its own; `lines` is what came, `ended` whether it is over."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.lines: list[str] = []
        self.ended = threading.Event()
        threading.Thread(target=self._hear, daemon=True).start()

    def topics(self) -> set[str]:
        """What was told of so far."""
        return {one.removeprefix("event: ") for one in self.lines if one.startswith("event: ")}

    def hears(self, topic: str) -> None:
        """Wait for a topic."""
        wait(lambda: topic in self.topics(), f"{topic} is heard")

    def _hear(self) -> None:
        try:
            for line in self._response:
                self.lines.append(line.decode().rstrip())
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            pass
        self.ended.set()


@contextmanager
def listening(town: Town, kept: str) -> Iterator[Ear]:
    """A page's stream, by its cookie, once it is open."""
    address = urlsplit(town.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    connection.request("GET", "/console/stream", headers={"Cookie": kept})
    line = connection.sock
    response = connection.getresponse()
    assert response.status == 200
    ear = Ear(response)
    try:
        ear.hears("felt:any")
        yield ear
    finally:
        # Else closing would wait for the next word to come.
        line.shutdown(socket.SHUT_RDWR)
        connection.close()


def stale_write(town: Town) -> None:
    """A fenced write that is refused."""
    [workload_id] = make(town, 1, definition_id=f"fenced-{time.monotonic_ns()}")
    fence = {"claim_id": "claim_1", "worker_id": "w", "fencing_token": 1}
    refused = town.daemon.call("POST", f"/v1/workloads/{workload_id}/complete", fence)
    assert refused.status >= 400


def test_topics_are_heard_and_nothing_else(town: Town) -> None:
    with listening(town, session(log_in(town, "vic"))) as ear:
        [workload_id] = make(town, 1, definition_id="heard")
        ear.hears("felt:workload")
        stale_write(town)
        ear.hears("felt:fence")

    told = "\n".join(ear.lines)
    assert workload_id not in told
    assert "heard" not in told
    assert {line.partition(":")[0] for line in ear.lines if line} <= {
        "retry",
        "event",
        "data",
        "id",
        "",
    }


def test_a_hold_is_heard_when_it_is_placed_and_when_it_is_lifted(town: Town) -> None:
    with listening(town, session(log_in(town, "vic"))) as ear:
        hold = town.daemon.post("/v1/holds", {"scope": "tenant", "value": "acme", "reason": "x"})
        ear.hears("felt:hold")
        ear.lines.clear()
        lifted = town.daemon.call("DELETE", f"/v1/holds/{hold['hold_id']}")
        assert lifted.status == 204, lifted
        ear.hears("felt:hold")


def test_work_of_another_tenant_is_not_heard(town: Town) -> None:
    body = {"username": "otto", "password": PASSWORD, "roles": {"other": "viewer"}}
    town.daemon.post("/v1/users", body)
    vic = session(log_in(town, "vic"))
    with listening(town, session(log_in(town, "otto"))) as ear, listening(town, vic) as other:
        make(town, 1, definition_id="unheard")
        other.hears("felt:workload")
        stale_write(town)
        other.hears("felt:fence")

        assert ear.topics() == {"felt:any"}
        assert "felt:workload" not in ear.topics()


def test_a_logout_ends_the_stream(town: Town) -> None:
    kept = session(log_in(town, "vic"))
    token = Reading(call(town, "GET", "/console", Cookie=kept).body).forms[-1].fields["form_token"]
    with listening(town, kept) as ear:
        send(town, "/console/logout", {"form_token": token}, Cookie=kept)
        assert ear.ended.wait(20), "the stream goes on"
        assert "end" in ear.topics()


def test_who_is_not_known_hears_nothing(town: Town) -> None:
    partial = call(town, "GET", "/console/stream", **{"HX-Request": "true"})

    assert (partial.status, partial.headers["hx-refresh"]) == (401, "true")
