"""Bodies: how large, how slow, of what kind (BC-083, BC-085, BC-087)."""

import resource
from contextlib import suppress

import pytest

from feltd.api.bodies import SMALL_BYTES
from tests.api.transport.kit import House, Talk, request, serving

JSON = {"Content_Type": "application/json"}
MIB = 1024 * 1024


def dripping(house: House) -> Talk:
    """A client that has sent one byte of a thousand."""
    return house.connect().send(request("POST", "/v1/echo", Content_Length="1000", **JSON) + b"{")


def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_read(house: House) -> None:
    """BC-085."""
    talk = house.connect().send(request("POST", "/v1/echo", Content_Length=str(200 * MIB), **JSON))
    answer = talk.answer()

    assert (answer.status, answer.code) == (413, "REQUEST_TOO_LARGE")
    assert answer.headers["connection"] == "close"
    assert answer.json["limit"] == MIB
    assert talk.ended()


def test_a_body_in_chunks_is_refused_with_the_first_byte_over_the_limit(house: House) -> None:
    """BC-085."""
    talk = house.connect().send(request("POST", "/v1/echo", Transfer_Encoding="chunked", **JSON))
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    for _ in range(16):
        talk.send(chunk)
    assert house.do(lambda: house.stack.bodies.reading_bytes) <= MIB
    talk.send(b"1\r\n \r\n")
    answer = talk.answer()

    assert (answer.status, answer.code) == (413, "REQUEST_TOO_LARGE")


def test_a_body_of_just_the_limit_is_read(house: House) -> None:
    body = b'{"name": "' + b"a" * (MIB - 12) + b'"}'
    assert house.call("POST", "/v1/echo", body).status == 201


def test_the_answer_reaches_a_client_that_goes_on_sending(loop_kind: str) -> None:
    """BC-085: it is read and thrown away for a moment, then cut; memory stays as it was."""
    with serving(loop_kind) as house:
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        piece = b" " * MIB
        for _ in range(4):
            talk = house.connect()
            talk.send(request("POST", "/v1/echo", Content_Length=str(200 * MIB), **JSON))
            with suppress(OSError):
                for _ in range(200):
                    talk.send(piece)
            talk.close()
        head = request("POST", "/v1/echo", Content_Length=str(2 * MIB), **JSON)
        talk = house.connect().send(head + b" " * 300_000)
        assert talk.answer().status == 413
        talk.close()
        house.eventually(lambda: house.server.connections == 0)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 16 * 1024


def test_an_answer_given_before_the_body_came_does_not_lock_the_connection(
    loop_kind: str,
) -> None:
    with serving(loop_kind) as house:
        head = request("POST", "/nowhere", Content_Length=str(900_000), **JSON)
        talk = house.connect().send(head)
        assert talk.answer().code == "ROUTE_NOT_FOUND"
        with suppress(OSError):
            talk.send(b" " * 900_000)
        talk.close()
        house.eventually(lambda: house.server.connections == 0)


@pytest.mark.parametrize("drips", [False, True])
def test_a_body_that_does_not_arrive_is_answered_408(loop_kind: str, drips: bool) -> None:
    """BC-087: stalled, or dripping for ever."""
    with serving(loop_kind, stack={"body_deadline_ms": 300}) as house:
        talk = dripping(house)
        if drips:
            try:
                talk.sock.settimeout(0.02)
                while True:
                    try:
                        if talk.sock.recv(1, 2):  # MSG_PEEK
                            break
                    except TimeoutError:
                        talk.send(b" ")
            finally:
                talk.sock.settimeout(20)
        answer = talk.answer()

        assert (answer.status, answer.code) == (408, "REQUEST_TIMEOUT")
        assert answer.json["next"] == "repeat"
        assert answer.headers["connection"] == "close"
        talk.close()
        house.eventually(lambda: house.server.connections == 0)


def test_clients_that_never_finish_their_body_hold_no_permit() -> None:
    """BC-087: as many as there are permits."""
    with serving(stack={"max_in_flight": 4}) as house:
        slow = [dripping(house) for _ in range(8)]
        house.eventually(lambda: house.stack.bodies.reading_bytes == 8)

        assert house.do(lambda: house.stack.admission.in_flight) == 0
        assert house.call("GET", "/health").status == 200
        assert house.call("POST", "/v1/echo", b'{"name": "a"}').status == 201

        for talk in slow:
            talk.close()
        house.eventually(lambda: house.stack.bodies.reading_bytes == 0)
        house.eventually(lambda: house.server.connections == 0)


def test_all_bodies_being_read_share_one_budget() -> None:
    with serving(stack={"reading_bytes_max": 4}) as house:
        slow = [dripping(house) for _ in range(4)]
        house.eventually(lambda: house.stack.bodies.reading_bytes == 4)
        large = b'{"name": "%s"}' % (b"a" * SMALL_BYTES)
        answer = house.call("POST", "/v1/echo", large)

        assert (answer.status, answer.code) == (503, "SERVICE_OVERLOADED")
        assert house.world.shed == [("body_memory", False)]
        for talk in slow:
            talk.close()


def test_small_bodies_are_taken_however_much_others_hold() -> None:
    with serving(stack={"reading_bytes_max": 4}) as house:
        slow = [dripping(house) for _ in range(8)]
        house.eventually(lambda: house.stack.bodies.reading_bytes == 8)
        small = b'{"name": "%s"}' % (b"a" * (SMALL_BYTES - 12))
        assert len(small) == SMALL_BYTES

        assert house.call("POST", "/v1/echo", small).status == 201
        assert house.world.shed == []
        for talk in slow:
            talk.close()


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/xml", "application/json; charset=latin-1"]
)
def test_a_body_that_is_not_called_json_is_refused(house: House, content_type: str) -> None:
    answer = house.call("POST", "/v1/echo", b'{"name": "a"}', Content_Type=content_type)

    assert (answer.status, answer.code) == (415, "MEDIA_TYPE_UNSUPPORTED")


@pytest.mark.parametrize("content_type", ["application/json", 'Application/JSON; charset="UTF-8"'])
def test_json_by_any_spelling_is_taken(house: House, content_type: str) -> None:
    answer = house.call("POST", "/v1/echo", b'{"name": "a"}', Content_Type=content_type)
    assert answer.status == 201


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 422, "WORKLOAD_INVALID"),
        (b"{", 400, "REQUEST_MALFORMED"),
        (b"[" * 200_000, 400, "REQUEST_MALFORMED"),
        (b'{"name": "\xff"}', 400, "REQUEST_MALFORMED"),
        (b'{"name": "a", "size": 9223372036854775808}', 422, "WORKLOAD_INVALID"),
        (b'{"name": "a", "input": ' + b"[" * 200_000, 400, "REQUEST_MALFORMED"),
        (b'{"name": "a", "x": 1}', 422, "WORKLOAD_INVALID"),
    ],
)
def test_odd_bodies_get_their_code_over_the_wire(
    house: House, body: bytes, status: int, code: str
) -> None:
    """BC-082, BC-083."""
    answer = house.call("POST", "/v1/echo", body)
    assert (answer.status, answer.code) == (status, code)


def test_a_call_without_a_body_refuses_members_it_would_not_read(house: House) -> None:
    assert house.call("POST", "/v1/beat", b"{}").status == 200
    assert house.call("POST", "/v1/beat", b'{"x": 1}').code == "REQUEST_INVALID"


def test_a_broken_chunk_is_malformed_and_ends_the_connection(house: House) -> None:
    talk = house.connect().send(request("POST", "/v1/echo", Transfer_Encoding="chunked", **JSON))
    answer = talk.send(b"zz\r\n").answer()

    assert (answer.status, answer.code) == (400, "REQUEST_MALFORMED")
