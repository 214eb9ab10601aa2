"""The remote runtime: an attempt is one call of somebody's address, and the answer is its output.

It bounds what it can, the time and the answer; what the other machine may use is not known here,
so that every policy about that is refused before a word is sent. No redirect is followed, and
neither an address's path nor the token for it is ever logged.
"""

import asyncio
import contextlib
import ipaddress
import logging
import ssl
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import msgspec

from feltd.model.policy import RuntimePolicy
from feltd.model.secret_text import covered
from feltd.worker.failures import OUTPUT_BYTES_MAX, Permanent, Transient
from feltd.worker.runtimes import limits
from feltd.worker.runtimes.runtime import Claim, Finished, Unenforceable

log = logging.getLogger("feltd.worker")

URL_CHARACTERS_MAX = 2_048
QUOTED_CHARACTERS_MAX = 2_000
#: Answers after which trying again later may help.
PASSING = frozenset({408, 425, 429})
WHY = "a remote handler runs on a machine that is not this worker's"
#: What another machine would have to keep to, with the value that asks for nothing.
BEYOND = RuntimePolicy()
MEMBERS_BEYOND = (
    "max_cpu_millis", "max_memory_bytes", "network_policy", "filesystem_policy", "secret_policy",
)  # fmt: skip


class RemoteRuntime:
    """POSTs each claim to `url`; the body of a 2xx answer is the output.

    `token` goes along as a bearer. Raises ValueError for an address that is neither https nor
    loopback http, and for one that carries credentials, a query or a fragment.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = _checked(url)
        self.host = urlsplit(url).netloc
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        self._token = _one_line(token)
        if self._token:
            self._headers["Authorization"] = f"Bearer {self._token}"
        self._trust = ssl.create_default_context() if url.startswith("https:") else False
        self._calls: dict[str, _Call] = {}

    def require(self, policy: RuntimePolicy) -> None:
        """Raise Unenforceable unless the policy bounds time and artifacts alone."""
        for member in MEMBERS_BEYOND:
            value = getattr(policy, member)
            if value != getattr(BEYOND, member):
                raise Unenforceable(member, value, WHY)

    async def start(self, claim: Claim, policy: RuntimePolicy) -> None:
        """Send nothing yet; there is no checkpoint. Raises Unenforceable."""
        self.require(policy)
        self._calls[claim["claim_id"]] = _Call(policy)

    async def execute(self, claim: Claim, given: bytes) -> Finished:
        """Call, and wait for the answer; one that is called off is told by a DELETE.

        Raises Transient where no answer came or it says that another time may help, Permanent for
        any other that is no 2xx. It is sent once: an attempt more is the daemon's to decide.
        """
        call = self._calls[claim["claim_id"]]
        if call.why is not None:
            return call.finished()
        call.sent = True
        calling = asyncio.create_task(self._post(claim, call.policy, given))
        over = asyncio.create_task(call.told.wait())
        limit_s = call.policy.max_duration_ms / 1_000
        first = asyncio.FIRST_COMPLETED
        try:
            await asyncio.wait([calling, over], timeout=limit_s, return_when=first)
            if not calling.done():
                call.end("duration")
            elif (finished := calling.result()).end == "exited":
                return finished
            else:
                call.end(finished.end)
            await self._hang_up(claim, calling)
            return call.finished()
        except asyncio.CancelledError:
            await asyncio.shield(self._hang_up(claim, calling))
            raise
        finally:
            over.cancel()
            call.over.set()

    def forget(self, claim: Claim) -> None:
        """Nothing of it is kept."""
        self._calls.pop(claim["claim_id"], None)

    async def cancel(self, claim: Claim) -> None:
        """Close the call and DELETE it; returns when that was answered, or DELETE_S later."""
        call = self._calls.get(claim["claim_id"])
        if call is not None:
            call.end("told")
            if call.sent:
                await call.over.wait()

    async def timeout(self, claim: Claim) -> None:
        """Close the call, now, and DELETE it."""
        if (call := self._calls.get(claim["claim_id"])) is not None:
            call.end("duration")

    def _client(self) -> httpx2.AsyncClient:
        # Neither a proxy nor a .netrc of the environment: who gets the claim is said by the URL.
        timeout = httpx2.Timeout(None, connect=limits.CONNECT_S)
        return httpx2.AsyncClient(
            verify=self._trust, trust_env=False, follow_redirects=False, timeout=timeout
        )

    async def _post(self, claim: Claim, policy: RuntimePolicy, given: bytes) -> Finished:
        told = {**claim, "input": msgspec.Raw(given)}
        content = msgspec.json.encode({"claim": told, "runtime_policy": policy})
        headers = self._headers | {"Content-Type": "application/json"}
        headers["Idempotency-Key"] = str(claim.get("attempt_id") or claim["claim_id"])
        if isinstance(trace := claim.get("traceparent"), str):
            headers["traceparent"] = trace
        try:
            async with (
                self._client() as client,
                client.stream("POST", self.url, content=content, headers=headers) as answer,
            ):
                return await self._read(answer)
        except httpx2.RequestError as error:
            said = str(error) or type(error).__name__
            raise Transient(f"no answer from the remote handler at {self.host}: {said}") from None

    async def _read(self, answer: httpx2.Response) -> Finished:
        status = answer.status_code
        if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Permanent(f"the remote handler's answer {status} is compressed: it may not be")
        most = OUTPUT_BYTES_MAX if answer.is_success else limits.REFUSAL_BYTES_MAX
        kept = bytearray()
        async for chunk in answer.aiter_raw(65_536):
            kept += chunk[: most + 1 - len(kept)]
            if len(kept) > most:
                break
        if not answer.is_success:
            raise self._failure(answer, bytes(kept[:most]))
        if len(kept) > most:
            return Finished("output", 0, bytes(kept), b"")
        return Finished("exited", 0, bytes(kept) or b"null", b"")

    def _failure(self, answer: httpx2.Response, content: bytes) -> Permanent | Transient:
        status = answer.status_code
        if 300 <= status < 400:
            return Permanent(f"the remote handler answered {status}: redirects are not followed")
        said = self._quoted(content)
        message = f"the remote handler answered {status}" + (f": {said}" if said else "")
        if status in PASSING or status >= 500:
            after = answer.headers.get("Retry-After", "")
            after_ms = int(after) * 1_000 if after.isdecimal() and len(after) < 8 else None
            return Transient(message, after_ms)
        return Permanent(message)

    def _quoted(self, content: bytes) -> str:
        """What a refusal says, without what is secret in it."""
        text = content.decode(errors="replace")
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            problem = msgspec.json.decode(content)
            if isinstance(problem, dict):
                text = str(problem.get("detail") or problem.get("message") or text)
        if self._token:
            text = text.replace(self._token, "[token]")
        return covered(" ".join(text.split()))[:QUOTED_CHARACTERS_MAX]

    async def _hang_up(self, claim: Claim, calling: "asyncio.Task[Any]") -> None:
        """Close the call, and say that its claim has ended; nobody need listen."""
        calling.cancel()
        await asyncio.wait([calling])
        if not calling.cancelled():
            calling.exception()  # it comes too late to be heard
        address = f"{self.url.rstrip('/')}/{quote(str(claim['claim_id']), safe='')}"
        try:
            async with (
                asyncio.timeout(limits.DELETE_S),
                self._client() as client,
                client.stream("DELETE", address, headers=self._headers),
            ):
                pass  # What it answers is not read: nobody needs it, and it may be without end.
        except (TimeoutError, httpx2.RequestError) as error:
            log.warning(
                "the remote handler was not told of the end of %s: %s",
                claim["claim_id"], type(error).__name__,
            )  # fmt: skip


class _Call:
    """One attempt: whether it was sent, and why it shall end."""

    def __init__(self, policy: RuntimePolicy) -> None:
        self.policy = policy
        self.sent = False
        self.why: str | None = None
        self.told = asyncio.Event()
        self.over = asyncio.Event()

    def end(self, why: str) -> None:
        self.why = self.why or why
        self.told.set()

    def finished(self) -> Finished:
        return Finished(self.why or "told", 0, b"", b"")


def _checked(url: str) -> str:
    """The address, as far as claims may be sent there; no message repeats what may be secret."""
    if len(url) > URL_CHARACTERS_MAX or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"a remote address is up to {URL_CHARACTERS_MAX} printable characters")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError("the remote address is no URL") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("a remote address begins with https://, or http:// on this machine")
    if "@" in parts.netloc:
        raise ValueError("a remote address carries no credentials: set FELTD_REMOTE_TOKEN")
    if "?" in url or "#" in url:
        raise ValueError(
            "a remote address has no query and no fragment; its secret is FELTD_REMOTE_TOKEN"
        )
    if parts.scheme == "http" and not _is_loopback(host):
        raise ValueError("a remote address that is not on this machine begins with https://")
    return url


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _one_line(token: str | None) -> str | None:
    """A token fit for a header; the message does not repeat it."""
    if token is None or not token.strip():
        return None
    token = token.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("FELTD_REMOTE_TOKEN is not one line of printable ASCII")
    return token
