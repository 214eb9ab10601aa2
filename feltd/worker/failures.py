"""How a handler says that it failed, and what each way of ending means on the wire.

An outcome is decided here and delivered elsewhere: nothing in this file sends anything.
"""

from typing import Any, NamedTuple

import msgspec

from feltd.model.secret_text import covered
from feltd.worker.refusal import Refusal, Unreachable

#: The daemon keeps that much of an output; more is a failure of the handler, told as one.
OUTPUT_BYTES_MAX = 768 * 1024
#: A failure message says what happened, it is no log; the last 2 KiB of a program's stderr fit in,
#: with the exit code before them.
MESSAGE_CHARACTERS_MAX = 2_200
#: The longest wait a worker may ask for: a day.
RETRY_AFTER_MS_MAX = 86_400_000


class Transient(Exception):
    """Raise it in a handler when trying again later may help.

    The attempt ends as `transient` and is retried under the workload's policy, not before
    `retry_after_ms` from now where that is given.
    """

    def __init__(self, message: str, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class Permanent(Exception):
    """Raise it in a handler when trying again cannot help: no retry under the default policy.

    `kind` is the failure's kind, lower case, `execution_error` if none is given.
    """

    def __init__(self, message: str, kind: str = "execution_error") -> None:
        super().__init__(message)
        self.kind = kind


class Fenced(Exception):
    """The claim is no longer this process's: whatever the handler still does is not accepted."""


class GivenBack(Exception):
    """The work cannot be run here after all: the claim is released, and no attempt is spent.

    Raise it only before anything was done.
    """


class Ending(NamedTuple):
    """How one attempt ends: `verb` is complete, fail or release, `body` what goes with it.

    `hint` is a line for the worker's own log, for whoever maintains the handler.
    """

    verb: str
    body: dict[str, Any]
    hint: str = ""


RELEASED = Ending("release", {})


def returned(output: Any) -> Ending:
    """The ending of a handler that returned `output`; what is no JSON value fails the attempt."""
    try:
        encoded = msgspec.json.encode(output)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return failed("execution_error", f"the handler's output is not JSON: {error}")
    if len(encoded) > OUTPUT_BYTES_MAX:
        return failed(
            "execution_error",
            f"the output has {len(encoded)} bytes, {OUTPUT_BYTES_MAX} are kept: store it "
            "elsewhere and return a reference",
        )
    return Ending("complete", {"output": msgspec.Raw(encoded)})


def raised(error: BaseException) -> Ending:
    """The ending of a handler that raised."""
    said = str(error).strip()
    if isinstance(error, GivenBack):
        return RELEASED._replace(hint=said)
    if isinstance(error, Transient):
        return failed("transient", said or "transient", retry_after_ms=error.retry_after_ms)
    if isinstance(error, Permanent):
        return failed(error.kind, said or "permanent")
    message = f"{type(error).__name__}: {said}" if said else type(error).__name__
    if _passes(error):
        return failed("transient", message)
    hint = "raise feltd.worker.Transient(message) from the handler where trying again may help"
    return failed("execution_error", message, hint=hint)


def _passes(error: BaseException) -> bool:
    """Whether the world was in the way: ConnectionError and TimeoutError are OSErrors."""
    if isinstance(error, Refusal):
        return error.next in ("repeat", "wait")
    return isinstance(error, OSError | Unreachable)


def failed(kind: str, message: str, *, retry_after_ms: int | None = None, hint: str = "") -> Ending:
    """A failure with a kind and a message, cut to its bound; NUL cannot be stored and goes."""
    message = message.replace("\x00", "")
    if len(message) > MESSAGE_CHARACTERS_MAX:
        # Half a secret is found by nobody: it is covered before it is cut.
        message = covered(message)[:MESSAGE_CHARACTERS_MAX]
    body: dict[str, Any] = {"kind": kind, "message": message}
    if retry_after_ms is not None:
        body["retry_after_ms"] = min(max(0, int(retry_after_ms)), RETRY_AFTER_MS_MAX)
    return Ending("fail", body, hint)
