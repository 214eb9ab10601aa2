"""TLS of the listeners: 1.2 or later, HTTP/1.1 alone on offer, renewed without a restart.

The files are read at the start and when the daemon is told to, never in between: a certificate
half written by whoever renews it is never served. A handshake begins once its connection was let
in and counted, so that strangers who never finish one are bounded like any; it knows no socket.
"""

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from pathlib import Path
from typing import Any

#: What asyncio sets aside for each connection to read into; it would be 256 KiB, used or not.
READ_BYTES = 64 * 1024


class TlsProblem(Exception):
    """The certificate and its key cannot be used; the text says why in a sentence."""


class Tls:
    """One certificate with its key. `context` is what listeners take; it stays the same."""

    def __init__(self, cert_path: str, key_path: str | None) -> None:
        """Read both files; the key may be in the file of the certificate. Raises TlsProblem."""
        self._paths = (cert_path, key_path)
        self._now = tls_context(cert_path, key_path)
        self.context = tls_context(cert_path, key_path)
        # Another certificate may have another kind of key: beside the old one in one context the
        # client would choose between them. So each handshake is sent on to the one of now.
        self.context.sni_callback = self._hand_on

    def renew(self) -> None:
        """Read the files again, for connections from now on.

        Raises TlsProblem when they cannot be used; what was served before goes on then.
        """
        self._now = tls_context(*self._paths)

    def _hand_on(
        self, handshake: ssl.SSLObject | ssl.SSLSocket, _name: str, _context: ssl.SSLContext
    ) -> None:
        handshake.context = self._now


async def shake_hands(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    context: ssl.SSLContext,
    within_s: float,
) -> None:
    """Turn both streams of a connection to TLS, as its server, before anything is read.

    Raises OSError (ssl.SSLError among it) when that fails, takes longer, or somebody cuts it.
    """
    SSLProtocol.max_size = READ_BYTES
    below: Any = writer.transport
    loop, protocol = asyncio.get_running_loop(), below.get_protocol()
    below.pause_reading()
    # uvloop reads before anybody is asked: what it has is the beginning of the handshake.
    early: bytearray = vars(reader)["_buffer"]
    shaking = loop.create_task(
        loop.start_tls(below, protocol, context, server_side=True, ssl_handshake_timeout=within_s)
    )
    if early:
        # Behind the beginning of TLS, which the task is about to put into the same line.
        loop.call_soon(loop.call_soon, _hand_over, below, early)
    try:
        secured = await shaking
        if secured is None:
            raise ConnectionAbortedError("cut in the middle of the handshake")
    except BaseException:
        # Nobody else tells the streams that their connection is gone.
        below.abort()
        protocol.connection_lost(None)
        raise
    # asyncio's own StreamWriter.start_tls leaves the reader with the transport below.
    vars(writer)["_transport"] = vars(reader)["_transport"] = secured
    protocol._replace_writer(writer)


def _hand_over(transport: Any, early: bytearray) -> None:
    """Give TLS what was read for the streams, as if it came now."""
    protocol = transport.get_protocol()
    while early and not transport.is_closing():
        place = memoryview(protocol.get_buffer(len(early)))
        taken = min(len(place), len(early))
        place[:taken] = early[:taken]
        del early[:taken]
        protocol.buffer_updated(taken)


def tls_context(cert_path: str, key_path: str | None) -> ssl.SSLContext:
    """A context over these files. Raises TlsProblem when they do not fit."""
    cert = _read("--tls-cert", cert_path)
    key = cert if key_path is None else _read("--tls-key", key_path)
    if b"-----BEGIN CERTIFICATE-----" not in cert:
        raise TlsProblem(f"--tls-cert {cert_path} holds no certificate in PEM")
    if b"PRIVATE KEY-----" not in key:
        raise TlsProblem(f"--tls-key {key_path or cert_path} holds no private key in PEM")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client could begin anew without end, and each time it costs us more than it.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])

    def locked() -> str:
        # Without this OpenSSL would ask at the terminal, and the start would wait for an answer.
        raise TlsProblem(f"--tls-key {key_path or cert_path} has a passphrase: give one without")

    try:
        context.load_cert_chain(cert_path, key_path, password=locked)
    except ssl.SSLError as problem:
        if problem.reason == "KEY_VALUES_MISMATCH":
            why = "the key belongs to another certificate"
        else:
            why = (problem.reason or "not as PEM should be").replace("_", " ").lower()
        raise TlsProblem(f"--tls-cert {cert_path} with its key cannot be used: {why}") from None
    except OSError as problem:
        raise TlsProblem(f"--tls-cert {cert_path} cannot be read: {problem.strerror}") from None
    return context


def _read(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as problem:
        raise TlsProblem(f"{flag} {path} cannot be read: {problem.strerror}") from None
