"""What a worker process imports."""

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
