"""Sockets somebody else listened on before: `--fd`, or a service manager's LISTEN_FDS.

They are held to the rule of --host, and none of them is the operator's: a Unix socket that is
handed in needs keys like any other.
"""

import os
import re
from collections.abc import MutableMapping

from feltd.api.listen import ListenProblem
from feltd.config import Config
from feltd.daemon.start import refuse_open_socket

#: The first of a service manager's sockets, by its own rule.
FIRST_FD = 3
#: More than anybody's unit lists; the number is not trusted.
FDS_MAX = 64
NUMBER = re.compile(r"[0-9]{1,3}")


def handed_sockets(config: Config, env: MutableMapping[str, str] = os.environ) -> tuple[int, ...]:
    """The sockets to serve on, none when the daemon shall bind --host and --port itself.

    `--fd` comes first. What a service manager said is taken out of the environment, so that no
    program started from here believes it. Raises ConfigProblem, or ListenProblem.
    """
    told = _listen_fds(env)
    if config.fd is not None:
        refuse_open_socket(config, config.fd, "--fd")
        return (config.fd,)
    for fd in told:
        refuse_open_socket(config, fd, "LISTEN_FDS")
        os.set_inheritable(fd, False)
    return told


def _listen_fds(env: MutableMapping[str, str]) -> tuple[int, ...]:
    count, pid = env.pop("LISTEN_FDS", ""), env.pop("LISTEN_PID", "")
    env.pop("LISTEN_FDNAMES", None)
    if not count or pid != str(os.getpid()):
        # For the process that started this one.
        return ()
    if not NUMBER.fullmatch(count) or int(count) > FDS_MAX:
        raise ListenProblem(f"LISTEN_FDS={count[:20]!r} is no number of sockets up to {FDS_MAX}")
    fds = tuple(range(FIRST_FD, FIRST_FD + int(count)))
    for fd in fds:
        try:
            os.fstat(fd)
        except OSError:
            raise ListenProblem(f"LISTEN_FDS={count}, but file {fd} is not open") from None
    return fds
