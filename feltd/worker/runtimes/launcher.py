"""Starts one program, keeps it within its bounds, and ends all of it: a process of its own.

It stands between a worker and a program for as long as the program runs, so that the end of the
worker, however sudden, is the end of every process the program has started. It is the standard
library alone, and little of it, since it starts with every program. It speaks to nobody: bounds
in argv, two pipes, an exit.
"""

import ctypes
import os
import resource
import select
import signal
import sys
import time

#: Words of the worker on the lifeline; its end means that the worker is gone.
TERM = b"T"
KILL = b"K"
#: How the program ended: by itself, at a bound, or because it was told to.
EXITED, CPU, MEMORY, DURATION, TOLD = "exited", "cpu", "memory", "duration", "told"

#: Between two looks at what a bounded program uses.
LOOK_S_MIN, LOOK_S_MAX = 0.01, 0.05
#: What a program leaves running behind it may end by itself for that long.
LEFT_BEHIND_S = 1.0
#: Killed processes are gone at once, but for those that a device holds.
GONE_S_MAX = 5.0
WAIT_S_MAX = 3_600.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TICK_MS = 1_000 / os.sysconf("SC_CLK_TCK")
#: Elsewhere a process group is all that is known of a program, and all that is ended.
LISTED = os.path.isdir("/proc/self/task")
HEARD = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _Quiet:
    """contextlib.suppress, which would load as much as all the rest of this file."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self.kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self.kinds)


def main() -> None:
    """Run `NAME=NUMBER… folder=PATH [filter=HEX] -- PROGRAM`, and say how it ended on `status`.

    Where the worker is gone there is nobody else to remove the folder of the attempt.
    """
    split = sys.argv.index("--")
    words = dict(word.split("=", 1) for word in sys.argv[1:split])
    folder, socket_filter = words.pop("folder"), bytes.fromhex(words.pop("filter", ""))
    program = Program(
        {name: int(value) for name, value in words.items()}, socket_filter, sys.argv[split + 1 :]
    )
    try:
        verdict = program.run()
    except OSError as error:
        verdict = {"failed": str(error)}
    _say(program.status, verdict)
    if program.orphaned:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


class Program:
    """One program under its bounds. Each bound is of all its processes together.

    `bounds` are cpu_ms, memory_bytes, duration_ms, file_bytes, none of them where it is absent,
    and life, status, term_ms, sandbox.
    """

    def __init__(self, bounds: dict[str, int], socket_filter: bytes, argv: list[str]) -> None:
        self.life = bounds["life"]
        self.status = bounds["status"]
        self.term_ms = bounds["term_ms"]
        self.sandbox = bounds.get("sandbox", 0)
        self.cpu_ms = bounds.get("cpu_ms")
        self.memory_bytes = bounds.get("memory_bytes")
        self.duration_ms = bounds.get("duration_ms")
        self.file_bytes = bounds.get("file_bytes")
        self.filter = socket_filter
        self.argv = argv
        self.used_ms = 0.0
        self.orphaned = False
        self.main = 0
        self.code: int | None = None
        self.end = EXITED
        self.kill_at: float | None = None

    def run(self) -> dict[str, object]:
        """From start to the end of its last process."""
        for fd in (self.life, self.status):
            os.set_inheritable(fd, False)
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        reading, writing = os.pipe()
        for fd in (reading, writing):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in HEARD:
            signal.signal(number, self._heard)
        inside = self._start()
        _say(self.status, {"pid": self.main})
        poller = select.poll()
        poller.register(self.life, select.POLLIN | select.POLLHUP)
        poller.register(reading, select.POLLIN)
        self._watch(poller, reading)
        self._sweep()
        if self.cpu_ms and self.end == EXITED and self.code and _cpu_ms_of([]) >= self.cpu_ms:
            # The kernel's own bound was met between two looks.
            self.end = CPU
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1_024
        began = int(_began(inside))
        return {"end": self.end, "code": self.code, "began": began, "peak_bytes": peak}

    def _heard(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._term()

    def _start(self) -> int | None:
        """Start it in a process group of its own; the fd on which a sandbox says that it began."""
        argv, inside, kept = list(self.argv), None, []
        if self.sandbox:
            inside, telling = os.pipe()
            os.set_blocking(inside, False)
            kept.append(telling)
            extra = ["--json-status-fd", str(telling)]
            if self.filter:
                filter_fd, feeding = os.pipe()
                os.write(feeding, self.filter)
                os.close(feeding)
                kept.append(filter_fd)
                extra += ["--seccomp", str(filter_fd)]
            argv[1:1] = extra
        me = os.getpid()
        self.started = time.monotonic()
        signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        self.main = os.fork()
        if self.main == 0:
            self._become(argv, kept, me)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
        for fd in kept:
            os.close(fd)
        # The pipes are the program's: their ends must be seen when it closes them.
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nowhere, fd)
        return inside

    def _become(self, argv: list[str], kept: list[int], parent: int) -> None:
        """In the child: take the bounds that the kernel keeps, and be the program."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (*HEARD, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
            os.setpgid(0, 0)
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            for fd in kept:
                os.set_inheritable(fd, True)
            _limit(resource.RLIMIT_CORE, 0)
            if self.cpu_ms:
                _limit(resource.RLIMIT_CPU, -(-self.cpu_ms // 1_000))
            if self.memory_bytes:
                _limit(resource.RLIMIT_DATA, self.memory_bytes)
            if self.file_bytes:
                _limit(resource.RLIMIT_FSIZE, self.file_bytes)
            os.execvp(argv[0], argv)
        except BaseException as error:
            _say(self.status, {"failed": f"{argv[0]}: {error}"})
        finally:
            os._exit(127)

    def _watch(self, poller: select.poll, waking: int) -> None:
        while self.code is None:
            ready = poller.poll(self._pause_s() * 1_000)
            for fd, _event in ready:
                if fd == waking:
                    os.read(waking, 4_096)
                else:
                    self._obey(poller)
            self._reap()
            if self.code is None:
                self._look()

    def _pause_s(self) -> float:
        now = time.monotonic()
        pauses = [WAIT_S_MAX]
        if self.kill_at is not None:
            pauses.append(self.kill_at - now)
        if self.duration_ms:
            pauses.append(self.started + self.duration_ms / 1_000 - now)
        if self.memory_bytes or self.cpu_ms:
            pauses.append(LOOK_S_MAX)
        if self.cpu_ms:
            left_ms = self.cpu_ms - self.used_ms
            pauses.append(max(LOOK_S_MIN, left_ms / 1_000 / (os.cpu_count() or 1)))
        return max(0.0, min(pauses))

    def _obey(self, poller: select.poll) -> None:
        """A word of the worker, or its end."""
        word = os.read(self.life, 1)
        if word == TERM:
            self._term()
            return
        if not word:
            poller.unregister(self.life)
            self.orphaned = True
        self._kill(TOLD)

    def _look(self) -> None:
        """Compare what it uses with its bounds; past one of them all of it is killed."""
        now = time.monotonic()
        if self.kill_at is not None and now >= self.kill_at:
            self._kill(TOLD)
            return
        if self.duration_ms and now >= self.started + self.duration_ms / 1_000:
            self._kill(DURATION)
            return
        if not (self.cpu_ms or self.memory_bytes):
            return
        family = descendants(os.getpid())
        if self.cpu_ms:
            self.used_ms = _cpu_ms_of(family)
            if self.used_ms >= self.cpu_ms:
                self._kill(CPU)
                return
        if self.memory_bytes:
            used = sum(_resident_bytes(pid) for pid in family)
            if used > self.memory_bytes:
                # Pages that a fork shares were counted once for each who has them.
                used = sum(_shared_out_bytes(pid) for pid in family)
            if used > self.memory_bytes:
                self._kill(MEMORY)

    def _term(self) -> None:
        """Ask every process of the program to end; what is left after term_ms is killed."""
        self.end = TOLD
        if self.kill_at is None:
            self.kill_at = time.monotonic() + self.term_ms / 1_000
        if not LISTED and self.main:
            with _Quiet(ProcessLookupError, PermissionError):
                os.killpg(self.main, signal.SIGTERM)
        # A sandbox's own two processes would not pass it on; the first one's end kills all.
        spared = {self.main, *children(self.main)} if self.sandbox else set()
        for pid in descendants(os.getpid()):
            if pid not in spared:
                _signal(pid, signal.SIGTERM)

    def _kill(self, why: str) -> None:
        self.end = why
        self._kill_all()

    def _kill_all(self) -> None:
        """Kill until no process is left: some may be born meanwhile."""
        ends = time.monotonic() + GONE_S_MAX
        while True:
            family = descendants(os.getpid())
            if family or not LISTED:
                # The group at once: no fork of one of its members gets away.
                with _Quiet(ProcessLookupError, PermissionError):
                    os.killpg(self.main, signal.SIGKILL)
            for pid in family:
                _signal(pid, signal.SIGKILL)
            self._reap()
            if not family or time.monotonic() > ends:
                return
            time.sleep(0.002)

    def _sweep(self) -> None:
        """Its first process has ended: so does everything that it left behind."""
        ends = time.monotonic() + LEFT_BEHIND_S
        family = descendants(os.getpid())
        for pid in family:
            _signal(pid, signal.SIGTERM)
        while family and time.monotonic() < ends:
            self._reap()
            time.sleep(LOOK_S_MIN)
            family = descendants(os.getpid())
        self._kill_all()

    def _reap(self) -> None:
        with _Quiet(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.main:
                    self.code = os.waitstatus_to_exitcode(status)


# -- processes, as /proc tells of them


def children(pid: int) -> list[int]:
    """The living children of a process, zombies among them."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(one) for one in file.read().split()]
    except OSError:
        # It has just ended, or this kernel keeps no such list: then all are asked for their parent.
        if os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
            return found
        everybody = [int(one) for one in os.listdir("/proc") if one.isdecimal()]
        found = [one for one in everybody if (stat := _stat(one)) and int(stat[1]) == pid]
    return found


def descendants(pid: int) -> list[int]:
    """Every process below one, parents first."""
    found, waiting = [], [pid]
    while waiting and LISTED:
        below = children(waiting.pop(0))
        found += below
        waiting += below
    return found


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the state on; [] for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu_ms_of(family: list[int]) -> float:
    """Processor time of these, of the children they have waited for, and of all reaped here."""
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = 0
    for pid in family:
        ticks += sum(int(one) for one in _stat(pid)[11:15])
    return ticks * TICK_MS + (reaped.ru_utime + reaped.ru_stime) * 1_000


def _resident_bytes(pid: int) -> int:
    return _sum_of(f"/proc/{pid}/status", ("RssAnon:", "RssShmem:"))


def _shared_out_bytes(pid: int) -> int:
    told = _sum_of(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:"))
    return told or _resident_bytes(pid)


def _sum_of(path: str, names: tuple[str, ...]) -> int:
    try:
        with open(path) as file:
            lines = [line.split() for line in file]
    except OSError:
        return 0
    return sum(int(line[1]) for line in lines if line and line[0] in names) * 1_024


# -- the kernel


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _limit(which: int, value: int) -> None:
    """Bound it by `value`, or by less where less was allowed already."""
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _signal(pid: int, number: int) -> None:
    with _Quiet(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _began(inside: int | None) -> bool:
    """Whether the program itself was started; a sandbox says so by its exit code."""
    if inside is None:
        return True
    told = b""
    with _Quiet(BlockingIOError):
        while chunk := os.read(inside, 4_096):
            told += chunk
    return b"exit-code" in told


def _say(fd: int, words: dict[str, object]) -> None:
    """A line for each word and what it is, on the status pipe. The worker may be gone."""
    lines = "".join(f"{name} {value!s}\n" for name, value in words.items())
    with _Quiet(OSError):
        os.write(fd, lines.encode())
