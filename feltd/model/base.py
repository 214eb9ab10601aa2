"""Bounded words and numbers that every noun is made of, and who is asking for what.

A type here is the whole check of a value at the edge: what decodes is within bounds and can be
stored. Names, label and key patterns follow one rule everywhere.
"""

from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Meta, Struct

#: Largest integer that every JSON client can hold exactly.
INTEGER_MAX = 2**53 - 1

Name = Annotated[
    str, Meta(min_length=1, max_length=128, pattern=r"\A(?!\.{1,2}\Z)[A-Za-z0-9._@+\-]+\Z")
]
#: A capability inside a grant may also hold a colon, and has room for its prefix.
GrantedCapability = Annotated[
    str, Meta(min_length=1, max_length=256, pattern=r"\A(?!\.{1,2}\Z)[A-Za-z0-9._@+\-:]+\Z")
]
LabelKey = Annotated[
    str, Meta(min_length=1, max_length=128, pattern=r"\A(?!\.{1,2}\Z)[A-Za-z0-9._@+\-/]+\Z")
]
#: No control character, nor one of the second set, which terminals obey too.
PRINTABLE = r"\A[^\x00-\x1f\x7f-\x9f]+\Z"
LabelText = Annotated[str, Meta(max_length=256, pattern=r"\A[^\x00-\x1f\x7f-\x9f]*\Z")]
#: idempotency_key, request_id: 1-200 printable characters.
RequestKey = Annotated[str, Meta(min_length=1, max_length=200, pattern=PRINTABLE)]
#: An id that was handed out; what it names is looked up, so only its length and characters count.
Id = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"\A[!-~]+\Z")]
#: A definition, or one revision of it: `definition#revision`.
WorkloadKind = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=257,
        pattern=r"\A(?!\.{1,2}(#|\Z))[A-Za-z0-9._@+\-]{1,128}"
        r"(#(?!\.{1,2}\Z)[A-Za-z0-9._@+\-]{1,128})?\Z",
    ),
]
#: How a claim ends: a word of the daemon or of the worker.
EndKind = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"\A[a-z][a-z0-9_.\-]*\Z")]
#: A sentence of a person: a reason, a note.
Sentence = Annotated[str, Meta(max_length=1024, pattern=r"\A[^\x00]*\Z")]

Names = Annotated[tuple[Name, ...], Meta(max_length=256)]
Labels = Annotated[dict[LabelKey, LabelText], Meta(max_length=64)]
ClaimIds = Annotated[tuple[Id, ...], Meta(max_length=2048)]

Count = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Instant = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Token = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
LeaseMs = Annotated[int, Meta(ge=1_000, le=3_600_000)]
WaitMs = Annotated[int, Meta(ge=0, le=30_000)]
Concurrency = Annotated[int, Meta(ge=1, le=1_024)]

LEASE_MS_DEFAULT = 30_000

SubjectKind = Literal["human", "service", "workload", "agent", "connection", "worker"]


class Subject(Struct, frozen=True, forbid_unknown_fields=True):
    """Who somebody is: a kind and an id within it."""

    kind: SubjectKind
    id: Name

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


class Caller(Struct, frozen=True):
    """The principal behind a call, as the door found it; rules test it again where they commit.

    `tenants` is ("*",) for every tenant. `worker_id` is set for a worker key and nothing else, with
    the incarnation it is bound to. `local` is the operator on the daemon's own socket, or anybody
    under --no-auth: no key stands behind it and `key_id` is ''. A session of a user has its id in
    `session_id` and, where calls are told apart, in `key_id` too; it holds nothing until
    identity/roles.narrow has read its `roles` for the call at hand.
    """

    subject: Subject
    key_id: str = ""
    scopes: frozenset[str] = frozenset()
    tenants: tuple[str, ...] = ()
    worker_id: str | None = None
    incarnation: int | None = None
    grant_id: str | None = None
    #: Wall time at which the key ends by itself; None: never.
    expires_at_ms: int | None = None
    local: bool = False
    open: bool = False  # --no-auth: worker calls act as the worker they name
    session_id: str | None = None
    #: A session's: {tenant: role}, as the door read them.
    roles: dict[str, str] | None = None

    @property
    def own_key(self) -> str:
        """The id of the row of `keys` behind the call; '' locally and for a session."""
        return "" if self.session_id is not None else self.key_id

    def may_see(self, tenant_id: str) -> bool:
        """Whether an object of this tenant exists for the caller."""
        return "*" in self.tenants or tenant_id in self.tenants

    def holds(self, scope: str) -> bool:
        """Whether the caller holds a scope; '*' holds each, a worker key none."""
        return scope in self.scopes or "*" in self.scopes


B = TypeVar("B")


class Ask(Struct, Generic[B], frozen=True):
    """One command to a rule: who asks, about which object, with which body.

    `fresh` is randomness that the handler made (new ids, secrets), so that rules make none;
    `limits` carries the daemon's settings a rule needs.
    """

    caller: Caller
    body: B
    id: str = ""
    fresh: str = ""
    limits: Any = None
