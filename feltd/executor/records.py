"""What programs reach of the daemon: the records of one tenant, by whoever hands this in.

Each call is one operation of its own, done when it returns: between two of them nothing is held.
"""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple, Protocol

from feltd.executor.steps import UNAVAILABLE, Failed

#: What a refusal of the daemon means for a program, by its code.
STATUS_OF = {
    "RECORD_NOT_FOUND": 404,
    "RECORD_CONFLICT": 409,
    "RECORD_INVALID": 422,
    "REQUEST_INVALID": 422,
    "REQUEST_MALFORMED": 422,
    "REQUEST_TOO_LARGE": 413,
    "QUOTA_EXCEEDED": 413,
    "FORBIDDEN": 403,
}


class Held(NamedTuple):
    """The claim in whose name a program writes, and the incarnation that holds it."""

    workload_id: str
    claim_id: str
    worker_id: str
    fencing_token: int
    incarnation: int


class Found(NamedTuple):
    """One program as it is written down; `value` None: it was deleted."""

    name: str
    value: bytes | None


class Page(NamedTuple):
    """Some programs; `anew`: with this page everything that was known before is to be forgotten."""

    programs: list[Found]
    anew: bool = False


class Records(Protocol):
    """The records of a tenant, for the programs of its executor."""

    async def ask(self, held: Held, asked: dict[str, Any]) -> Any:
        """What one step asks for: get, search, put or patch.

        Reads answer the record (null for none) or what was found. Writes answer the record and
        are refused once the claim is no longer held. Raises Failed, or feltd.errors.Refused of a
        claim that is over.
        """
        ...

    async def program(self, name: str) -> bytes | None:
        """A program as it is now; None for none."""
        ...

    def programs(self) -> AsyncIterator[Page]:
        """Every program in pages when it is first walked; later only what has changed since."""
        ...


def failed(code: str, detail: str) -> Failed | None:
    """What a refusal of the records means for the program; None: it is about the claim."""
    if code in STATUS_OF:
        return Failed(STATUS_OF[code], detail)
    if code.startswith(("STORAGE_", "SERVICE_", "OUTCOME_")):
        return Failed(UNAVAILABLE, detail)
    return None
