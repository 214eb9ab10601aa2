"""Rows that nobody expects, as the console, the command line and the diagnostics show them."""

import re
import sqlite3
from contextlib import closing
from urllib.parse import urljoin, urlsplit

import pytest

from tests.daemon.load import crew
from tests.daemon.running import Daemon, create, feltd, people

#: Ends a session, or never ends.
LEAVES = ("/console/logout", "/console/stream")


def every_page(daemon: Daemon, gone: str = "") -> dict[str, str]:
    """Each page the console links to, by its path without what narrows it; all must answer.

    The page of `gone` alone may say that there is no such thing.
    """
    pages: dict[str, str] = {}
    ahead = ["/console"]
    while ahead:
        path = ahead.pop(0)
        place = urlsplit(path).path
        if place in pages or not place.startswith("/console") or place in LEAVES:
            continue
        if "/static/" in place:
            continue
        answer = daemon.call("GET", path, Accept="text/html")
        if gone and place.endswith(gone):
            assert (answer.status, "_NOT_FOUND" in answer.body) == (404, True)
            continue
        assert answer.status == 200, (path, answer.status, answer.body[:500])
        pages[place] = answer.body
        leads = re.findall(r'<a [^>]*href="([^"]+)"', answer.body)
        ahead += [urljoin(path, lead.replace("&amp;", "&")).partition("#")[0] for lead in leads]
    return pages


def tools(daemon: Daemon) -> dict[str, str]:
    """What each command of somebody who looks into it says."""
    env = {"FELTD_URL": daemon.url, "FELTD_KEY": daemon.key}
    said = {}
    for verb in (
        ("top", "--once"), ("doctor", "--json"), ("audit", "--json"),
        ("workload", "list", "--json"), ("worker", "list", "--json"),
        ("sql", "--data", str(daemon.data), "--json", "SELECT * FROM workloads"),
    ):  # fmt: skip
        ran = feltd(*verb, env=env)
        assert "Traceback" not in ran.stderr, (verb, ran.stderr)
        assert ran.stdout, (verb, ran.stderr)
        said[verb[0]] = ran.stdout
    return said


def test_pages_of_what_a_removed_worker_did(daemon: Daemon) -> None:
    """BC-099: its name stands where it did something, and leads nowhere that is a fault."""
    mesh = people(daemon)
    edge = crew(daemon, mesh, 1)[0]
    create(daemon, mesh, "done")
    create(daemon, mesh, "failed", retry_policy={"max_attempts": 1})
    given = create(daemon, mesh, "given", group="g")["workload_id"]
    claim = daemon.post(f"/v1/workloads/{given}/claim", {})
    assert edge.fenced("complete", claim, output=1, start=True).status == 200
    done, failed = edge.pull(max=2, start=True)
    assert edge.fenced("complete", done, output=1).status == 200
    assert edge.fenced("fail", failed, kind="permanent", message="no").status == 200
    daemon.post(f"/v1/workers/{edge.id}/drain", {"reason": "moved"})
    assert daemon.call("DELETE", f"/v1/workers/{edge.id}").status == 204
    pages = every_page(daemon, gone=edge.id)

    assert edge.id in pages[f"/console/workloads/{failed['workload_id']}"]
    tools(daemon)


WORDS = [
    ("workloads", "state = 'FUTURE', due = 0"),
    ("workers", "lifecycle = 'FUTURE', health = 'FUTURE', runtime = 'FUTURE'"),
]


@pytest.mark.parametrize(("table", "change"), WORDS)
def test_one_row_of_another_version_is_shown_and_hides_no_other(
    daemon: Daemon, table: str, change: str
) -> None:
    """BC-032: the pages, the questions and the diagnostics still answer."""
    mesh = people(daemon)
    bad, good = crew(daemon, mesh, 2)
    odd = create(daemon, mesh, "odd", group="g")["workload_id"]
    where = f"workload_id = '{odd}'" if table == "workloads" else f"worker_id = '{bad.id}'"
    with closing(sqlite3.connect(daemon.data, timeout=5)) as shell:
        # Every check has to be switched off first.
        shell.execute("PRAGMA ignore_check_constraints = ON")
        shell.execute("DROP TRIGGER workloads_keep_to_edges")
        shell.execute("DROP TRIGGER workers_keep_to_edges")
        shell.execute(f"UPDATE {table} SET {change} WHERE {where}")  # noqa: S608
        shell.commit()
    fine = create(daemon, mesh, "fine", priority=9)["workload_id"]
    whys = [f"/v1/workloads/{odd}/why", f"/v1/workers/{bad.id}/why", "/v1/diagnostics"]
    for path in whys:
        assert daemon.call("GET", path).status == 200, path

    pages = every_page(daemon)
    said = tools(daemon)

    shown = pages[f"/console/{table}/{odd if table == 'workloads' else bad.id}"]
    assert "FUTURE" in shown
    assert {f"/console/workloads/{fine}", f"/console/workers/{good.id}"} < set(pages)
    assert fine in said["workload"]
    assert good.id in said["worker"]
    told = daemon.check()
    assert (told.returncode, f"{table} " in told.stdout) == (1, True)
    assert "breaks CHECK" in told.stdout


def test_what_no_rule_can_read_is_one_part_less_of_what_is_told(daemon: Daemon) -> None:
    """BC-032, BC-096: the chain is shown as it stands, and diagnostics name what they lack."""
    mesh = people(daemon)
    edge = crew(daemon, mesh, 1)[0]
    create(daemon, mesh, "waits", capability_snapshot=[], definition_id="nobodys")
    with closing(sqlite3.connect(daemon.data, timeout=5)) as shell:
        # Every check has to be switched off first.
        shell.execute("PRAGMA ignore_check_constraints = ON")
        for name in ("audit_stays", "workers_keep_to_edges"):
            shell.execute(f"DROP TRIGGER {name}")
        shell.execute("UPDATE audit SET kind = 'FUTURE' WHERE seq = 2")
        broken = {"worker_id": edge.id}
        shell.execute(
            "UPDATE workers SET resource_profile = '{' WHERE worker_id = :worker_id", broken
        )
        shell.commit()

    rows = daemon.get("/v1/audit")["items"]
    assert [row["kind"] for row in rows if row["seq"] == 2] == ["FUTURE"]
    assert "audit 2" in daemon.check().stdout
    told = daemon.get("/v1/diagnostics")
    assert [(part, why.partition(":")[0]) for part, why in told["missing"].items()] == [
        ("checkup", "INTERNAL")
    ]
    assert told["rows"]["workers"] == 1
