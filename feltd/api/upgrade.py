"""How a connection becomes a worker's channel: the handshake, and what is refused before it.

What is refused here is refused over HTTP, as for any call; once upgraded, close codes say it.
"""

from feltd.api.channel import OPERATION, Channel
from feltd.api.claiming import INVALID
from feltd.api.dispatch import Authenticate
from feltd.api.forwarded import own_origin
from feltd.api.request import Reply, Request, Send
from feltd.api.routes import Route
from feltd.api.stream import stopping
from feltd.api.websocket import STRANGER
from feltd.errors import Refused

PROTOCOL = "feltd.v1"


async def upgrade_required(_request: Request) -> Reply:
    """GET /v1/workers/{id}/channel without an upgrade."""
    raise Refused("UPGRADE_REQUIRED", f"this is a WebSocket with the subprotocol {PROTOCOL}")


async def open_channel(request: Request, send: Send, authenticate: Authenticate) -> None:
    """GET /v1/workers/{id}/channel: what is refused here is refused over HTTP."""
    _check_handshake(request)
    # A page in a browser may open a WebSocket anywhere, and its cookie would come along.
    kept = [pair for pair in request.scope["headers"] if pair[0] != b"cookie"]
    request.scope["headers"] = kept
    known = request.header(b"authorization") is not None or request.app.config.no_auth
    if known:
        await authenticate(request)
    if request.app.stop.is_set():
        raise stopping()
    await request.receive()
    accept = {"type": "websocket.accept", "subprotocol": PROTOCOL, "headers": []}
    await send(accept | {STRANGER: not known})
    # Hours of an open channel are no time to an answer: they are counted under another name.
    request.scope["feltd.operation"] += "_stream"
    request.scope["feltd.streamed"] = True
    await Channel(request, send, authenticate).run(known=known)


def _check_handshake(request: Request) -> None:
    offered = request.scope.get("subprotocols") or ()
    if PROTOCOL not in offered:
        raise Refused(
            "PROTOCOL_UNSUPPORTED",
            f"name {PROTOCOL} in Sec-WebSocket-Protocol",
            supported=[PROTOCOL],
        )
    origin = request.header(b"origin")
    allowed = request.app.config.allowed_origins
    if origin is not None and origin.lower() not in (own_origin(request.scope), *allowed):
        raise Refused("FORBIDDEN", "the Origin must be the daemon's own or an allowed one")


ROUTES = (
    Route(
        method="GET",
        path="/v1/workers/{id}/channel",
        operation=OPERATION,
        tag="claim",
        handler=upgrade_required,
        socket=open_channel,
        summary="Exchanges over a WebSocket (feltd.v1); work, cancels and drains are pushed",
        auth="worker",
        status=101,
        invalid_code=INVALID,
        responses={
            101: "Switching to the subprotocol feltd.v1: text frames, JSON. "
            'The client sends {"id", …exchange}, several in flight, and gets {"id", …answer}; '
            'what it is told unasked comes as {"push": {…}}',
            426: "UPGRADE_REQUIRED: call it as a WebSocket",
        },
    ),
)
