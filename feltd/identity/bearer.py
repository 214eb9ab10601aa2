"""The text of a key or session: `felt_<kind>_<id>_<secret><crc>`, 69 characters of one word.

The prefix lets scanners find a leaked one, the CRC32 throws away what was never a key before any
hash is made, and the id finds the row. Only the SHA-256 of the whole text is ever stored. Nothing
here makes randomness: the 55 characters come in from the handler.
"""

import hashlib
import zlib
from typing import Literal

#: service, agent, human session, worker.
Kind = Literal["s", "a", "h", "w"]
#: The kind of a session, which is no key: see identity/sessions.py.
SESSION: Literal["h"] = "h"

#: Whom a key of a subject type belongs to.
KINDS: dict[str, Kind] = {
    "human": "s",
    "user": "s",
    "service": "s",
    "api_key": "s",
    "agent": "a",
    "worker": "w",
}

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_CHARS = 12
#: 62^43 > 2^256: 256 random bits.
SECRET_CHARS = 43
CRC_CHARS = 6
FRESH_CHARS = ID_CHARS + SECRET_CHARS
BEARER_CHARS = len("felt_s_") + ID_CHARS + 1 + SECRET_CHARS + CRC_CHARS

_PAIRS = tuple(a + b for a in DIGITS for b in DIGITS)
_PAIR_OF = {pair.encode(): number for number, pair in enumerate(_PAIRS)}
_BASE = len(_PAIRS)


def bearer(kind: Kind, fresh: str) -> str:
    """The whole text of a new key; `fresh` is 55 random characters of 0-9A-Za-z."""
    if len(fresh) != FRESH_CHARS or not (fresh.isascii() and fresh.isalnum()):
        raise ValueError("a key is made of 55 characters of 0-9A-Za-z")
    body = f"felt_{kind}_{fresh[:ID_CHARS]}_{fresh[ID_CHARS:]}"
    return body + checksum(body.encode())


def parse(text: str) -> str | None:
    """The key id in a text that has the shape and checksum of a key, else None.

    Proves nothing: anybody can make such a text.
    """
    if len(text) != BEARER_CHARS or not text.isascii() or not text.startswith("felt_"):
        return None
    if text[5] not in "sahw" or text[6] != "_" or text[19] != "_":
        return None
    if not (text[7:19].isalnum() and text[20:].isalnum()):
        return None
    return text[7:19] if matches(text.encode()) else None


def matches(text: bytes) -> bool:
    """Whether a text of 69 bytes ends with the checksum of those before."""
    try:
        high, middle, low = _PAIR_OF[text[63:65]], _PAIR_OF[text[65:67]], _PAIR_OF[text[67:]]
    except KeyError:
        return False
    return (high * _BASE + middle) * _BASE + low == zlib.crc32(text[:63])


def checksum(body: bytes) -> str:
    """CRC32 as six characters."""
    rest, low = divmod(zlib.crc32(body), _BASE)
    high, middle = divmod(rest, _BASE)
    return _PAIRS[high] + _PAIRS[middle] + _PAIRS[low]


def digest(text: str) -> str:
    """What is stored of a key: `sha256:` and 64 hex digits over the whole text."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
