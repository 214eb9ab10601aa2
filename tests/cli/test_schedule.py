"""Schedules by `feltd trigger`: defined, looked at ahead, run out of turn."""

import json

from tests.cli.conftest import Typed

YEARLY = {
    "trigger_id": "yearly",
    "kind": "schedule",
    "cron": "30 2 29 2 *",
    "timezone": "Europe/Berlin",
    "target_capability": "report",
    "tenant_id": "cli-schedules",
    "application_id": "docs",
}


def test_a_schedule_is_defined_previewed_and_run(local: Typed) -> None:
    whose = ("--tenant", "cli-schedules")
    text = json.dumps(YEARLY)

    [defined] = json.loads(local.ok("trigger", "define", "--input", "-", *whose, given=text))
    ahead = json.loads(local.ok("trigger", "preview", "yearly", "--count", "2", *whose))
    ran = json.loads(local.ok("trigger", "run", "yearly", *whose))

    assert (defined["timezone"], defined["missed"], defined["fired"]) == (
        "Europe/Berlin",
        "skip",
        0,
    )
    assert [one["local"][4:] for one in ahead["instants"]] == ["-02-29T02:30:00+01:00"] * 2
    assert ahead["instants"][0]["at_ms"] == defined["next_at_ms"]
    job = local.json("workload", "show", ran["workload_id"])
    assert (job["trigger"], job["definition_id"]) == ("yearly", "report")


def test_a_cron_that_cannot_be_read_says_where_it_is_wrong(local: Typed) -> None:
    text = json.dumps({**YEARLY, "trigger_id": "wrong", "cron": "30 25 * * *"})

    ran = local("trigger", "define", "--input", "-", given=text)

    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("TRIGGER_INVALID: /cron: cannot be read: bad hour")
