"""What is known of triggers and schedules: each definition, and each refusal, is the law's."""

from typing import Any

from msgspec import UNSET, convert

from feltd.model.trigger import Define
from tests.sim.books import SENT, Books, Rota, Wish
from tests.sim.calls import Call
from tests.sim.history import History, Violation


def defined(history: History, call: Call, code: str) -> None:
    """A definition was accepted, or refused."""
    body = call.cmd.body.define
    tenant_id = call.caller.tenants[0]
    books = history.books.setdefault(tenant_id, Books())
    if code == "TRIGGER_STATE_REPLAY_FAILED":
        known = books.wishes.get(body.trigger_id)
        start = body.start if isinstance(body.start, int) else None
        if not (start is not None and start < books.floor) and (
            known is None or known.cursor >= books.floor
        ):
            raise Violation(f"{body} was refused {code}, the log is cut up to {books.floor}")
    if code:
        return
    application_id = call.answer[0].application_id
    if body.kind == "schedule":
        _scheduled(books, body, application_id)
    else:
        _wished(books, body, application_id)


def _scheduled(books: Books, body: Define, application_id: str) -> None:
    known = books.rotas.get(body.trigger_id)
    assert body.every_ms is not None
    books.moved_rotas = books.moved_rotas or known is not None
    rota = Rota(application_id, body.every_ms, body.missed or "skip", body.overlap or "allow")
    if known is not None:
        rota.last_ms, rota.last_workload_id = known.last_ms, known.last_workload_id
    books.rotas[body.trigger_id] = rota


def _wished(books: Books, body: Define, application_id: str) -> None:
    known = books.wishes.get(body.trigger_id)
    if body.start is not UNSET or known is None:
        books.moved.add(body.trigger_id)
    assert body.source_collection is not None
    assert body.change_kind is not None
    predicate = next(name for name, sent in SENT.items() if _same(sent, body.predicate))
    cursor = books.head if known is None else known.cursor
    books.wishes[body.trigger_id] = Wish(
        application_id, body.source_collection, body.change_kind, predicate, cursor
    )


def _same(sent: Any, predicate: Any) -> bool:
    if sent is None or predicate is None:
        return sent is predicate
    return bool(convert(sent, type(predicate)) == predicate)


def enabled(history: History, call: Call, code: str) -> None:
    """A trigger goes on, unless what it has not judged is gone."""
    books = history.books.setdefault(call.cmd.body.tenant_id, Books())
    known = books.wishes.get(call.cmd.id)
    if code != "TRIGGER_STATE_REPLAY_FAILED":
        return
    if known is None or known.cursor >= books.floor:
        raise Violation(f"{call.cmd.id} was refused {code}: {known}, floor {books.floor}")


def deleted(history: History, call: Call, code: str) -> None:
    """A trigger is no more."""
    books = history.books.setdefault(call.cmd.body.tenant_id, Books())
    if not code:
        books.wishes.pop(call.cmd.id, None)
        books.rotas.pop(call.cmd.id, None)
