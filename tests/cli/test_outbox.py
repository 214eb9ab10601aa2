"""The outbox of the README is run as it stands there: a row is one workload, whatever is lost."""

import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import PATIENCE_S, Typed
from tests.daemon.running import Daemon
from tests.tidy.source import ROOT

OF = ("--tenant", "shop", "--application", "outbox")


def block(language: str) -> str:
    """The one code block of that language in the section on the outbox."""
    text = (ROOT / "README.md").read_text().split("## When your own database starts the work")[1]
    (found,) = re.findall(rf"```{language}\n(.*?)```", text.split("\n## ")[0], re.S)
    return str(found)


def submitter(local: Typed, tmp_path: Path) -> str:
    """A key that may create the work of the block."""
    made = local.json(
        "grants", "issue", "--subject", "service:ci", *OF,
        "--capability", "workload:capability:greet",
    )  # fmt: skip
    local.ok(
        "keys", "create", "--name", "ci", "--id", "ci", "--tenant", "shop", "--for", "submitter",
        "--grant", made["grant"]["id"], "--key-file", "ci.key",
    )  # fmt: skip
    return (tmp_path / "ci.key").read_text().strip()


def handed_over(shop: sqlite3.Connection) -> list[str]:
    """The workloads of the rows, once each has one."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        rows = shop.execute("SELECT workload_id FROM outbox ORDER BY id").fetchall()
        if rows and all(row[0] for row in rows):
            return [row[0] for row in rows]
        time.sleep(0.05)
    raise AssertionError("a row was never handed over")


@pytest.mark.needs("sqlite3")
def test_a_row_whose_answer_was_lost_is_sent_again_and_makes_no_second_workload(
    local: Typed, daemon: Daemon, tmp_path: Path
) -> None:
    (tmp_path / "outbox.py").write_text(block("python"))
    shop = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT)")
    shop.execute("INSERT INTO orders VALUES (17, 'open')")
    env = local.env | {"FELTD_URL": daemon.url, "FELTD_KEY": submitter(local, tmp_path)}
    _relay, pays = block("sh").split("\n", 1)

    relay = [subprocess.Popen([sys.executable, "outbox.py"], cwd=tmp_path, env=env)]
    try:
        until = time.monotonic() + PATIENCE_S
        while not shop.execute("SELECT 1 FROM sqlite_schema WHERE name = 'outbox'").fetchall():
            assert time.monotonic() < until, "the outbox was never made"
            time.sleep(0.05)
        subprocess.run(["bash", "-euc", pays], cwd=tmp_path, check=True, timeout=PATIENCE_S)
        first = handed_over(shop)
        relay[0].kill()
        shop.execute("UPDATE outbox SET workload_id = NULL")
        relay.append(subprocess.Popen([sys.executable, "outbox.py"], cwd=tmp_path, env=env))
        again = handed_over(shop)
    finally:
        for process in relay:
            process.kill()
            process.wait()

    assert shop.execute("SELECT status FROM orders").fetchone() == ("paid",)
    assert again == first
    (work,) = local.json("workload", "list", "--application", "outbox")
    assert (work["workload_id"], work["input"]) == (first[0], {"name": "order 17"})
