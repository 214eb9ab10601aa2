"""The two lifecycles as tables: every edge there is, and nothing else.

The schema holds the same rows and refuses any other edge; tests/tidy compares both with each UPDATE
in the rules. BUSY is never stored: its rows answer `worker_transition` alone.
"""

#: (from, to, cause). `verb` is what worker_transition answers; the others have one owner each.
WORKER_EDGES: frozenset[tuple[str, str, str]] = frozenset(
    {
        ("REGISTERED", "READY", "verb"),
        ("READY", "BUSY", "verb"),
        ("BUSY", "READY", "verb"),
        ("READY", "DRAINING", "verb"),
        ("BUSY", "DRAINING", "verb"),
        ("DRAINING", "OFFLINE", "verb"),
        ("READY", "OFFLINE", "verb"),
        ("BUSY", "OFFLINE", "verb"),
        ("OFFLINE", "RECOVERING", "verb"),
        ("RECOVERING", "READY", "verb"),
        ("RECOVERING", "OFFLINE", "verb"),
        ("REGISTERED", "OFFLINE", "lost"),
        ("DRAINING", "READY", "resume"),
        ("READY", "REGISTERED", "register"),
        ("DRAINING", "REGISTERED", "register"),
        ("OFFLINE", "REGISTERED", "register"),
        ("RECOVERING", "REGISTERED", "register"),
    }
)

#: (from, to); '' is creation.
WORKLOAD_EDGES: frozenset[tuple[str, str]] = frozenset(
    {
        ("", "PENDING"),
        ("", "READY"),
        ("", "DEAD_LETTERED"),
        ("PENDING", "READY"),
        ("PENDING", "DEAD_LETTERED"),
        ("PENDING", "CANCELLED"),
        ("READY", "CLAIMED"),
        ("READY", "DEAD_LETTERED"),
        ("READY", "CANCELLED"),
        ("CLAIMED", "RUNNING"),
        ("CLAIMED", "READY"),
        ("CLAIMED", "DEAD_LETTERED"),
        ("CLAIMED", "CANCELLED"),
        ("RUNNING", "CHECKPOINTED"),
        ("RUNNING", "COMPLETED"),
        ("RUNNING", "READY"),
        ("RUNNING", "DEAD_LETTERED"),
        ("RUNNING", "CANCELLED"),
        ("CHECKPOINTED", "COMPLETED"),
        ("CHECKPOINTED", "READY"),
        ("CHECKPOINTED", "DEAD_LETTERED"),
        ("CHECKPOINTED", "CANCELLED"),
        ("DEAD_LETTERED", "READY"),
        ("DEAD_LETTERED", "PENDING"),
        ("DEAD_LETTERED", "CANCELLED"),
    }
)

WORKER_LIFECYCLES = ("REGISTERED", "READY", "BUSY", "DRAINING", "OFFLINE", "RECOVERING")
WORKLOAD_STATES = (
    "PENDING",
    "READY",
    "CLAIMED",
    "RUNNING",
    "CHECKPOINTED",
    "COMPLETED",
    "DEAD_LETTERED",
    "CANCELLED",
)
LIVE_STATES = frozenset({"CLAIMED", "RUNNING", "CHECKPOINTED"})
FINAL_STATES = frozenset({"COMPLETED", "CANCELLED"})


def worker_transition(from_lifecycle: str, to_lifecycle: str) -> bool:
    """Whether the verb `transition` has this edge: exactly eleven pairs, no pair with itself."""
    return (from_lifecycle, to_lifecycle, "verb") in WORKER_EDGES
