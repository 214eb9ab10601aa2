"""The console: pages for people, made on the daemon out of the same rules that the API calls.

No page decides anything and no page has SQL of its own: what it shows it reads as a caller, what
it does it submits as a caller, under the scope of the operation it stands for. It never trusts a
text it shows: templates escape everything, and the browser runs nothing but the console's files.
"""

from feltd.api import samples
from feltd.api.routes import Route
from feltd.console import (
    backlog,
    bulk,
    dead,
    docs,
    grants,
    history,
    holds,
    keys,
    login,
    overview,
    pools,
    static,
    stream,
    triggers,
    users,
    workers,
    workload,
    workloads,
)
from feltd.console.refused import refused_page

__all__ = ["ROUTES", "refused_page"]

ROUTES: tuple[Route, ...] = (
    *static.ROUTES,
    *login.ROUTES,
    *stream.ROUTES,
    *samples.ROUTES,
    *overview.ROUTES,
    *backlog.ROUTES,
    *workloads.ROUTES,
    *bulk.ROUTES,
    *workload.ROUTES,
    *dead.ROUTES,
    *triggers.ROUTES,
    *workers.ROUTES,
    *pools.ROUTES,
    *holds.ROUTES,
    *history.ROUTES,
    *keys.ROUTES,
    *grants.ROUTES,
    *users.ROUTES,
    *docs.ROUTES,
)
