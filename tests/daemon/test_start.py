"""What a start concludes from the ledger, the mark and the tail of the WAL."""

import socket
from typing import Any

import pytest

from feltd.api.health import CLEAN, RECOVERED
from feltd.config import Config, ConfigProblem
from feltd.daemon.start import find, refuse_open_socket, rolled_back
from feltd.store.sidecar import Mark
from feltd.store.walfile import Tail

HEAD = "a" * 64
MARK = Mark(
    boot="b",
    commit_seq=10,
    audit_head=f"7:{HEAD}",
    lease_ms=5,
    ceiling=9,
    clean=True,
    database="instance_1",
)


def ledger(**members: Any) -> Any:
    return {"instance_id": "instance_1", "commit_seq": 10, "served_at_ms": 1} | members


def changed(**members: Any) -> Mark:
    return Mark(**({name: getattr(MARK, name) for name in MARK.__struct_fields__} | members))


def test_a_continuation_is_clean() -> None:
    found = find(ledger(), MARK, None, HEAD)
    assert (found.label, found.detail, found.last_stop) == (CLEAN, None, CLEAN)
    ahead = find(ledger(commit_seq=14), changed(clean=False), None, HEAD)
    assert (ahead.label, ahead.last_stop) == (CLEAN, "unclean")


def test_a_database_that_never_served_needs_no_mark() -> None:
    found = find(ledger(served_at_ms=None), None, None, None)
    assert (found.label, found.last_stop) == (CLEAN, CLEAN)


@pytest.mark.parametrize(
    ("stored", "mark", "head", "missing"),
    [
        (ledger(commit_seq=7), MARK, "", 3),
        (ledger(), None, None, None),
        (ledger(), changed(database="instance_2"), HEAD, None),
        (ledger(), MARK, "b" * 64, None),
        (ledger(), MARK, "", None),
    ],
    ids=["older", "no mark", "another's mark", "another history", "no such audit row"],
)
def test_a_rolled_back_database_is_known(
    stored: Any, mark: Mark | None, head: str | None, missing: int | None
) -> None:
    found = find(stored, mark, None, head)
    assert rolled_back(found)
    assert found.label == RECOVERED
    assert found.detail == {"missing_commits": missing}


def test_a_socket_handed_in_is_held_to_the_rule_of_the_host() -> None:
    for host, open_to_all in (("127.0.0.1", False), ("0.0.0.0", True)):
        with socket.create_server((host, 0)) as handed:
            fd = handed.fileno()
            if open_to_all:
                with pytest.raises(ConfigProblem, match=f"--fd {fd}, bound to 0.0.0.0 is outside"):
                    refuse_open_socket(Config(fd=fd), fd, "--fd")
                refuse_open_socket(Config(fd=fd, insecure_http=True), fd, "--fd")
            else:
                refuse_open_socket(Config(fd=fd), fd, "--fd")


def test_a_torn_tail_is_told_with_its_place_and_ends_no_claim() -> None:
    found = find(ledger(), changed(clean=False), Tail(4_152, 40), HEAD)
    assert found.label == RECOVERED
    assert found.detail == {"byte_offset": 4_152, "discarded_bytes": 40}
    assert not rolled_back(found)
