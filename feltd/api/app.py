"""The application: every route of every noun in one table, and what the handlers are given.

Nothing is decided here. The daemon builds the context, this file puts the table and the context
into the stack of layers.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from feltd.api import (
    audit,
    auth,
    backups,
    changes,
    claims,
    compactions,
    consumers,
    diagnostics,
    edits,
    events,
    fences,
    grants,
    groups,
    health,
    holds,
    keys,
    metrics,
    placements,
    pools,
    records,
    reference,
    transactions,
    triggers,
    upgrade,
    users,
    why,
    workers,
    workloads,
)
from feltd.api.backups import Backups
from feltd.api.bulkruns import Runs
from feltd.api.channels import Channels
from feltd.api.dispatch import RefusedPage
from feltd.api.door import Door
from feltd.api.forwarded import behind_proxy
from feltd.api.health import Health, Shared
from feltd.api.metrics import Metrics
from feltd.api.passwords import Passwords
from feltd.api.polls import Polls
from feltd.api.routes import Route
from feltd.api.samples import Samples
from feltd.api.stack import Stack, StackSettings, build
from feltd.api.stream import Streams
from feltd.clock import LeaseClock
from feltd.config import Config
from feltd.identity.keyring import Keyring
from feltd.identity.throttle import Throttle
from feltd.model.diagnostics import Diagnostics
from feltd.store.probe import Probe
from feltd.store.readers import Readers
from feltd.store.tx import Row
from feltd.store.writer import Writer


@dataclass(kw_only=True)
class Context:
    """What a handler reaches as `request.app`; one for the daemon."""

    config: Config
    clock: LeaseClock
    writer: Writer
    readers: Readers
    keyring: Keyring
    door: Door
    polls: Polls
    stop: asyncio.Event
    metrics: Metrics
    health: Health
    probe: Probe
    readiness: Shared[Row]
    schema_version: int
    #: What people's passwords are compared in, and who has to wait before he tries another.
    passwords: Passwords = field(default_factory=Passwords)
    throttle: Throttle = field(default_factory=Throttle)
    stack: Stack = field(init=False)
    streams: Streams = field(init=False)
    open_channels: Channels = field(init=False)
    event_pages: events.Pages = field(init=False)
    change_pages: changes.Pages = field(init=False)
    #: What the console remembers: samples for plots, and the bulk changes it loops.
    samples: Samples = field(init=False)
    bulk_runs: Runs = field(init=False)
    #: What clears history; the daemon's.
    compactor: compactions.Compactor = field(init=False)
    #: How many connections are open, and how many of them are channels of workers.
    connections: Callable[[], int] = lambda: 0
    channels: Callable[[], int] = lambda: 0
    #: What makes backups; the daemon's.
    backups: Backups = field(init=False)
    #: Age of the newest verified backup, seconds; -1: there is none.
    backup_age_s: Callable[[], float] = lambda: -1.0
    #: The last lines of the log, and where each setting came from, for the diagnostics.
    log_lines: Callable[[], list[str]] = list
    config_from: Mapping[str, str] = field(default_factory=dict)
    diagnosis: Shared[Diagnostics] = field(init=False)


def routes(config: Config) -> tuple[Route, ...]:
    """Every route this daemon answers."""
    return (
        *health.ROUTES,
        *metrics.routes(config.metrics_open),
        *reference.ROUTES,
        *keys.ROUTES,
        *auth.ROUTES,
        *users.ROUTES,
        *grants.ROUTES,
        *workers.ROUTES,
        *pools.ROUTES,
        *workloads.ROUTES,
        *edits.ROUTES,
        *groups.ROUTES,
        *claims.ROUTES,
        *upgrade.ROUTES,
        *holds.ROUTES,
        *fences.ROUTES,
        *placements.ROUTES,
        *why.ROUTES,
        *triggers.ROUTES,
        *events.ROUTES,
        *audit.ROUTES,
        *records.ROUTES,
        *transactions.ROUTES,
        *changes.ROUTES,
        *consumers.ROUTES,
        *compactions.ROUTES,
        *backups.ROUTES,
        *diagnostics.ROUTES,
    )


def application(
    context: Context,
    lifespan: Any = None,
    *,
    extra: Iterable[Route] = (),
    refused_page: RefusedPage | None = None,
) -> Stack:
    """The ASGI application over `context`, which holds it as `stack` afterwards.

    `extra` are the console's routes, `refused_page` writes its refusals.
    """
    config = context.config
    context.streams = Streams(context.stop)
    context.open_channels = channels = Channels(context.stop)
    context.channels = lambda: channels.open
    context.samples = Samples(context.metrics, context.readers)
    context.bulk_runs = Runs(context.writer, context.readers, context.stop)
    context.metrics.on_fence_refused = partial(context.polls.told, "fence", "")
    context.diagnosis = Shared(partial(diagnostics.diagnose, context), shared_ms=0)
    context.event_pages = events.Pages(context.readers, context.polls)
    context.change_pages = changes.Pages(context.readers, context.polls)
    context.stack = build(
        (*routes(config), *extra),
        app=context,
        authenticate=behind_proxy(config.trust_proxy, context.door.authenticate),
        stop=context.stop,
        settings=StackSettings(
            max_in_flight=config.max_in_flight,
            request_deadline_ms=config.request_deadline_ms,
            body_deadline_ms=config.body_deadline_ms,
            allowed_origins=config.allowed_origins,
            loopback_only=config.no_auth,
            trust_proxy=config.trust_proxy,
            calls_per_address_max=config.max_connections_per_address,
        ),
        observer=context.metrics,
        lifespan=lifespan,
        refused_page=refused_page,
    )
    return context.stack
