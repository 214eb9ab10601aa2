"""One call over HTTP, repeated until it is answered: the only file of the SDK that sends bytes.

Every mutation of feltd may be repeated with the same body, so a lost reply, a full daemon and a
restart all end in one way: the same bytes again, later. Nothing here knows what a call means.
"""

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx2
import msgspec

from feltd.worker import refusal
from feltd.worker.refusal import Refusal, Unreachable

#: An answer takes at most the request deadline (10 s), 5 s of a started operation, and the way.
ANSWER_S = 20.0
CONNECT_S = 5.0
#: Below the daemon's keep-alive, so that no connection dies under a request of ours.
KEEP_ALIVE_S = 60.0
#: What a call that wants text, no JSON, accepts.
TEXT = "text/plain"
#: First pause after silence; doubled each time up to PAUSE_MAX_S, and drawn evenly below that.
PAUSE_S = 0.1
PAUSE_MAX_S = 5.0
#: How long a call of a person or of a script is repeated before silence is reported.
PATIENCE_MS = 30_000


class Call(NamedTuple):
    """One request as it is sent, and sent again: method, path, body, query, bearer, headers.

    `wait_ms` is the long poll inside it; `answer_s` how long one try waits beyond that;
    `patience_ms` how long it is repeated, None for ever.
    """

    method: str
    path: str
    body: Any = None
    query: Mapping[str, Any] | None = None
    bearer: str | None = None
    headers: Mapping[str, str] | None = None
    wait_ms: int = 0
    answer_s: float = ANSWER_S
    patience_ms: int | None = PATIENCE_MS


def pause_s(tries: int, retry_after_s: float | None, chance: float) -> float:
    """Seconds before the next try: at least Retry-After, spread so that clients do not march.

    `tries` counts from 1; `chance` is an even draw from 0 to 1.
    """
    if retry_after_s is not None:
        return retry_after_s + chance * max(retry_after_s, 1.0)
    ceiling = min(PAUSE_MAX_S, PAUSE_S * 2.0 ** min(tries - 1, 16))
    return ceiling * (0.5 + chance / 2)


class Transport:
    """A pool of connections to one daemon, by address or by its local socket."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        socket: str | None = None,
        inside: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.key = _bearer(key)
        limits = httpx2.Limits(
            max_connections=256, max_keepalive_connections=64, keepalive_expiry=KEEP_ALIVE_S
        )
        way = inside
        if way is None and socket is not None:
            way = httpx2.AsyncHTTPTransport(uds=socket, limits=limits)
        try:
            self._http = httpx2.AsyncClient(
                base_url=self.url,
                transport=way,
                limits=limits,
                timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S),
                headers={"Accept": "application/json", "Feltd-Protocol": "1"},
            )
            target = httpx2.URL(self.url)
        except httpx2.InvalidURL as error:
            raise ValueError(f"{shown(url)!r} is no URL: {error}") from error
        if target.scheme not in ("http", "https") or not target.host:
            raise ValueError(f"{shown(url)!r} is no URL of a daemon: give http://host:port")

    async def close(self) -> None:
        """Close every connection; calls under way end as unreachable."""
        await self._http.aclose()

    async def send(self, call: Call) -> Any:
        """The decoded answer: None for 204, as it came for a call that accepts TEXT.

        Repeats until answered, or until patience ends. Raises Refusal where the daemon says
        anything else than "repeat", or still says it when patience ends; Unreachable when nothing
        was heard by then.
        """
        content = None if call.body is None else msgspec.json.encode(call.body)
        headers = dict(call.headers or {})
        bearer = _bearer(call.bearer) or self.key
        if bearer:
            headers["Authorization"] = f"Bearer {bearer}"
        if content is not None:
            headers["Content-Type"] = "application/json"
        ends = None if call.patience_ms is None else time.monotonic() + call.patience_ms / 1000
        tries = 0
        while True:
            tries += 1
            trouble: Refusal | Unreachable
            try:
                return await self._once(call, content, headers)
            except Refusal as refused:
                if refused.next != "repeat":
                    raise
                trouble = refused
            except Unreachable as silence:
                trouble = silence
            after_s = trouble.retry_after_s if isinstance(trouble, Refusal) else None
            pause = pause_s(tries, after_s, random.random())
            if ends is not None and time.monotonic() + pause >= ends:
                raise trouble
            await asyncio.sleep(pause)

    async def _once(self, call: Call, content: bytes | None, headers: dict[str, str]) -> Any:
        query = {name: text(value) for name, value in (call.query or {}).items() if value != ""}
        timeout = httpx2.Timeout(
            call.answer_s + call.wait_ms / 1000, connect=min(CONNECT_S, call.answer_s)
        )
        try:
            answer = await self._http.request(
                call.method,
                call.path,
                content=content,
                headers=headers,
                params={name: value for name, value in query.items() if value is not None} or None,
                timeout=timeout,
            )
        except (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError) as error:
            raise ValueError(f"the request cannot be sent: {error}") from error
        except httpx2.RequestError as error:
            said = str(error) or type(error).__name__
            raise Unreachable(f"no answer from {shown(self.url)}: {said}") from error
        if answer.is_success:
            return answer.text if headers.get("Accept") == TEXT else _decoded(answer)
        raise refusal.read(answer.status_code, answer.content, answer.headers.get("Retry-After"))


def shown(url: str) -> str:
    """An address without the name and password that somebody may have put into it."""
    scheme, slashes, rest = url.partition("//")
    return scheme + slashes + rest.rpartition("@")[2] if slashes else url.rpartition("@")[2]


def text(value: Any) -> str | list[str] | None:
    """A query parameter as it is written in a URL; None leaves it out."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return [str(one) for one in value]
    return str(value)


def _decoded(answer: httpx2.Response) -> Any:
    if not answer.content:
        return None
    try:
        return msgspec.json.decode(answer.content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(
            f"HTTP_{answer.status_code}",
            "the answer is not JSON: is this address a feltd daemon?",
            status=answer.status_code,
            next="ask_operator",
        ) from error


def _bearer(key: str | None) -> str | None:
    """A key fit for a header: one line of printable ASCII, or none at all."""
    if key is None or not key.strip():
        return None
    key = key.strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("the key is not one line of printable ASCII")
    return key
