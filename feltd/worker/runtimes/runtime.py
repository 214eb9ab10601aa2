"""What every runtime offers, and the policy an attempt runs under: its claim's within the worker's.

A runtime enforces each member of a policy or refuses the attempt before anything of it has
started. Nothing here starts anything.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from feltd.model.capping import capped
from feltd.model.grant import RuntimeCaps
from feltd.model.policy import RuntimePolicy
from feltd.worker.failures import Permanent

Claim = Mapping[str, Any]


class Unenforceable(Permanent):
    """A member of the policy cannot be enforced here, so nothing was started."""

    def __init__(self, member: str, value: object, why: str) -> None:
        super().__init__(f"{member} {value} cannot be enforced here: {why}", "policy_unenforceable")
        self.member = member


class Malformed(Permanent):
    """What shall run is nothing that this runtime can run, whatever it is given: not started."""


class Finished(NamedTuple):
    """How a program ended.

    `end` is exited, cpu, memory, duration, output, disk, trap or told; `code` its exit code,
    negative for a signal; `why` says more of a trap. `output` and `errors` are the bounded
    beginning and end of what it wrote; no process of it ever held more than `peak_bytes`.
    """

    end: str
    code: int
    output: bytes
    errors: bytes
    peak_bytes: int = 0
    why: str = ""


class Runtime(Protocol):
    """Runs attempts in one kind of place. Each call names the claim it is about."""

    def require(self, policy: RuntimePolicy) -> None:
        """Raise Unenforceable, naming the member, unless all of a policy can be kept to here."""
        ...

    async def start(self, claim: Claim, policy: RuntimePolicy) -> Path | None:
        """Make ready, run nothing; the file that carries the checkpoint, None where none can.

        Raises Unenforceable as `require` does, Malformed for what can never run here.
        """
        ...

    async def execute(self, claim: Claim, given: bytes) -> Finished:
        """Run it on its input, JSON, to the end of all that it started."""
        ...

    def forget(self, claim: Claim) -> None:
        """Clear away what `start` made; the last word about a claim, whatever came before."""
        ...

    async def cancel(self, claim: Claim) -> None:
        """Ask it to end, then end it; returns when nothing of it is left.

        `execute` then says that it was told; one that has not begun does not begin.
        """
        ...

    async def timeout(self, claim: Claim) -> None:
        """End it at once; `execute` then says that its duration was over."""
        ...


def policy_of(claim: Claim, caps: RuntimeCaps | None) -> RuntimePolicy:
    """The policy of a claim within the worker's own caps.

    A member or a word that this worker does not know cannot be enforced by it: Unenforceable.
    """
    told = claim.get("runtime_policy") or {}
    try:
        return capped(msgspec.convert(told, RuntimePolicy), caps)
    except msgspec.ValidationError as error:
        raise Unenforceable("runtime_policy", "of the claim", f"{error}") from error


def require_inline(policy: RuntimePolicy) -> None:
    """Raise Unenforceable unless a handler in the worker's own process can keep to the policy.

    It shares the worker's memory, files, network and environment, so that only the duration and
    what it hands over are the worker's to bound.
    """
    shared = RuntimePolicy()
    for member in (
        "max_cpu_millis", "max_memory_bytes",
        "network_policy", "filesystem_policy", "secret_policy",
    ):  # fmt: skip
        value = getattr(policy, member)
        if value != getattr(shared, member):
            why = "the handler runs inside the worker; run it as a program (--exec)"
            raise Unenforceable(member, value, why)
