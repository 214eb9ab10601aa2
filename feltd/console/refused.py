"""A refusal as a page: the code, what it means, what to do next, and where the log has it."""

from urllib.parse import quote

from feltd.api import problems
from feltd.api.explain import EXPLANATIONS
from feltd.api.request import Request, Scope
from feltd.console import frame
from feltd.errors import Refused

LOGIN = "/console/login"
#: Title and next step where the API speaks of keys and paths to programs.
FOR_PEOPLE = {
    "ROUTE_NOT_FOUND": ("No such page", "The console has no such page: begin at the overview."),
    "WORKLOAD_NOT_FOUND": (
        "No such workload",
        "Check the id; it may be cleared away after its retention, or another tenant's.",
    ),
    "WORKER_NOT_FOUND": (
        "No such worker",
        "Check the id; it may be removed after long silence, or another tenant's.",
    ),
    "FORBIDDEN": (
        "Your role does not allow this",
        "Ask an administrator for a role that does; the overview leads to what yours shows.",
    ),
}


def refused_page(scope: Scope, request: Request | None, refused: Refused) -> problems.Rendered:
    """Status, body and headers. Who is not logged in and asks for a page is shown the login.

    Without a request (no route was found) nobody is known, and nothing is told about anybody.
    """
    reads = scope["method"] in ("GET", "HEAD")
    partial = any(name == b"hx-request" for name, _ in scope["headers"])
    status, _, facts = problems.render(refused, scope["feltd.request_id"])
    kept = [pair for pair in facts if pair[0] not in (b"content-type", b"content-length")]
    if refused.code == "UNAUTHENTICATED":
        if partial:
            # The page that asked for its own part shall load again, and be led to the login.
            return 401, b"", [*frame.HEADERS, (b"hx-refresh", b"true"), (b"content-length", b"0")]
        if reads:
            answer = frame.go(f"{LOGIN}?next={quote(_wanted(scope), safe='')}")
            return answer.status, answer.body, answer.headers
    title, next_step = FOR_PEOPLE.get(
        refused.code, (refused.row.title, EXPLANATIONS[refused.code].remedy)
    )
    body = frame.refusal(
        request,
        status=status,
        code=refused.code,
        title=title,
        detail=refused.detail,
        next_step=next_step,
        reasons=refused.facts.get("reasons") or (),
        errors=refused.facts.get("errors") or (),
        request_id=scope["feltd.request_id"],
        path=scope["path"],
    )
    length = (b"content-length", b"%d" % len(body))
    return status, body, [*frame.HEADERS, length, *kept]


def _wanted(scope: Scope) -> str:
    query = bytes(scope["query_string"]).decode("latin-1")
    raw = bytes(scope.get("raw_path") or b"").decode("latin-1") or quote(str(scope["path"]))
    return f"{raw}?{query}" if query else raw
