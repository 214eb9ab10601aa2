"""Frames that no honest client sends: each is refused, or closes its own channel and no other."""

import json
import struct
import time
from contextlib import suppress

import pytest

from tests.api.channel.conftest import Opens
from tests.api.channel.talk import channel, frame_of
from tests.api.channel.test_ends import resident_kb
from tests.api.claims.conftest import Crew


def test_a_frame_may_come_in_fragments_with_pings_between(crew: Crew, opens: Opens) -> None:
    wire = opens(crew.worker())
    text = json.dumps({"id": "pieces", "claim": {}})

    wire.raw(frame_of(text[:5].encode(), fin=False))
    wire.ping()
    wire.raw(frame_of(text[5:9].encode(), opcode=0, fin=False))
    wire.raw(frame_of(text[9:].encode(), opcode=0))

    assert wire.answer("pieces")["claims"] == []
    assert wire.wait(lambda one: "pong" in one) == {"pong": "here"}


def test_a_binary_frame_is_read_as_the_json_it_holds(crew: Crew, opens: Opens) -> None:
    wire = opens(crew.worker())

    wire.send_bytes(b'{"id": 7, "claim": {}}')

    assert wire.answer(7)["claims"] == []


@pytest.mark.parametrize("pieces", [1, 16])
def test_a_frame_over_a_mebibyte_closes_the_channel(crew: Crew, opens: Opens, pieces: int) -> None:
    """BC-085."""
    wire = opens(crew.worker())
    piece = b"x" * ((1024 * 1024 + 16) // pieces)

    for number in range(pieces):
        sent = frame_of(piece, opcode=0 if number else 1, fin=number == pieces - 1)
        wire.raw(sent)

    assert wire.ended() == (4413, "a frame is at most 1048576 bytes")


def test_a_frame_of_a_mebibyte_is_looked_at(crew: Crew, opens: Opens) -> None:
    wire = opens(crew.worker())
    head, tail = b'{"id": 1, "claim": {"request_id": "', b'"}}'
    wire.raw(frame_of(head + b"x" * (1024 * 1024 - len(head) - len(tail)) + tail))

    assert wire.answer(1)["code"] == "WORKLOAD_INVALID"


def test_endless_empty_fragments_end(crew: Crew, opens: Opens) -> None:
    wire = opens(crew.worker())

    wire.raw(frame_of(b"", fin=False) + frame_of(b"", opcode=0, fin=False) * 1_100)

    assert wire.ended() == (4413, "a frame comes in at most 1024 pieces")


WRONG = {
    "not masked": (b"\x81\x02{}", 1002),
    "with a reserved bit": (frame_of(b"{}", rsv=4), 1002),
    "of an unknown kind": (frame_of(b"{}", opcode=3), 1002),
    "that goes on with nothing": (frame_of(b"{}", opcode=0), 1002),
    "that is no text": (frame_of(b'{"id": "\xff\xfe"}'), 1007),
    "a fragmented ping": (frame_of(b"", opcode=9, fin=False), 1002),
    "a long ping": (frame_of(b"x" * 200, opcode=9), 1002),
    "of a length beyond all bounds": (b"\x81\xff" + b"\xff" * 12 + b"x" * 64, 1002),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_websocket_is_told_so(crew: Crew, opens: Opens, what: str) -> None:
    sent, code = WRONG[what]
    other, wire = opens(crew.worker()), opens(crew.worker())

    wire.raw(sent)

    assert wire.ended()[0] == code
    assert other.ask(claim={})["claims"] == []


def test_a_frame_that_never_ends_is_no_reason_to_hold_memory(crew: Crew, opens: Opens) -> None:
    """BC-087."""
    wire = opens(crew.worker())

    wire.raw(b"\x81\xff" + struct.pack("!Q", 1 << 40) + b"\0\0\0\0" + b"x" * (1 << 21))

    assert wire.ended()[0] == 4413


def test_what_is_no_frame_of_the_protocol_is_refused_and_the_channel_goes_on(
    crew: Crew, opens: Opens
) -> None:
    wire = opens(crew.worker())
    unread: dict[str, tuple[object, str]] = {
        "": (None, "WORKLOAD_INVALID"),
        "{": (None, "REQUEST_MALFORMED"),
        "[]": (None, "WORKLOAD_INVALID"),
        "{}": (None, "WORKLOAD_INVALID"),
        '{"claim": {}}': (None, "WORKLOAD_INVALID"),
        '{"id": 1.5}': (None, "WORKLOAD_INVALID"),
        '{"id": null}': (None, "WORKLOAD_INVALID"),
        '{"id": ' + "[" * 5_000 + "]" * 5_000 + "}": (None, "REQUEST_MALFORMED"),
        '{"id": 1e400}': (None, "WORKLOAD_INVALID"),
        '{"id": 9007199254740993}': (None, "WORKLOAD_INVALID"),
        '{"id": 3, "what": 1}': (3, "WORKLOAD_INVALID"),
        '{"id": "a", "claim": {"credit": -1}}': ("a", "WORKLOAD_INVALID"),
        '{"id": "b", "claim": {"credit": 1, "max": 2}}': ("b", "WORKLOAD_INVALID"),
        '{"id": "c", "claim": {"credit": 1025}}': ("c", "WORKLOAD_INVALID"),
        '{"id": "d", "complete": [{}]}': ("d", "WORKLOAD_INVALID"),
        '{"id": "e", "auth": "felt_w_x"}': ("e", "WORKLOAD_INVALID"),
        '{"id": "f\\u0007"}': ("f\x07", "WORKLOAD_INVALID"),
    }
    for text, (frame_id, code) in unread.items():
        wire.raw(frame_of(text.encode()))
        told = wire.wait(lambda one: "code" in one)
        assert (told["id"], told["code"], told["next"]) == (frame_id, code, "fix_request"), text

    assert wire.ask(claim={})["claims"] == []


def test_compression_is_never_agreed_to(crew: Crew, opens: Opens) -> None:
    wire = opens(
        crew.worker(), Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits"
    )

    assert "sec-websocket-extensions" not in wire.headers
    assert wire.ask(claim={})["claims"] == []


def test_frames_while_the_daemon_is_full_are_shed_as_exchanges_are(crew: Crew) -> None:
    # More frames in flight than a channel may have at work: all are answered all the same.
    wire = channel(crew.worker())
    for number in range(300):
        wire.send({"id": number, "claim": {}})

    answers = [wire.answer(number) for number in range(300)]

    assert all("outcomes" in one or one["code"] == "SERVICE_OVERLOADED" for one in answers)
    assert all(one["retry_after_s"] >= 1 for one in answers if "code" in one)
    wire.close()


def test_a_client_that_asks_and_never_reads_is_cut(crew: Crew, opens: Opens) -> None:
    worker = crew.worker(capacity={"concurrency": 16})
    for number in range(16):
        crew.work(input={"n": number, "text": "x" * 200_000})
    wire = opens(worker)
    ask = {"claim": {"max": 16, "request_id": "again", "lease_ms": 600_000}}
    assert len(wire.ask(**ask)["claims"]) == 16
    before_kb = resident_kb(crew.daemon)

    most_kb = sent = 0
    with suppress(OSError):
        while sent < 6_000:
            wire.send({"id": 1} | ask)
            most_kb = max(most_kb, resident_kb(crew.daemon) - before_kb)
            sent += 1
            time.sleep(0.01)

    assert sent < 6_000, "it was never cut"
    print(f"it held {most_kb / 1024:.0f} MiB at most")
    assert most_kb < 128 * 1024
    assert opens(crew.worker()).ask(claim={})["claims"] == []
