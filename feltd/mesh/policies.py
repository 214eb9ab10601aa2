"""Runtime policies: how they are stored, shown, and capped; the tighter word always wins.

Pure. A row without one means the law's default, which every answer spells out, so that a worker in
any language finds each member in its claim. The creator's grant caps what is stored; the grant of
the worker caps what its claim says.
"""

from functools import lru_cache

from msgspec.json import decode, encode

from feltd.model.capping import capped
from feltd.model.grant import GrantConstraints
from feltd.model.policy import RuntimePolicy

DEFAULT = RuntimePolicy()
DEFAULT_TEXT = encode(DEFAULT).decode()
#: The column of a workload that says nothing of its own.
NOTHING_SAID = "{}"
#: A mesh has few different grants and policies, and asks for their combination at every claim.
REMEMBERED = 1_024


def written(policy: RuntimePolicy) -> str:
    """The column of a policy."""
    return NOTHING_SAID if policy == DEFAULT else encode(policy).decode()


def told(column: str) -> str:
    """The policy of a column as JSON with every member."""
    return DEFAULT_TEXT if column == NOTHING_SAID else column


def of(column: str) -> RuntimePolicy:
    """The policy of a column."""
    return DEFAULT if column == NOTHING_SAID else decode(column, type=RuntimePolicy)


def told_to(column: str, constraints: str | None) -> bytes:
    """What a claim says: a workload's policy within the constraints of its worker's grant.

    `constraints` is the column of that grant, None where there is none (--no-auth).
    """
    if constraints is None or '"runtime_policy"' not in constraints:
        return told(column).encode()
    return encode(combined(column, constraints))


@lru_cache(REMEMBERED)
def combined(column: str, constraints: str | None) -> RuntimePolicy:
    """As `told_to`, as a policy."""
    if constraints is None:
        return of(column)
    return capped(of(column), decode(constraints, type=GrantConstraints).runtime_policy)
