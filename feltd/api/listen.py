"""Sockets before anybody serves on them: bound and listening by ourselves, so that port 0 is known.

Also the place of the operator's own socket, and the limit of open files. No asyncio here.
"""

import errno
import hashlib
import os
import resource
import socket
import ssl
import stat
from contextlib import suppress
from dataclasses import dataclass

#: Waiting connections the kernel keeps; a herd that reconnects after a restart must fit.
BACKLOG = 1_024
#: Files beside connections: the database, its readers, logs, and what the libraries open.
FILES_RESERVED = 256
#: The kernel takes 107 bytes; some tools of operators take less.
SOCKET_PATH_BYTES_MAX = 100


class ListenProblem(Exception):
    """The daemon cannot listen as it was told; the text says why in a sentence."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket, as the number of its file, what to call it, and its TLS."""

    fd: int
    url: str
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Where to listen and what a connection may cost. `fds` come before host and port."""

    host: str = "127.0.0.1"
    port: int = 7610
    #: Listening sockets that were handed in.
    fds: tuple[int, ...] = ()
    #: The operator's own socket (listen.local_socket_path); None: none.
    local_path: str | None = None
    max_connections: int = 2_048
    max_connections_per_address: int = 512
    graceful_ms: int = 10_000
    #: Above a worker's heartbeat interval and the longest poll, or each beat opens a connection.
    keep_alive_ms: int = 75_000
    #: From the first byte (the first time: from the accept) to the end of a request's head.
    head_deadline_ms: int = 10_000
    #: A client that takes nothing of its answer for this long is cut.
    drain_deadline_ms: int = 10_000
    #: Between two pings of a WebSocket; one that was silent for three of them is closed.
    ping_ms: int = 20_000
    tls_cert: str | None = None
    tls_key: str | None = None
    #: A connection of these brings many clients: the cap for each address is not theirs.
    trust_proxy: tuple[str, ...] = ()


def listen(settings: ServerSettings, tls: ssl.SSLContext | None = None) -> tuple[Listener, ...]:
    """The daemon's listeners for everybody, at least one. Raises ListenProblem."""
    raise_file_limit(settings.max_connections)
    if settings.fds:
        return tuple(adopt(fd, tls) for fd in settings.fds)
    return (listen_tcp(settings.host, settings.port, tls),)


def listen_tcp(host: str, port: int, tls: ssl.SSLContext | None = None) -> Listener:
    """Bind and listen on one address; port 0 takes any. Raises ListenProblem."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, proto)
    except (OSError, UnicodeError) as problem:
        raise ListenProblem(f"cannot listen on {host}:{port}: {problem}") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as problem:
        listening.close()
        told = f"cannot listen on {host}:{port}: {problem.strerror}"
        if problem.errno == errno.EADDRINUSE:
            told += ". Name another --port, or end what listens there."
        raise ListenProblem(told) from None
    return _detached(listening, tls)


def adopt(fd: int, tls: ssl.SSLContext | None = None) -> Listener:
    """A socket handed in by `--fd` or a service manager. Raises ListenProblem unless it listens.

    TLS is for the network: a Unix socket, which its mode protects, speaks clear text.
    """
    try:
        listening = socket.socket(fileno=fd)
    except OSError as problem:
        raise ListenProblem(
            f"the file {fd} handed in is not a socket: {problem.strerror}"
        ) from None
    if (
        listening.type != socket.SOCK_STREAM
        or listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 1
    ):
        listening.detach()
        raise ListenProblem(f"the socket {fd} handed in is not a listening stream socket")
    return _detached(listening, None if listening.family == socket.AF_UNIX else tls)


def listen_local(path: str) -> Listener:
    """Bind and listen on the operator's socket, mode 0600. Raises ListenProblem.

    Call it with the database's lock held: a socket left behind by a daemon that died is removed.
    Nobody can connect before the mode is set, because it listens only then.
    """
    _prepare_folder(path)
    try:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen(BACKLOG)
    except OSError as problem:
        listening.close()
        if problem.errno == errno.EADDRINUSE:
            raise ListenProblem(f"{path} is in the way: remove it or move it") from None
        raise ListenProblem(f"cannot listen on {path}: {problem.strerror}") from None
    return _detached(listening, None)


def local_socket_path(database_path: str, uid: int | None = None) -> str:
    """Where the operator's socket of a database is: `<database>.sock`.

    A longer path than 100 bytes becomes one in `/run/user/<uid>`, else `/tmp/feltd-<uid>`, named
    by the first 16 hex digits of its SHA-256. `uid` is the daemon's user, by default the caller's.
    """
    path = os.path.abspath(database_path) + ".sock"
    raw = os.fsencode(path)
    if len(raw) <= SOCKET_PATH_BYTES_MAX:
        return path
    owner = os.geteuid() if uid is None else uid
    folder = f"/run/user/{owner}"
    if not os.path.isdir(folder):
        folder = f"/tmp/feltd-{owner}"
    return f"{folder}/{hashlib.sha256(raw).hexdigest()[:16]}.sock"


def find_local_socket(database_path: str) -> str:
    """Where a client looks: the socket of the user who owns the database, as the daemon chose."""
    try:
        owner = os.stat(database_path).st_uid
    except OSError:
        owner = os.geteuid()
    return local_socket_path(database_path, owner)


def raise_file_limit(connections_max: int) -> int:
    """Raise the soft limit of open files to the hard one and answer it.

    Raises ListenProblem when `connections_max` and 256 files beside them do not fit: asyncio does
    not recover from running out of files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            hard = soft
    if hard != resource.RLIM_INFINITY and connections_max + FILES_RESERVED > hard:
        raise ListenProblem(
            f"--max-connections {connections_max} needs {connections_max + FILES_RESERVED} open "
            f"files, but the limit is {hard}: lower it or raise LimitNOFILE"
        )
    return hard


def _prepare_folder(path: str) -> None:
    folder = os.path.dirname(path)
    uid = os.geteuid()
    if folder != f"/tmp/feltd-{uid}":
        return
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    # /tmp belongs to everybody: a folder somebody else put there could lead anywhere.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise ListenProblem(f"{folder} is not a private folder of this user: remove it")


def _detached(listening: socket.socket, tls: ssl.SSLContext | None) -> Listener:
    name = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        # One without a file has a name that begins with a zero byte.
        url = f"unix:@{name[1:].decode()}" if isinstance(name, bytes) else f"unix:{name}"
    else:
        host = f"[{name[0]}]" if ":" in name[0] else name[0]
        url = f"{'https' if tls else 'http'}://{host}:{name[1]}"
    return Listener(listening.detach(), url, tls)
