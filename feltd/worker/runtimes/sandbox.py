"""bubblewrap around a program: its own processes, no network but its own, little of the files.

Only what was tried on this machine counts: a program of that name that cannot make a sandbox here,
because user namespaces are forbidden, is as good as none. Never starts a workload's program.
"""

import functools
import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from feltd.model.policy import RuntimePolicy

#: Where a sandboxed program finds its scratch space and the folder of its checkpoint.
SCRATCH = "/tmp"
STATE = "/feltd"
#: Scratch space, unless max_memory_bytes is given, which then bounds it too.
SCRATCH_BYTES_MAX = 1024**3
SHARED_MEMORY_BYTES_MAX = 64 * 1024**2
PROBE_S_MAX = 10.0

#: Of the machine's files a sandboxed program sees these, to be read: programs, libraries, and what
#: they need to know of names, time and certificates.
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
SETTINGS = (
    "alternatives", "ca-certificates", "group", "host.conf", "hosts", "ld.so.cache",
    "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "passwd", "pki",
    "protocols", "resolv.conf", "services", "ssl/certs", "ssl/openssl.cnf", "timezone",
)  # fmt: skip

#: A processor: its audit number, and its numbers of socket and io_uring_setup.
PROCESSORS = {
    "x86_64": (0xC000003E, 41, 425),
    "aarch64": (0xC00000B7, 198, 425),
    "riscv64": (0xC00000F3, 198, 425),
}
UNIX, INET, NETLINK, INET6 = 1, 2, 16, 10
#: Kinds of socket a program may have. A namespace alone does not keep it from AF_VSOCK, and not
#: from the sockets that stand among the machine's files, a daemon's own for its operator too.
FAMILIES = {"none": (), "loopback": (INET, INET6, NETLINK)}


class Hindered(Exception):
    """Why this machine cannot keep a program in a sandbox, with what would help."""


def require() -> str:
    """The path of a bubblewrap that works here; found out once. Raises Hindered."""
    path = shutil.which("bwrap")
    if path is None:
        raise Hindered("bubblewrap is not installed (Debian: apt install bubblewrap)")
    why = _probe(path)
    if why:
        raise Hindered(
            f"bubblewrap is installed, yet makes no sandbox here: {why} "
            "(it needs unprivileged user namespaces to be allowed)"
        )
    if platform.machine() not in PROCESSORS:
        raise Hindered(f"no filter of system calls is known for {platform.machine()}")
    return path


@functools.cache
def _probe(path: str) -> str:
    """What goes wrong when the tightest sandbox is made; empty: nothing."""
    tight = RuntimePolicy(network_policy="none", filesystem_policy="scratch")
    try:
        tried = subprocess.run(
            [path, *arguments(tight, None, ()), "/bin/sh", "-c", ":"],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S_MAX, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if tried.returncode == 0:
        return ""
    return tried.stderr.decode(errors="replace").strip()[-300:] or f"code {tried.returncode}"


def arguments(policy: RuntimePolicy, folder: Path | None, readable: Sequence[str]) -> list[str]:
    """bubblewrap's arguments before the program; `folder` is that of the checkpoint.

    `readable` are further paths that a program without the machine's files may read.
    """
    told = ["--die-with-parent", "--unshare-pid", "--unshare-ipc"]
    if policy.network_policy != "inherit":
        told += ["--unshare-net"]
    if policy.filesystem_policy == "inherit":
        told += ["--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc"]
        return [*told, "--"]
    told += _system()
    told += ["--proc", "/proc", "--dev", "/dev"]
    if policy.filesystem_policy == "scratch":
        most = policy.max_memory_bytes or SCRATCH_BYTES_MAX
        told += ["--perms", "1777", "--size", str(most), "--tmpfs", SCRATCH]
        told += ["--perms", "1777", "--size", str(min(most, SHARED_MEMORY_BYTES_MAX))]
        told += ["--tmpfs", "/dev/shm"]
    for path in readable:
        told += ["--ro-bind", path, path]
    if folder is not None:
        told += ["--bind", str(folder), STATE]
    told += ["--remount-ro", "/dev", "--remount-ro", "/"]
    return [*told, "--chdir", SCRATCH if policy.filesystem_policy == "scratch" else "/", "--"]


def _system() -> list[str]:
    told = ["--ro-bind", "/usr", "/usr"]
    for name in SYSTEM:
        place = Path("/", name)
        if place.is_symlink():
            told += ["--symlink", os.readlink(place), str(place)]
        elif place.is_dir():
            told += ["--ro-bind", str(place), str(place)]
    for name in SETTINGS:
        told += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return told


def socket_filter(policy: RuntimePolicy) -> bytes:
    """The seccomp program that lets through no socket but the policy's; b"" where all may be.

    A program that sees only its own files may have sockets among them, and pairs of them anybody.
    Calls of another processor's numbers are refused, since they would go past it.
    """
    families: tuple[int, ...] | None = FAMILIES.get(policy.network_policy)
    if families is None:
        return b""
    if policy.filesystem_policy != "inherit":
        families = (UNIX, *families)
    audit, socket, ring = PROCESSORS[platform.machine()]
    refuse, foreign, allow = 0x00050000 | 97, 0x00050000 | 1, 0x7FFF0000
    load, equal, above, answer = 0x20, 0x15, 0x35, 0x06
    kinds = len(families)
    steps = [
        (load, 0, 0, 4),
        (equal, 0, 6 + kinds, audit),
        (load, 0, 0, 0),
        (above, 4 + kinds, 0, 0x40000000),
        (equal, 3 + kinds, 0, ring),
        (equal, 0, 3 + kinds, socket),
        (load, 0, 0, 16),
        *((equal, kinds - place + 1, 0, family) for place, family in enumerate(families)),
        (answer, 0, 0, refuse),
        (answer, 0, 0, foreign),
        (answer, 0, 0, allow),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
