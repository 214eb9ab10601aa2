"""TLS of the listeners: 1.2 or later, HTTP/1.1 alone on offer, renewed without a restart.

The files are read at the start and when the daemon is told to, never in between: a certificate
half written by whoever renews it is never served. It knows no socket.
"""

import ssl
from pathlib import Path


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
