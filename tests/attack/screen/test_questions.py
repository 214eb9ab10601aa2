"""`feltd sql` beside a daemon: no question takes the machine's memory, or never ends."""

import json
import subprocess
from pathlib import Path

import pytest

from feltd.cli import output
from feltd.store import query
from tests.daemon.running import FELTD, Daemon

NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
BLOBS = NUMBERS.replace("SELECT i FROM", "SELECT zeroblob(1000000) FROM")
#: Hours within one function of SQLite, which looks at no clock.
DEAF = "SELECT instr(zeroblob(30000000), zeroblob(15000000) || x'01')"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Daemon(tmp_path_factory.mktemp("asked") / "feltd.db").init().data


def test_an_answer_of_gigabytes_is_refused_before_it_fills_the_memory(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "ANSWER_BYTES_MAX", 4_000_000)
    for sql in (NUMBERS, BLOBS):
        with pytest.raises(query.QueryProblem, match="larger than"):
            query.ask(data, sql, {}, rows_max=1_000_000, timeout_s=30)
    assert query.ask(data, "SELECT zeroblob(3000000)", {}, rows_max=9, timeout_s=30).rows


def test_a_question_that_hears_nothing_ends_with_its_process(data: Path) -> None:
    asked = subprocess.run(
        [*FELTD, "sql", "--data", str(data), "--timeout", "0.1", DEAF],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert asked.returncode == 1
    assert asked.stderr == "error: the question was ended: it took too long\n"


def test_json_on_a_screen_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """Terminals take U+009B for the beginning of a command, and JSON may leave it as it is.

    U+202E has the rest of a line read from right to left.
    """
    told = {"failure": "\x1b[2J \x9b2J \x7f \u202e\u2066"}
    output.say_json(told)
    printed = capsys.readouterr().out
    assert not any(ord(one) in output.CONTROLS for one in printed if one != "\n")
    assert json.loads(printed) == told
    for value in (told, [told], list(told.values()), told["failure"]):
        assert not any(ord(one) in output.CONTROLS for one in output.cell(value))


@pytest.mark.needs("script")
def test_csv_on_a_screen_moves_no_cursor_and_in_a_file_stays_as_it_is(data: Path) -> None:
    asked = [*FELTD, "sql", "--csv", "--data", str(data), "SELECT char(27) || '[2J' AS \"\x1b[1m\""]
    piped = subprocess.run(asked, capture_output=True, check=True).stdout
    assert piped == b"\x1b[1m\n\x1b[2J\n"
    quoted = " ".join("'" + part.replace("'", "'\\''") + "'" for part in asked)
    screen = subprocess.run(
        ["script", "-qec", quoted, "/dev/null"], capture_output=True, check=True
    ).stdout
    assert b"\x1b" not in screen
    assert b"[2J" in screen
