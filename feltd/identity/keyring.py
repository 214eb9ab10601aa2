"""The signing keys of grants, and tokens made and opened with them.

A token is `kid.payload.mac`: it proves that this daemon gave the grant it names, nothing more;
what the grant allows is read from its row. One key is active and signs, others may still verify.
The file's text is read and written here, the file itself by store/private.py.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from feltd.model.base import Subject

FORMAT: Literal["feltd-keyring/1"] = "feltd-keyring/1"
#: Keeps a MAC made for a grant from passing as anything else made with the same key.
DOMAIN = b"feltd.grant.v1\0"
CURSORS = b"feltd.cursors.v1\0"
SECRET_BYTES = 32
#: Far above any token; longer text is not even decoded.
TOKEN_CHARS_MAX = 4_096

_UNKNOWN_KID = b"\0" * SECRET_BYTES


class SigningKey(Struct, frozen=True, forbid_unknown_fields=True):
    """One key of the file. `retired` neither signs nor verifies."""

    kid: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_\-]{1,32}\Z")]
    status: Literal["active", "verify", "retired"]
    secret: Annotated[str, Meta(max_length=256)]


class KeyringFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The file, as JSON."""

    format: Literal["feltd-keyring/1"]
    keys: Annotated[tuple[SigningKey, ...], Meta(min_length=1, max_length=64)]


class Signed(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a token says: which grant, for whom, where."""

    contract_version: Literal[1]
    id: str
    subject: Subject
    tenant_id: str
    application_id: str


class Keyring:
    """The keys in memory. `kid` is the active one's. Printing it shows no secret."""

    def __init__(self, kid: str, secrets: dict[str, bytes]) -> None:
        self.kid = kid
        self._secrets = secrets

    def __repr__(self) -> str:
        return f"Keyring(kid={self.kid!r}, keys={len(self._secrets)})"

    @property
    def cursor_secret(self) -> bytes:
        """32 bytes for the MAC of list cursors; they outlive a restart, not a new active key."""
        return hmac.digest(self._secrets[self.kid], CURSORS, hashlib.sha256)

    def seal(self, signed: Signed) -> str:
        """The token of a grant, by the active key."""
        payload = _canonical(signed)
        return ".".join((self.kid, _text(payload), _text(self._mac(self.kid, payload))))

    def open(self, token: str) -> Signed | None:
        """What a token says, None unless it is exactly as this keyring made it.

        The MAC is compared before anything of the content is read; an unknown kid costs the same.
        """
        parts = token.split(".") if len(token) <= TOKEN_CHARS_MAX else []
        if len(parts) != 3:
            return None
        kid, payload, mac = parts[0], _bytes(parts[1]), _bytes(parts[2])
        if payload is None or mac is None:
            return None
        if not hmac.compare_digest(self._mac(kid, payload), mac) or kid not in self._secrets:
            return None
        try:
            signed = msgspec.json.decode(payload, type=Signed)
        except msgspec.MsgspecError:
            return None
        return signed if _canonical(signed) == payload else None

    def _mac(self, kid: str, payload: bytes) -> bytes:
        secret = self._secrets.get(kid, _UNKNOWN_KID)
        return hmac.digest(secret, DOMAIN + kid.encode() + b"\0" + payload, hashlib.sha256)


def parse(text: bytes) -> Keyring:
    """The keyring a file holds. ValueError, in a sentence without any secret, when it is none."""
    try:
        file = msgspec.json.decode(text, type=KeyringFile)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise ValueError("is not a keyring of feltd") from None
    secrets: dict[str, bytes] = {}
    active = [key.kid for key in file.keys if key.status == "active"]
    for key in file.keys:
        secret = _bytes(key.secret)
        if secret is None or len(secret) < SECRET_BYTES:
            raise ValueError(f"holds a broken secret for key {key.kid}")
        if key.kid in secrets:
            raise ValueError(f"names key {key.kid} twice")
        secrets[key.kid] = secret
    if len(active) != 1:
        raise ValueError(f"has {len(active)} active keys where it must have one")
    retired = {key.kid for key in file.keys if key.status == "retired"}
    return Keyring(active[0], {kid: key for kid, key in secrets.items() if kid not in retired})


def render(kid: str, secret: bytes) -> bytes:
    """The text of a new file with one active key; `secret` is 32 random bytes."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a signing key is {SECRET_BYTES} bytes")
    file = KeyringFile(FORMAT, (SigningKey(kid, "active", _text(secret)),))
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def _canonical(signed: Signed) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(signed), order="sorted")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes | None:
    try:
        raw = base64.b64decode(
            text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, ValueError):
        return None
    # Unused bits at the end would let two texts say the same.
    return raw if _text(raw) == text else None
