"""What a worker process imports.

Each name is loaded when it is first asked for: a program that needs only a refusal's shape, as most
commands do, is not kept waiting for the HTTP client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feltd.worker.client import AsyncClient, Client
    from feltd.worker.context import AsyncContext, Context
    from feltd.worker.failures import Fenced, Permanent, Transient
    from feltd.worker.fence import FileFence, PostgresFence, SqliteFence, StaleFence
    from feltd.worker.refusal import Refusal, Unreachable
    from feltd.worker.worker import Worker

__all__ = [
    "AsyncClient",
    "AsyncContext",
    "Client",
    "Context",
    "Fenced",
    "FileFence",
    "Permanent",
    "PostgresFence",
    "Refusal",
    "SqliteFence",
    "StaleFence",
    "Transient",
    "Unreachable",
    "Worker",
]

_HOMES = {
    "client": ("AsyncClient", "Client"),
    "context": ("AsyncContext", "Context"),
    "failures": ("Fenced", "Permanent", "Transient"),
    "fence": ("FileFence", "PostgresFence", "SqliteFence", "StaleFence"),
    "refusal": ("Refusal", "Unreachable"),
    "worker": ("Worker",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
