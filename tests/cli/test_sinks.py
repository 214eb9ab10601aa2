"""What the README tells the owner of a sink is run as it stands there."""

import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from feltd.worker import StaleFence
from tests.api.claims.conftest import Crew
from tests.cli.conftest import Typed
from tests.daemon.running import Daemon
from tests.tidy.source import ROOT


def block(language: str) -> str:
    """The one code block of that language in the section for sink owners."""
    section = (ROOT / "README.md").read_text().split("## If you own the place results go to")[1]
    (found,) = re.findall(rf"```{language}\n(.*?)```", section.split("\n## ")[0], re.S)
    return str(found)


def test_the_guards_of_the_readme_refuse_an_older_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shop = sqlite3.connect("shop.db")
    shop.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY, total INTEGER, fence INTEGER)")
    shop.execute("INSERT INTO invoices VALUES (17, 0, 0)")
    shop.commit()
    code = compile(block("python"), "README.md", "exec")

    exec(code, {"token": 5, "total": 100})
    exec(code, {"token": 6, "total": 120})
    with pytest.raises(StaleFence):
        exec(code, {"token": 5, "total": 100})

    assert shop.execute("SELECT total FROM invoices").fetchone() == (120,)
    assert Path("report.txt").read_text() == "total 120"


def test_the_column_of_the_readme_is_one_statement(tmp_path: Path) -> None:
    shop = sqlite3.connect(tmp_path / "shop.db")
    shop.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY, total INTEGER, fence INTEGER)")
    shop.execute("INSERT INTO invoices VALUES (17, 0, 0)")
    text = (ROOT / "README.md").read_text()
    (statement,) = re.findall(r"`(UPDATE invoices SET total = :total[^`]*)`", text)

    changed = [
        shop.execute(statement, {"total": total, "token": token}).rowcount
        for total, token in ((100, 5), (120, 6), (100, 5), (130, 6))
    ]

    assert changed == [1, 1, 0, 1]
    assert shop.execute("SELECT total FROM invoices").fetchone() == (130,)


@pytest.mark.needs("curl")
def test_the_questions_of_the_readme_are_answered(
    local: Typed, daemon: Daemon, tmp_path: Path
) -> None:
    crew = Crew(daemon)
    edge = crew.worker()
    crew.work()
    (claim,) = edge.pull()
    (tmp_path / "feltd.db").symlink_to(daemon.data)
    feltd = f'feltd() {{ "{sys.executable}" -m feltd "$@"; }}\n'
    # The crew is of tenant t, the daemon anywhere.
    script = feltd + block("sh").replace("--tenant acme", "--tenant t").replace(
        "http://127.0.0.1:7610", daemon.url
    ).replace("feltd.db", str(daemon.data)).replace("\nask ", "\necho; ask ")

    ran = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, check=True,
        env=local.env | {"TOKEN": str(claim["fencing_token"])},
    )  # fmt: skip

    fenced, valid = (json.loads(line) for line in ran.stdout.splitlines() if line[:1] == "{")
    assert fenced == {"resource": "invoice-17", "highest": claim["fencing_token"]}
    assert (valid["claim_id"], valid["state"]) == (claim["claim_id"], "CLAIMED")
