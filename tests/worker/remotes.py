"""Somebody's address as a remote handler: a real server on this machine, a deed for each path."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

FLOOD_BYTES = 100 * 1024 * 1024
PATIENCE_S = 20.0


class Heard(NamedTuple):
    """A request: what was asked, with which headers, and the body as JSON."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Remote:
    """What the server heard, and how many of its answers are still under way."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.heard: list[Heard] = []
        self.sent_bytes = 0
        self.over = threading.Event()

    def asked(self, method: str) -> list[Heard]:
        """The requests of a method."""
        return [one for one in self.heard if one.method == method]

    def until(self, method: str) -> Heard:
        """Wait for a request of a method."""
        ends = time.monotonic() + PATIENCE_S
        while not (found := self.asked(method)):
            assert time.monotonic() < ends, f"never: {method}"
            time.sleep(0.01)
        return found[0]


@contextmanager
def serving() -> Iterator[Remote]:
    """A remote handler, for as long as the story needs it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Deeds)
    server.daemon_threads = True
    remote = server.remote = Remote(server.server_port)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield remote
    finally:
        remote.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Deeds(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    @property
    def remote(self) -> Remote:
        return self.server.remote  # type: ignore[attr-defined,no-any-return]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.remote.heard.append(Heard("POST", self.path, dict(self.headers), body))
        getattr(self, self.path.strip("/").partition("/")[0])(body)

    def do_DELETE(self) -> None:
        self.remote.heard.append(Heard("DELETE", self.path, dict(self.headers), None))
        if self.path.startswith("/deaf"):
            self.remote.over.wait(PATIENCE_S)
        if self.path.startswith("/talkative"):
            self.pour(200)
            return
        self.answer(204)

    def do_GET(self) -> None:
        """Nobody asks so, unless a redirect was followed."""
        self.remote.heard.append(Heard("GET", self.path, dict(self.headers), None))
        self.answer(200, b'"followed"')

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    # -- deeds

    def echo(self, body: Any) -> None:
        self.answer(200, json.dumps(body["claim"]["input"]).encode())

    def said(self, body: Any) -> None:
        """Whatever the input says: status, text, headers."""
        told = body["claim"]["input"]
        self.answer(told["status"], told.get("text", "").encode(), **told.get("headers", {}))

    def sleep(self, _body: Any) -> None:
        self.remote.over.wait(PATIENCE_S)
        self.close_connection = True

    deaf = talkative = sleep

    def drop(self, _body: Any) -> None:
        self.close_connection = True

    def flood(self, body: Any) -> None:
        self.pour(body["claim"]["input"].get("status", 200))

    def pour(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(FLOOD_BYTES))
        self.end_headers()
        piece = b"x" * 65_536
        while self.remote.sent_bytes < FLOOD_BYTES:
            try:
                self.remote.sent_bytes += self.wfile.write(piece)
            except OSError:
                break
        self.close_connection = True
