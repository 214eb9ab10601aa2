"""A command that has started processes ends them before it ends, whoever tells it to.

Without it SIGTERM and SIGHUP would end this process alone and leave the others running.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

NUMBERS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise KeyboardInterrupt, once: what follows must not be cut short.

    For the main thread of a command.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for one in NUMBERS:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
