"""Pipelines run in a test by hand: what they ask is answered from a dictionary of records."""

from typing import Any

from feltd.executor import pipeline
from feltd.executor.steps import Failed, compiled

Shelf = dict[tuple[str, str], Any]


def program(*steps: dict[str, Any]) -> dict[str, Any]:
    """A pipeline of these steps."""
    return {"runtime": "pipeline", "steps": list(steps)}


def ref(path: Any, **more: Any) -> dict[str, Any]:
    """A reference."""
    return {"$": path, **more}


def outcome(shelf: Shelf, given: Any, *steps: dict[str, Any]) -> list[Any]:
    """The output of a program over a shelf of records, which it may change. Raises Failed."""
    running = pipeline.run(compiled(program(*steps)), given)
    try:
        asked = next(running)
        while True:
            asked = running.send(_answer(shelf, asked))
    except StopIteration as ended:
        output: list[Any] = ended.value
        return output


def status(shelf: Shelf, given: Any, *steps: dict[str, Any]) -> int:
    """The status a program fails with."""
    try:
        outcome(shelf, given, *steps)
    except Failed as failed:
        return failed.status
    raise AssertionError("it did not fail")


def _answer(shelf: Shelf, asked: dict[str, Any]) -> Any:
    collection = asked["collection"]
    if asked["op"] == "search":
        found = [
            {"id": one, "value": value}
            for (place, one), value in sorted(shelf.items())
            if place == collection and asked["query"] in str(value)
        ]
        items = found[: asked["limit"]]
        return {"items": items, "complete": len(items) == len(found), "next_cursor": None}
    key = (collection, asked["id"])
    if asked["op"] != "get":
        shelf[key] = asked["value"]
    return {"id": asked["id"], "value": shelf[key]} if key in shelf else None
