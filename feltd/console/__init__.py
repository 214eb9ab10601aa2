"""The console: pages for people, made on the daemon out of the same rules that the API calls.

No page decides anything and no page has SQL of its own: what it shows it reads as a caller, what
it does it submits as a caller, under the scope of the operation it stands for. It never trusts a
text it shows: templates escape everything, and the browser runs nothing but the console's files.
"""

from feltd.api.routes import Route
from feltd.console import (
    dead,
    docs,
    grants,
    history,
    holds,
    keys,
    overview,
    pools,
    static,
    triggers,
    users,
    workers,
)
from feltd.console.refused import refused_page

__all__ = ["ROUTES", "refused_page"]

ROUTES: tuple[Route, ...] = (
    *static.ROUTES,
    *overview.ROUTES,
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
