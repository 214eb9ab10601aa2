"""Certificates of a private authority, made by openssl for one test."""

import ssl
import subprocess
from pathlib import Path

EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
RSA = ("-newkey", "rsa:2048")


class Authority:
    """An authority in a folder; `issue` makes certificates for this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cert, self._key = folder / "authority.pem", folder / "authority.key"
        _openssl("req", "-x509", *EC, "-nodes", "-days", "2", "-subj", "/CN=test authority",
                 "-keyout", self._key, "-out", self.cert)  # fmt: skip

    def issue(
        self, name: str, kind: tuple[str, ...] = EC, *, phrase: str = ""
    ) -> tuple[Path, Path]:
        """The certificate and the key of localhost, in files of this name."""
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        locked = ("-passout", f"pass:{phrase}") if phrase else ("-nodes",)
        _openssl("req", "-x509", *kind, *locked, "-days", "2", "-subj", f"/CN={name}",
                 "-CA", self.cert, "-CAkey", self._key,
                 "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                 "-addext", "basicConstraints=critical,CA:FALSE",
                 "-keyout", key, "-out", cert)  # fmt: skip
        return cert, key

    def client(self) -> ssl.SSLContext:
        """Who believes this authority alone."""
        return ssl.create_default_context(cafile=str(self.cert))


def _openssl(*words: object) -> None:
    ran = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
