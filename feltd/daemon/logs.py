"""The daemon's log: one JSON object a line on stderr, times in UTC, tracebacks as text members.

stdout belongs to the one line that names the address. What the libraries say through the standard
logging comes out in the same shape.
"""

import logging
import sys
from collections import deque
from typing import IO, Any

import structlog

#: What the diagnostics show of the log: its last lines, none longer than this.
LINES_KEPT = 500
LINE_CHARS_MAX = 4_000


class LastLines(logging.Handler):
    """Keeps the last lines in memory, for whoever asks the daemon and cannot read its stderr."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        try:
            self._lines.append(self.format(record)[:LINE_CHARS_MAX])
        except Exception:
            self.handleError(record)

    def lines(self) -> list[str]:
        """The lines, oldest first."""
        return list(self._lines)


#: Of this process; filled from begin_log on.
LAST = LastLines()


def begin_log(stream: IO[str] | None = None, level: int = logging.INFO) -> None:
    """Send everything to `stream` (default: stderr) from now on."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    as_json = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(),
        ],
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    root = logging.getLogger()
    root.handlers[:] = [handler, LAST]
    for one in root.handlers:
        one.setFormatter(as_json)
    root.setLevel(level)
    # The server's library tells each address as a person would read it; the daemon logs it itself.
    logging.getLogger("feltd.server").setLevel(logging.WARNING)
    # A slow callback is told by our own measures; asyncio's warnings about it say less.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    # The daemon's own workers: each of their calls and attempts is counted where it is served.
    for chatty in ("httpx2", "feltd.worker"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
