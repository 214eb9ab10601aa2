"""What `--for` means: the scopes of the usual kinds of keys, and those of a key that names none."""

#: Scopes of a new key whose maker names none.
SCOPES_DEFAULT = ("events:read", "state:read", "state:write")
NAMESPACES_DEFAULT = ("default",)

_READS = (
    "audit:read",
    "events:read",
    "metrics:read",
    "state:read",
    "triggers:read",
    "workers:read",
    "workloads:read",
)

PRESETS: dict[str, tuple[str, ...]] = {
    # Creates work under its grant and reads what came of it.
    "submitter": ("events:read", "workloads:create", "workloads:read"),
    # All a worker process needs to start; it gets its own key when it registers.
    "registrar": ("workers:register",),
    "operator": (
        *_READS,
        "daemon:operate",
        "pools:write",
        "state:write",
        "triggers:write",
        "workers:operate",
        "workloads:create",
        "workloads:operate",
    ),
    "viewer": _READS,
    "metrics": ("metrics:read",),
    "backup": ("backup:admin",),
    # A third system that asks whether a token is the newest before it takes a write.
    "sink": ("claims:validate",),
}
