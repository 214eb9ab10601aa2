"""Each of the twenty gives the right answer: as `feltd sql` asks it, and in SQLite's own shell."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feltd.cli import sql
from feltd.store import query
from feltd.store.connect import open_local
from tests.cli.questions import story
from tests.cli.questions.story import Story

Rows = list[dict[str, Any]]
QUESTIONS = sql.questions()
FOLDER = Path(sql.__file__).parent / "questions"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return story.tell(tmp_path_factory.mktemp("questions"))


def by_feltd(told: Story, number: int, given: dict[str, Any]) -> Rows:
    text = QUESTIONS[number - 1].sql
    answer = query.ask(told.data, text, given, rows_max=1_000, timeout_s=30)
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def by_the_shell(told: Story, number: int, given: dict[str, Any]) -> Rows:
    [file] = FOLDER.glob(f"{number:02}_*.sql")
    settings = [f".parameter set :{name} {json.dumps(value)}" for name, value in given.items()]
    ran = subprocess.run(
        (
            *("sqlite3", "-readonly", "-json", "-bail", str(told.data)),
            *(".parameter init", *settings, f".read {file}"),
        ),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    found: Rows = json.loads(ran.stdout) if ran.stdout.strip() else []
    return found


ASKING = [
    pytest.param(by_feltd, id="feltd"),
    pytest.param(by_the_shell, id="sqlite3", marks=pytest.mark.needs("sqlite3")),
]


def picked(rows: Rows, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


Answer = Callable[[Story], list[tuple[Any, ...]]]

#: Question, what is set in it, the columns that are looked at, and what they must be.
ANSWERS: list[tuple[int, Callable[[Story], dict[str, Any]], tuple[str, ...], Answer]] = [
    (
        1,
        lambda told: {},
        ("definition_id", "ready", "later", "next", "why"),
        lambda told: [
            ("index", 1, 0, told.held, "held: feltd hold list"),
            ("extract", 1, 0, told.waiting, its_turn(told.waiting)),
            ("convert", 0, 1, None, ANY),
        ],
    ),
    (
        2,
        lambda told: {"rows": 1},
        ("workload_id", "why"),
        lambda told: [(told.held, "held: feltd hold list")],
    ),
    (
        3,
        lambda told: {},
        ("worker", "workload_id", "state", "attempt"),
        lambda told: [("slow", told.stuck, "RUNNING", 1), ("edge", told.lapsing, "CLAIMED", 1)],
    ),
    (3, lambda told: {"worker": "edge"}, ("workload_id",), lambda told: [(told.lapsing,)]),
    (3, lambda told: {"worker": told.slow}, ("workload_id",), lambda told: [(told.stuck,)]),
    (
        4,
        lambda told: {},
        ("workload_id", "worker", "usual_s"),
        lambda told: [(told.stuck, "slow", 0.15)],
    ),
    (5, lambda told: {}, ("workload_id", "worker"), lambda told: [(told.lapsing, "edge")]),
    (
        6,
        lambda told: {},
        ("kind", "end_kind", "workload_id", "worker", "ended_by"),
        lambda told: [
            ("evict", "evicted", told.evicted, "slow", "service:local"),
            ("recover", "lease_expired", told.superseded, "slow", "the daemon"),
        ],
    ),
    (6, lambda told: {"minutes": 1}, ("workload_id",), lambda told: []),
    (
        7,
        lambda told: {},
        ("definition_id", "failure_kind", "dead", "newest", "message_of_one"),
        lambda told: [("convert", "bad_input", 1, told.dead, "not a page")],
    ),
    (7, lambda told: {"minutes": 1440}, ("dead",), lambda told: [(2,)]),
    (
        8,
        lambda told: {},
        ("definition_id", "attempts", "failed", "to_be_repeated", "workloads"),
        lambda told: [("convert", 2, 2, 1, 2)],
    ),
    (
        9,
        lambda told: {},
        ("workload_id", "worker", "says", "its_claim_ended_by", "state"),
        lambda told: [(told.superseded, "slow", "completed", "lease_expired", "COMPLETED")],
    ),
    (10, lambda told: {}, ("worker", "lifecycle", "holds"), lambda told: [("mute", "READY", 0)]),
    (
        11,
        lambda told: {},
        ("application_id", "workers", "ready_workers", "slots", "claims", "free_slots", "due"),
        lambda told: [("docs", 3, 3, 18, 2, 16, 2)],
    ),
    (
        12,
        lambda told: {},
        ("scope", "value", "held_by", "reason", "kinds_of_work"),
        lambda told: [("definition", "index", "service:local", "the disk is full", 1)],
    ),
    (
        13,
        lambda told: {},
        ("trigger_id", "standing", "failures", "reason"),
        lambda told: [("on-paid", "DISABLED", 5, "it failed 5 times")],
    ),
    (
        14,
        lambda told: {},
        ("what", "id", "name", "workers_that_stop", "their_names"),
        lambda told: [("key", "registrar001", "host", 1, "edge")],
    ),
    (14, lambda told: {"days": 2}, ("id",), lambda told: []),
    (
        15,
        lambda told: {"rows": 2},
        ("actor", "action", "reason"),
        lambda told: [
            ("service:local", "hold", "the disk is full"),
            ("service:local", "evict", "it hangs"),
        ],
    ),
    (
        15,
        lambda told: {"actor": "service:feltd"},
        ("action", "subject"),
        lambda told: [("init", "instance")],
    ),
    (
        16,
        lambda told: {"id": told.stuck},
        ("told_by", "what", "who", "states"),
        lambda told: [
            ("claim", "id", f"worker:{told.slow}", "live"),
            ("event", "create", ANY, "READY"),
            ("event", "claim", f"worker:{told.slow}", "READY to CLAIMED"),
            ("event", "start", f"worker:{told.slow}", "CLAIMED to RUNNING"),
        ],
    ),
    (
        17,
        lambda told: {},
        ("what", "rows"),
        lambda told: [
            ("file", None),
            ("free pages in it", None),
            ("events", ANY),
            ("audit", ANY),
            ("workloads", 20),
            ("changes of acme", 0),
        ],
    ),
    (
        19,
        lambda told: {},
        ("definition_id", "runs", "p50_ms", "p95_ms", "longest_ms"),
        lambda told: [("render", 2, 5_000, 5_000, 5_000), ("extract", 11, 150, 900, 900)],
    ),
    (
        20,
        lambda told: {"worker": "slow"},
        ("workload_id", "attempt", "ended", "end_state"),
        lambda told: [
            (told.evicted, 1, "evicted", "READY"),
            (told.superseded, 1, "lease_expired", "READY"),
            (told.stuck, 1, "held", None),
        ],
    ),
]


class Anything:
    """Equal to whatever the story does not say."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


ANY = Anything()


def its_turn(workload_id: str) -> str:
    return f"waits its turn, or no worker fits: feltd why {workload_id}"


@pytest.mark.parametrize("asked", ASKING)
@pytest.mark.parametrize("place", range(len(ANSWERS)), ids=[str(one[0]) for one in ANSWERS])
def test_a_question_is_answered_right(
    told: Story, asked: Callable[[Story, int, dict[str, Any]], Rows], place: int
) -> None:
    number, given, names, expected = ANSWERS[place]
    assert picked(asked(told, number, given(told)), *names) == expected(told)


@pytest.mark.parametrize("asked", ASKING)
def test_minutes_are_counted_each_by_itself(
    told: Story, asked: Callable[[Story, int, dict[str, Any]], Rows]
) -> None:
    """The last quarter of an hour: eleven done, one given up, one to be tried again."""
    rows = asked(told, 18, {})
    names = ("created", "claimed", "completed", "failed", "dead")
    assert [sum(row[name] for row in rows) for name in names] == [16, 14, 11, 2, 1]
    assert len({row["minute"] for row in rows}) == len(rows) >= 6
    assert [row["minute"] for row in rows] == sorted((row["minute"] for row in rows), reverse=True)


def test_each_of_the_twenty_has_an_answer_here() -> None:
    assert [one.number for one in QUESTIONS] == list(range(1, 21))
    assert {one[0] for one in ANSWERS} | {18} == set(range(1, 21))
    for one in QUESTIONS:
        assert one.asks.endswith("?"), one
        named = set(re.findall(r":([a-z]+)\b", re.sub(r"--.*|'[^']*'", "", one.sql)))
        assert named == {parameter.name for parameter in one.parameters}, one.name


#: Tables that grow without end; demands, workers, holds, triggers, keys and grants are few.
BIG = "workloads|claims|events|audit|late_results|claim_logs|changes|records|answers|decisions"
#: Scans that end after a bounded number of rows: a LIMIT stands in the same SELECT.
BOUNDED = {
    4: {"SCAN claims", "SCAN c"},
    6: {"SCAN e"},
    8: {"SCAN claims"},
    9: {"SCAN late_results"},
    15: {"SCAN audit USING INDEX audit_acts"},
    17: {"SCAN e", "SCAN a", "SCAN w"},
    18: {"SCAN e"},
    19: {"SCAN claims"},
}
#: Indexes that hold live claims alone.
LIVE = ("claims_live_of_worker", "claims_one_live")


@pytest.mark.parametrize("one", QUESTIONS, ids=lambda one: str(one.number))
def test_no_question_reads_a_big_table_from_end_to_end(told: Story, one: sql.Question) -> None:
    conn = open_local(told.data)
    plan = conn.execute(f"EXPLAIN QUERY PLAN {one.sql}", query.Bindings({})).fetchall()
    conn.close()
    # Names of big tables in the query itself, and in the views that it reads.
    short = {name for _table, name in re.findall(rf"\b({BIG})\s+([a-z])\b", one.sql)}
    big = {*BIG.split("|"), *short, "e"}
    scans = {row["detail"] for row in plan if row["detail"].startswith("SCAN ")}
    whole = {
        scan
        for scan in scans
        if scan.split()[1] in big and not scan.endswith(LIVE) and "CONSTANT" not in scan
    }
    assert whole <= BOUNDED.get(one.number, set())
