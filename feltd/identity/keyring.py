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
#: Keys a file holds: a rotation a month for five years.
KEYS_MAX = 64
#: Far above any token; longer text is not even decoded.
TOKEN_CHARS_MAX = 4_096

Status = Literal["active", "verify", "retired"]

_UNKNOWN_KID = b"\0" * SECRET_BYTES


class SigningKey(Struct, frozen=True, forbid_unknown_fields=True):
    """One key of the file. `retired` neither signs nor verifies."""

    kid: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_\-]{1,32}\Z")]
    status: Status
    secret: Annotated[str, Meta(max_length=256)]


class KeyringFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The file, as JSON."""

    format: Literal["feltd-keyring/1"]
    keys: Annotated[tuple[SigningKey, ...], Meta(min_length=1, max_length=KEYS_MAX)]


class Signed(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a token says: which grant, for whom, where."""

    contract_version: Literal[1]
    id: str
    subject: Subject
    tenant_id: str
    application_id: str


class Keyring:
    """The keys in memory. `kid` is the active one's. Printing it shows no secret.

    `retired` are those that neither sign nor verify any more.
    """

    def __init__(
        self, kid: str, secrets: dict[str, bytes], retired: frozenset[str] = frozenset()
    ) -> None:
        self.kid = kid
        self.retired = retired
        self._secrets = secrets

    def follow(self, other: "Keyring") -> None:
        """Become what the file says now: everybody who holds this keyring signs by it at once."""
        self.kid, self.retired, self._secrets = other.kid, other.retired, other._secrets

    def __repr__(self) -> str:
        return f"Keyring(kid={self.kid!r}, keys={len(self._secrets)})"

    @property
    def kids(self) -> tuple[str, ...]:
        """The keys whose tokens are taken, the active one among them."""
        return tuple(self._secrets)

    @property
    def cursor_secret(self) -> bytes:
        """32 bytes for the MAC of list cursors; they outlive a restart, not a new active key."""
        return hmac.digest(self._secrets[self.kid], CURSORS, hashlib.sha256)

    def seal(self, signed: Signed) -> str:
        """The token of a grant, by the active key."""
        payload = _canonical(signed)
        return ".".join((self.kid, _text(payload), _text(self._mac(self.kid, payload))))

    def signer(self, token: str) -> str:
        """The kid a token names; only to be asked of one that `open` took."""
        return token.partition(".")[0]

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
    file = _file(text)
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
    usable = {kid: key for kid, key in secrets.items() if kid not in retired}
    return Keyring(active[0], usable, frozenset(retired))


def standings(text: bytes) -> list[tuple[str, Status]]:
    """The kids of a file in its order, the newest first, and how each stands."""
    parse(text)
    return [(key.kid, key.status) for key in _file(text).keys]


def render(kid: str, secret: bytes) -> bytes:
    """The text of a new file with one active key; `secret` is 32 random bytes."""
    return _render((_made(kid, secret),))


def rotated(text: bytes, kid: str, secret: bytes) -> bytes:
    """The file with a new active key; the one before goes on verifying what it signed.

    ValueError when the file is none, knows the kid, or is full.
    """
    parse(text)
    keys = _file(text).keys
    if any(key.kid == kid for key in keys):
        raise ValueError(f"knows key {kid} already")
    if len(keys) >= KEYS_MAX:
        raise ValueError(f"holds {KEYS_MAX} keys: take retired ones out of the file")
    before = (
        msgspec.structs.replace(key, status="verify") if key.status == "active" else key
        for key in keys
    )
    return _render((_made(kid, secret), *before))


def retired(text: bytes, kid: str) -> bytes:
    """The file with this key retired: it neither signs nor verifies, for ever.

    ValueError when the file is none, does not hold the key, or the key is the active one.
    """
    parse(text)
    keys = _file(text).keys
    found = [key for key in keys if key.kid == kid]
    if not found:
        raise ValueError(f"holds no key {kid}")
    if found[0].status == "active":
        raise ValueError(f"signs with key {kid}: rotate first, then retire it")
    return _render(
        tuple(
            msgspec.structs.replace(key, status="retired") if key.kid == kid else key
            for key in keys
        )
    )


def _file(text: bytes) -> KeyringFile:
    try:
        return msgspec.json.decode(text, type=KeyringFile)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise ValueError("is not a keyring of feltd") from None


def _made(kid: str, secret: bytes) -> SigningKey:
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a signing key is {SECRET_BYTES} bytes")
    return SigningKey(kid, "active", _text(secret))


def _render(keys: tuple[SigningKey, ...]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(KeyringFile(FORMAT, keys)), indent=2) + b"\n"


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
