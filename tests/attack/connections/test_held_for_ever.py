"""Connections that a stranger, or a client that left, could have kept open without end."""

from collections.abc import Callable

import pytest

from tests.api.transport.conftest import loop_kind as loop_kind
from tests.api.transport.kit import House, Talk, request, serving

POLL = request("POST", "/v1/poll?wait_ms=30000")
KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def handshake(**headers: str) -> bytes:
    """A WebSocket's opening, with these headers beside what makes it one; "" leaves one out."""
    whole = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec_WebSocket_Key": KEY,
        "Sec_WebSocket_Version": "13",
    }
    return request("GET", "/channel", **(whole | headers))


BROKEN = {
    "without a key": handshake(Sec_WebSocket_Key=""),
    "of another version": handshake(Sec_WebSocket_Version="12"),
    "with a body": handshake(Content_Length="5") + b"hello",
    "with an endless body": handshake(Transfer_Encoding="chunked"),
    "with a protocol no name has": handshake(Sec_WebSocket_Protocol="\xff"),
    "with a connection no word is": handshake(Connection="Upgrade, \xe9"),
}


@pytest.mark.parametrize("opening", BROKEN.values(), ids=BROKEN)
def test_a_broken_handshake_is_refused_in_full_and_ends(loop_kind: str, opening: bytes) -> None:
    with serving(loop_kind) as house:
        talk = house.connect().send(opening)
        answer = talk.answer()

        assert (answer.status, answer.code) == (400, "REQUEST_MALFORMED")
        assert answer.headers["connection"] == "close"
        assert talk.ended()
        talk.close()
        house.eventually(lambda: house.server.connections == 0)


def test_who_speaks_before_the_handshake_is_answered_is_ended(loop_kind: str) -> None:
    with serving(loop_kind) as house:
        talk = house.connect().send(handshake() + b"\x81\x05hello")
        assert talk.answer().status in (400, 404)
        house.eventually(lambda: house.server.connections == 0)


@pytest.mark.parametrize("leave", [Talk.close, Talk.reset])
@pytest.mark.parametrize("ahead", [POLL, POLL * 40, POLL[:40]])
def test_a_client_that_left_is_seen_behind_the_calls_it_sent_ahead(
    loop_kind: str, ahead: bytes, leave: Callable[[Talk], None]
) -> None:
    with serving(loop_kind) as house:
        talk = house.connect().send(POLL)
        parked(house)
        talk.send(ahead)
        leave(talk)

        house.eventually(lambda: house.server.connections == 0)
        assert house.stack.admission.long_polls == 0
        assert len(house.world.polls) == 1, "a call sent ahead was begun for nobody"
        assert house.world.claims == []


def test_calls_sent_ahead_while_one_is_parked_are_answered_in_order(loop_kind: str) -> None:
    with serving(loop_kind) as house:
        talk = house.connect().send(POLL)
        parked(house)
        for number in range(30):
            talk.send(request("GET", f"/v1/workers/w{number}"))
        house.do(lambda: house.world.polls[-1].wake("ready"))

        assert talk.answer().json == {"why": "ready"}
        assert [talk.answer().json["id"] for _ in range(30)] == [f"w{n}" for n in range(30)]


def test_more_than_is_taken_in_ahead_waits_and_is_not_lost(loop_kind: str) -> None:
    body = b'{"name": "a", "input": "%s"}' % (b"x" * 30_000)
    with serving(loop_kind) as house:
        talk = house.connect().send(POLL)
        parked(house)
        talk.sock.setblocking(True)
        talk.send(request("POST", "/v1/echo", body) * 5)
        house.do(lambda: house.world.polls[-1].wake("ready"))

        assert talk.answer().json == {"why": "ready"}
        assert [len(talk.answer().json["input"]) for _ in range(5)] == [30_000] * 5


REFUSED_UNREAD = {
    "of nowhere": request("POST", "/v1/nowhere", Content_Length="9"),
    "without a key": request("POST", "/v1/echo", Content_Length="9", Authorization=""),
    "of another type": request("POST", "/v1/echo", Content_Length="9", Content_Type="text/plain"),
}


@pytest.mark.parametrize("head", REFUSED_UNREAD.values(), ids=REFUSED_UNREAD.keys())
def test_an_answer_before_the_body_says_that_it_is_the_last(loop_kind: str, head: bytes) -> None:
    """The connection ends without the body; a client that is not told loses its next call."""
    with serving(loop_kind) as house:
        talk = house.connect().send(head)
        answer = talk.answer()
        assert answer.status in (401, 404, 415)
        assert [text for name, text in answer.all_headers if name == "connection"] == ["close"]
        assert talk.send(b'{"a": 55}').ended()


def parked(house: House) -> None:
    house.eventually(lambda: house.stack.admission.long_polls == 1)
