"""SIGHUP: the files of TLS are read again, so that a renewed certificate needs no restart.

On a terminal it means what it always meant, that the terminal is gone: the daemon stops in order.
"""

import os
from typing import TYPE_CHECKING

import structlog

from feltd.api.tls import TlsProblem

if TYPE_CHECKING:
    from feltd.daemon.run import Daemon

log = structlog.get_logger("feltd.daemon")


def hang_up(daemon: "Daemon") -> None:
    """Answer one SIGHUP. Files that cannot be used change nothing, and health says so."""
    if _on_terminal():
        daemon.begin_stop("SIGHUP")
        return
    try:
        renewed = daemon.server.renew_tls()
    except TlsProblem as problem:
        log.error("the certificate was not renewed", detail=str(problem))
        daemon.health.note("CERTIFICATE_UNREADABLE", f"{problem}; the one before is served")
        return
    daemon.health.note("CERTIFICATE_UNREADABLE", None)
    log.info("certificate read again" if renewed else "SIGHUP: nothing here is read again")


def _on_terminal() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False
