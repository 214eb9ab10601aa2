"""A WebSocket client of a channel, byte by byte: what a test sends is exactly what it says."""

import json
import os
import socket
import struct
import time
from itertools import count
from typing import Any, Self
from urllib.parse import urlsplit

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage

from tests.daemon.running import Daemon, Edge

PATIENCE_S = 20.0
KEY = "dGhlIHNhbXBsZSBub25jZQ=="

_numbers = count(1)


class Refusal(Exception):
    """The upgrade was answered with HTTP."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        super().__init__(f"{status} {body!r}")
        self.status, self.headers = status, headers
        self.body: dict[str, Any] = json.loads(body) if body else {}


class Wire:
    """One open WebSocket. `answers_pings` is what any real client does."""

    def __init__(self, sock: socket.socket, received: bytes, headers: dict[str, str]) -> None:
        self.sock = sock
        self.headers = headers
        self.answers_pings = True
        self.pings = 0
        self.closed: tuple[int, str] | None = None
        self._wire = Connection(ConnectionType.CLIENT)
        self._messages: list[dict[str, Any]] = []
        self._text = ""
        self._take(received)

    @classmethod
    def open(cls, address: tuple[str, int], path: str, **headers: str) -> Self:
        """Upgrade; raises Refusal where the answer is another. `_` in a name stands for `-`."""
        sock = socket.create_connection(address, PATIENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = {
            "Host": f"{address[0]}:{address[1]}",
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Key": KEY,
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": "feltd.v1",
        } | {name.replace("_", "-"): text for name, text in headers.items()}
        head = f"GET {path} HTTP/1.1\r\n"
        head += "".join(f"{name}: {text}\r\n" for name, text in lines.items() if text != "")
        sock.sendall(head.encode() + b"\r\n")
        received = b""
        while b"\r\n\r\n" not in received:
            piece = sock.recv(65536)
            if not piece:
                raise ConnectionError("the server ended the connection")
            received += piece
        top, rest = received.split(b"\r\n\r\n", 1)
        first, *pairs = top.decode("latin-1").split("\r\n")
        told = {name.lower(): text for name, text in (pair.split(": ", 1) for pair in pairs)}
        status = int(first.split()[1])
        if status != 101:
            length = int(told.get("content-length", "0"))
            while len(rest) < length:
                rest += sock.recv(65536)
            sock.close()
            raise Refusal(status, told, rest)
        return cls(sock, rest, told)

    # Sending

    def send(self, frame: object) -> None:
        """One text message."""
        self.raw(self._wire.send(TextMessage(data=json.dumps(frame))))

    def send_both(self, *frames: object) -> None:
        """Text messages that arrive at once."""
        self.raw(b"".join(self._wire.send(TextMessage(data=json.dumps(one))) for one in frames))

    def send_bytes(self, message: bytes) -> None:
        """One binary message."""
        self.raw(self._wire.send(BytesMessage(data=message)))

    def send_pieces(self, *pieces: str) -> None:
        """One text message in fragments."""
        for number, piece in enumerate(pieces, 1):
            last = number == len(pieces)
            self.raw(self._wire.send(TextMessage(data=piece, message_finished=last)))

    def ping(self) -> None:
        """A ping of the client's own."""
        self.raw(self._wire.send(Ping(payload=b"here")))

    def raw(self, sent: bytes) -> None:
        """Bytes as they are."""
        self.sock.sendall(sent)

    def ask(self, **frame: Any) -> dict[str, Any]:
        """One frame with an id of its own, and its answer; pushes that came before are kept."""
        frame_id = next(_numbers)
        self.send({"id": frame_id} | frame)
        return self.answer(frame_id)

    # Receiving

    def answer(self, frame_id: object) -> dict[str, Any]:
        """The answer to a frame."""
        return self.wait(lambda message: message.get("id") == frame_id and "push" not in message)

    def pushed(self, member: str) -> Any:
        """That member of the next push that has it; the others of that push stay."""
        message = self.wait(lambda message: member in message.get("push", {}))
        found = message["push"].pop(member)
        if message["push"]:
            self._messages.insert(0, message)
        return found

    def wait(self, wanted: Any) -> dict[str, Any]:
        """The first message that is wanted; others stay."""
        ends_s = time.monotonic() + PATIENCE_S
        while True:
            for message in self._messages:
                if wanted(message):
                    self._messages.remove(message)
                    return message
            assert self.closed is None, f"closed with {self.closed}"
            assert time.monotonic() < ends_s, f"it never came; what came: {self._messages}"
            self._read(ends_s)

    def waiting(self) -> list[dict[str, Any]]:
        """What has come and nobody asked for; takes in what is there now."""
        while self._there(0.0):
            self._read(time.monotonic() + 1)
        return list(self._messages)

    def quiet(self, for_s: float) -> bool:
        """Whether nothing but pings comes for so long."""
        ends_s = time.monotonic() + for_s
        while (left_s := ends_s - time.monotonic()) > 0 and self.closed is None:
            if self._there(left_s):
                self._read(ends_s)
        return not self._messages

    def ended(self) -> tuple[int, str]:
        """The code and reason it is closed with, waited for; 1006: it was cut."""
        ends_s = time.monotonic() + PATIENCE_S
        while self.closed is None:
            assert time.monotonic() < ends_s, "it was never closed"
            self._read(ends_s)
        return self.closed

    def close(self) -> None:
        """Go, without a word."""
        self.sock.close()

    def bye(self) -> tuple[int, str]:
        """Close properly."""
        self.raw(self._wire.send(CloseConnection(code=1000)))
        return self.ended()

    def reset(self) -> None:
        """Go away with a reset, as a killed process does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def _there(self, for_s: float) -> bool:
        self.sock.settimeout(max(for_s, 0.001))
        try:
            return self.sock.recv(1, socket.MSG_PEEK) != b"" or self.closed is None
        except TimeoutError:
            return False
        except OSError:
            return self.closed is None
        finally:
            self.sock.settimeout(PATIENCE_S)

    def _read(self, ends_s: float) -> None:
        self.sock.settimeout(max(0.01, ends_s - time.monotonic()))
        try:
            received = self.sock.recv(1 << 20)
        except TimeoutError:
            return
        except OSError:
            received = b""
        finally:
            self.sock.settimeout(PATIENCE_S)
        if not received:
            self.closed = self.closed or (1006, "cut")
            return
        self._take(received)

    def _take(self, received: bytes) -> None:
        self._wire.receive_data(received)
        for event in self._wire.events():
            if isinstance(event, TextMessage):
                self._text += event.data
                if event.message_finished:
                    self._messages.append(json.loads(self._text))
                    self._text = ""
            elif isinstance(event, Ping):
                self.pings += 1
                if self.answers_pings:
                    self.raw(self._wire.send(event.response()))
            elif isinstance(event, Pong):
                self._messages.append({"pong": bytes(event.payload).decode()})
            elif isinstance(event, CloseConnection):
                self.closed = (int(event.code), event.reason or "")


def address_of(daemon: Daemon) -> tuple[str, int]:
    """Where the daemon listens."""
    found = urlsplit(daemon.url)
    return str(found.hostname), int(found.port or 0)


def path_of(worker_id: str) -> str:
    """The path of a worker's channel."""
    return f"/v1/workers/{worker_id}/channel"


def channel(edge: Edge, **headers: str) -> Wire:
    """The channel of a worker, by its own key."""
    bearer = {"Authorization": f"Bearer {edge.key}"} | headers
    return Wire.open(address_of(edge.daemon), path_of(edge.id), **bearer)


def frame_of(payload: bytes, *, opcode: int = 1, fin: bool = True, rsv: int = 0) -> bytes:
    """One masked frame as any client could send it, also one that no library would."""
    mask = os.urandom(4)
    first = (0x80 if fin else 0) | (rsv << 4) | opcode
    if len(payload) < 126:
        head = bytes([first, 0x80 | len(payload)])
    elif len(payload) < 65536:
        head = bytes([first, 0x80 | 126]) + struct.pack("!H", len(payload))
    else:
        head = bytes([first, 0x80 | 127]) + struct.pack("!Q", len(payload))
    body = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
    return head + mask + body


def done(claim: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The item that completes a claim."""
    fence = {name: claim[name] for name in ("claim_id", "worker_id", "fencing_token")}
    return fence | {"workload_id": claim["workload_id"], "start": True} | more
