"""What every room of verbs stands on: one call of the wire, and lists page by page.

Nothing here knows a noun. Bodies and answers are plain JSON values: a member this version does not
know passes through.
"""

import os
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx2

from feltd.worker.transport import PATIENCE_MS, Call, Transport

Json = dict[str, Any]

#: Far above any key.
KEY_FILE_CHARS_MAX = 4_096


class Calls:
    """The daemon at `url` (else FELTD_URL) for the bearer `key` (else FELTD_KEY).

    Without both keys: what the file of FELTD_KEY_FILE holds.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        socket: str | None = None,
        tenant: str | None = None,
        patience_ms: int | None = PATIENCE_MS,
        inside: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        local = socket is not None or inside is not None
        address = url or ("http://localhost" if local else os.environ.get("FELTD_URL"))
        if not address:
            raise ValueError("no address: give url, or set FELTD_URL")
        bearer = key if key is not None or local else _key_of_environment()
        self.transport = Transport(address, bearer, socket=socket, inside=inside)
        self.patience_ms = patience_ms
        self._headers = {"X-Feltd-Tenant": tenant} if tenant else {}

    async def close(self) -> None:
        """Give the connections back. Safe to repeat."""
        await self.transport.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        wait_ms: int = 0,
        keyed: bool = False,
        **how: Any,
    ) -> Any:
        """Any call of the wire; the methods below are this one with a path.

        `keyed` sends an Idempotency-Key, for POSTs whose body has no key of its own. `how` takes
        `bearer` (another key than the client's), `answer_s` and `patience_ms`.
        """
        sent = {**self._headers, **(headers or {})}
        if keyed:
            sent["Idempotency-Key"] = secrets.token_hex(16)
        how.setdefault("patience_ms", self.patience_ms)
        call = Call(method, path, body, query=query, headers=sent, wait_ms=wait_ms, **how)
        return await self.transport.send(call)

    async def pages(self, path: str, **query: Any) -> AsyncIterator[Json]:
        """Every item of a list, page by page, in the list's order."""
        cursor: str | None = None
        while True:
            page = await self.call("GET", path, query={**query, "cursor": cursor})
            for item in page["items"]:
                yield item
            cursor = page.get("next_cursor")
            if not cursor:
                return

    async def _list(self, path: str, most: int | None, **query: Any) -> list[Json]:
        found: list[Json] = []
        query.setdefault("limit", min(most or 500, 500))
        async for item in self.pages(path, **query):
            found.append(item)
            if most is not None and len(found) >= most:
                break
        return found


def path_of(*segments: str) -> str:
    """The path of an object and its verb; each segment may hold any character.

    Raises ValueError for one that URLs resolve away.
    """
    for segment in segments:
        if segment in ("", ".", ".."):
            raise ValueError(f"{segment!r} is no name of anything")
    return "/v1/" + "/".join(quote(segment, safe="") for segment in segments)


def object_of(answer: Any) -> Json:
    """The answer of a call that answers with an object; an empty one where it has no body."""
    return answer if isinstance(answer, dict) else {}


def _key_of_environment() -> str | None:
    """FELTD_KEY, else what the file of FELTD_KEY_FILE holds. ValueError where it cannot be read."""
    key, path = os.environ.get("FELTD_KEY"), os.environ.get("FELTD_KEY_FILE")
    if key or not path:
        return key
    try:
        with open(path, encoding="ascii") as file:
            return file.read(KEY_FILE_CHARS_MAX).strip()
    except OSError as error:
        raise ValueError(f"FELTD_KEY_FILE {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"FELTD_KEY_FILE {path} holds no key") from None
