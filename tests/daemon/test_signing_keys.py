"""Signing keys change under a running daemon: tokens go on, or end with what they proved."""

import json
import time
from collections.abc import Callable

from tests.daemon.running import Daemon, Edge, create, feltd, people

#: Far above a round of the keeper.
PATIENCE_S = 30.0


def kids(daemon: Daemon) -> list[dict[str, str]]:
    told = feltd("signing-key", "list", "--data", str(daemon.data), "--json")
    assert told.returncode == 0, told.stderr
    return list(json.loads(told.stdout))


def until(seen: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < end
        time.sleep(0.05)


def token_of(daemon: Daemon) -> str:
    """The token of the crew's grant, made anew from its row."""
    [grant] = [one for one in daemon.get("/v1/grants")["items"] if one["subject"]["id"] == "crew"]
    return str(daemon.get(f"/v1/grants/{grant['id']}")["token"])


def rotate(daemon: Daemon) -> str:
    """Rotate, wait until the daemon signs by the new key, answer the kid of the old."""
    before = token_of(daemon)
    told = feltd("signing-key", "rotate", "--data", str(daemon.data))
    assert told.returncode == 0, told.stderr
    until(lambda: token_of(daemon) != before)
    return before.partition(".")[0]


def test_a_rotation_under_work_ends_nothing(daemon: Daemon) -> None:
    """The old key still verifies: the worker registers again by its old token, and works on."""
    mesh = people(daemon)
    token = token_of(daemon)
    worker = Edge(daemon, "steady", mesh.registrar_key, authorization_grant=token)
    assert worker.beat().status == 200
    work = create(daemon, mesh, "one")
    [claim] = worker.pull()
    old = rotate(daemon)
    assert [(one["kid"] == old, one["status"]) for one in kids(daemon)] == [
        (False, "active"),
        (True, "verify"),
    ]
    again = Edge(daemon, "steady", mesh.registrar_key, authorization_grant=token)
    assert again.id == worker.id
    assert again.fenced("start", claim).status == 200
    assert again.fenced("complete", claim, output=1).status == 200
    assert daemon.get(f"/v1/workloads/{work['workload_id']}")["state"] == "COMPLETED"


def test_a_retired_key_takes_what_it_proved(daemon: Daemon) -> None:
    """Claims of the worker that showed its token end; one under a bound grant works on."""
    mesh = people(daemon)
    token = token_of(daemon)
    shown = Edge(daemon, "shown", mesh.registrar_key, authorization_grant=token)
    bound = Edge(daemon, "bound", mesh.registrar_key)
    held = {}
    for worker in (shown, bound):
        assert worker.beat().status == 200
        work = create(daemon, mesh, worker.body["name"])
        [claim] = worker.pull()
        assert claim["workload_id"] == work["workload_id"]
        assert worker.fenced("start", claim).status == 200
        held[worker.id] = claim
    old = rotate(daemon)
    retired = feltd("signing-key", "retire", "--data", str(daemon.data), old)
    assert retired.returncode == 0, retired.stderr
    until(lambda: shown.beat().status == 401)
    refused = shown.fenced("complete", held[shown.id], output=1)
    assert refused.status == 401
    assert refused.body["reasons"][0]["code"] == "grant_ended"
    path = f"/v1/workloads/{held[shown.id]['workload_id']}"
    until(lambda: bool(daemon.get(path)["state"] == "READY"))
    assert daemon.get(path)["attempts"][-1]["end"] == "authority_lost"
    # The old token opens nothing; a new one of the same grant does.
    body = shown.body | {"authorization_grant": token}
    denied = daemon.call("POST", "/v1/workers", body, key=mesh.registrar_key)
    assert (denied.status, denied.body["code"]) == (403, "WORKER_UNAUTHORIZED")
    back = Edge(daemon, "shown", mesh.registrar_key, authorization_grant=token_of(daemon))
    assert back.beat().status == 200
    [again] = back.pull()
    assert again["workload_id"] == held[shown.id]["workload_id"]
    assert bound.fenced("complete", held[bound.id], output=1).status == 200
    assert daemon.check().returncode == 0


def test_a_key_retired_while_nobody_serves_takes_it_at_the_start(daemon: Daemon) -> None:
    mesh = people(daemon)
    shown = Edge(daemon, "shown", mesh.registrar_key, authorization_grant=token_of(daemon))
    assert shown.beat().status == 200
    old = kids(daemon)[0]["kid"]
    assert daemon.stop() == 0
    for words in (("rotate",), ("retire", old)):
        assert feltd("signing-key", *words, "--data", str(daemon.data)).returncode == 0
    daemon.start()
    assert shown.beat().status == 401
    assert daemon.check().returncode == 0


def test_what_the_file_does_not_hold_is_refused_and_changes_nothing(daemon: Daemon) -> None:
    file = daemon.data.with_name("signing.keyring")
    before = file.read_bytes()
    active = kids(daemon)[0]["kid"]
    for kid, told in ((active, "rotate first"), ("nobody", "holds no key nobody")):
        refused = feltd("signing-key", "retire", "--data", str(daemon.data), kid)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert told in refused.stderr
    assert file.read_bytes() == before


def test_a_spoilt_file_is_told_and_the_keys_in_memory_go_on(daemon: Daemon) -> None:
    mesh = people(daemon)
    token = token_of(daemon)
    file = daemon.data.with_name("signing.keyring")
    whole = file.read_bytes()

    def told() -> bool:
        reasons = daemon.get("/health")["reasons"]
        return any(one["code"] == "KEYRING_UNREADABLE" for one in reasons)

    file.write_bytes(b"{}")
    until(told)
    assert Edge(daemon, "w", mesh.registrar_key, authorization_grant=token).beat().status == 200
    file.write_bytes(whole)
    until(lambda: not told())


def test_health_says_ahead_what_will_end_and_stays_healthy(daemon: Daemon) -> None:
    """The reason is there within the first round of a start, and degrades nothing."""
    soon_ms = int(time.time() * 1_000) + 3 * 86_400_000
    daemon.post("/v1/keys", {"name": "short", "tenants": ["t"], "expires_at_ms": soon_ms})
    daemon.stop()
    daemon.start()
    told = daemon.get("/health")
    [reason] = told["reasons"]
    assert (told["status"], reason["code"]) == ("healthy", "EXPIRING")
    assert "within 7 days end 1 key:" in reason["detail"]
