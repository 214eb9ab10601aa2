"""`feltd trigger` as it is typed: the seed's shapes, beside a daemon and without one."""

import json
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from feltd.cli.main import run
from tests.cli.conftest import Typed
from tests.daemon.running import Daemon

_numbers = count(1)


class Inside:
    """The same command line without a process of its own for each."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = run([*words])
        told = self._capsys.readouterr()
        return code, told.out, told.err

    def ok(self, *words: str) -> str:
        code, out, err = self(*words)
        assert code == 0, (words, out, err)
        return out


@pytest.fixture
def inside(
    daemon: Daemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Inside:
    monkeypatch.setenv("FELTD_DATA", str(daemon.data))
    monkeypatch.chdir(tmp_path)
    return Inside(tmp_path, capsys)


def definition(folder: Path, tenant: str, **members: Any) -> str:
    """A file that defines a trigger of its own; its path."""
    number = next(_numbers)
    told = {
        "trigger_id": f"t{number}",
        "tenant_id": tenant,
        "application_id": "docs",
        "source_collection": "orders",
        "change_kind": "any",
        "target_capability": "extract",
        **members,
    }
    path = folder / f"trigger-{number}.json"
    path.write_text(json.dumps(told))
    return str(path)


def put(daemon: Daemon, tenant: str, record_id: str, value: object) -> None:
    path = f"/v1/collections/orders/records/{record_id}"
    assert daemon.call("PUT", path, value, X_Feltd_Tenant=tenant).status in (200, 201)


def test_alone_it_lists_and_define_prints_the_whole_list(inside: Inside) -> None:
    tenant = f"cli-trigger-{next(_numbers)}"
    first = definition(inside.folder, tenant, trigger_id="first")
    second = definition(inside.folder, tenant, trigger_id="second")

    one = json.loads(inside.ok("trigger", "define", "--input", first, "--tenant", tenant))
    both = json.loads(inside.ok("trigger", "define", "--input", second, "--tenant", tenant))

    assert [it["trigger_id"] for it in one] == ["first"]
    assert [it["trigger_id"] for it in both] == ["second", "first"]
    assert json.loads(inside.ok("trigger", "--tenant", tenant)) == both
    assert json.loads(inside.ok("trigger", "list", "--tenant", tenant)) == both
    assert json.loads(inside.ok("trigger", "--tenant", tenant, "list")) == both
    assert json.loads(inside.ok("trigger", "--json", "--tenant", tenant)) == both


def test_status_and_evaluate_have_the_seeds_shapes(inside: Inside, daemon: Daemon) -> None:
    tenant = f"cli-trigger-{next(_numbers)}"
    path = definition(inside.folder, tenant, trigger_id="ship")
    inside.ok("trigger", "define", "--input", path, "--tenant", tenant)
    put(daemon, tenant, "a", 1)

    produced = json.loads(inside.ok("trigger", "evaluate", "--tenant", tenant))
    status = json.loads(inside.ok("trigger", "status", "--tenant", tenant))

    # The keeper may have been quicker: then there is nothing left to make.
    assert [(it["trigger_id"], it["seq"]) for it in produced] in ([], [("ship", 1)])
    assert (status["triggers"], status["cursors"]) == (1, {"ship": 1})
    assert (status["lag"], status["head"], status["disabled"]) == (0, 1, {})


def test_the_other_verbs_show_what_became_of_it(inside: Inside) -> None:
    tenant = f"cli-trigger-{next(_numbers)}"
    whose = ("--tenant", tenant)
    path = definition(inside.folder, tenant, trigger_id="ship")
    inside.ok("trigger", "define", "--input", path, *whose)

    off = json.loads(inside.ok("trigger", "disable", "ship", "--reason", "a release", *whose))
    assert off["disabled"]["reason"] == "a release"
    assert json.loads(inside.ok("trigger", "show", "ship", *whose)) == off
    assert json.loads(inside.ok("trigger", "enable", "ship", *whose))["enabled"]
    assert json.loads(inside.ok("trigger", "preview", "ship", *whose))["looked_at"] == 0
    gone = json.loads(inside.ok("trigger", "delete", "ship", *whose))
    assert gone == {"trigger_id": "ship", "deleted": True}
    code, _, err = inside("trigger", "show", "ship", *whose)
    assert (code, err.startswith("TRIGGER_NOT_FOUND")) == (1, True)
    assert "feltd trigger list" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("define",), "trigger define requires --input trigger.json"),
        (("define", "--input", "not-there.json"), "there is no file not-there.json"),
        (("define", "--input", "/dev/zero"), "has more than 16777216 bytes"),
        (("frobnicate",), "trigger <define|list|status|evaluate|"),
        (("show",), "Missing argument"),
    ],
)
def test_what_is_mistyped_is_exit_2(inside: Inside, words: tuple[str, ...], told: str) -> None:
    code, out, err = inside("trigger", *words)

    assert (code, out) == (2, "")
    assert told in err


def test_what_does_not_fit_says_so(inside: Inside) -> None:
    tenant = f"cli-trigger-{next(_numbers)}"
    path = definition(inside.folder, tenant, predicate={"op": "eq"})
    code, out, err = inside("trigger", "define", "--input", path)
    assert (code, out) == (1, "")
    assert err.startswith("TRIGGER_INVALID: /predicate/field: is required")
    (inside.folder / "broken.json").write_text("{")
    code, _, err = inside("trigger", "define", "--input", "broken.json")
    assert (code, "is not JSON" in err) == (2, True)


def test_without_a_daemon_the_same_rules_run_under_the_lock(tmp_path: Path) -> None:
    """H26: what the command makes is told by the command, not made behind its back."""
    daemon = Daemon(tmp_path / "feltd.db", "--tick-ms", "50").init().start()
    whose = Typed(tmp_path, FELTD_DATA=str(daemon.data))
    off = definition(tmp_path, "acme", trigger_id="ship", enabled=False)
    on = definition(tmp_path, "acme", trigger_id="ship")
    whose.ok("trigger", "define", "--input", off)
    for number in range(3):
        put(daemon, "acme", f"r{number}", number)
    daemon.stop()

    listed = json.loads(whose.ok("trigger", "define", "--input", "-", given=Path(on).read_text()))
    produced = json.loads(whose.ok("trigger", "evaluate"))

    assert [(it["enabled"], it["lag"]) for it in listed] == [(True, 3)]
    assert [(it["trigger_id"], it["seq"]) for it in produced] == [("ship", n) for n in (1, 2, 3)]
    with closing(sqlite3.connect(daemon.data)) as shell:
        made = shell.execute("SELECT workload_id FROM workloads ORDER BY seq").fetchall()
    assert [it["workload_id"] for it in produced] == [row[0] for row in made]
    assert daemon.check().returncode == 0
