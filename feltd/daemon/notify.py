"""Tells systemd how the service stands, over the datagram socket it names; silent without one."""

import os
import socket


def notify(*lines: str) -> bool:
    """Send `READY=1`, `STOPPING=1`, `WATCHDOG=1`, `STATUS=…`; whether somebody listens.

    A socket that is gone or full loses the message: a supervisor that cannot be told is no reason
    to fail.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.setblocking(False)
            to.sendto("\n".join(lines).encode(), address)
    except OSError:
        return False
    return True


def watchdog_every_ms() -> int | None:
    """How often the watchdog wants to hear, half of its limit; None when there is none."""
    limit_us = os.environ.get("WATCHDOG_USEC", "")
    pid = os.environ.get("WATCHDOG_PID", "")
    if not limit_us.isdigit() or (pid and pid != str(os.getpid())):
        return None
    return max(100, int(limit_us) // 2_000)
