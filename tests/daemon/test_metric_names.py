"""The metrics of a running daemon: exactly the promised names, and what is built on them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.daemon.running import Daemon, Edge, create, people

SYSTEMD = Path(__file__).parents[2] / "systemd"

#: What monitoring outside the daemon is built on: none goes, none changes its name.
NAMES = """
feltd_requests_total feltd_request_seconds feltd_requests_shed_total
feltd_request_deadline_exceeded_total feltd_in_flight feltd_long_polls feltd_channels
feltd_connections feltd_writer_wait_seconds feltd_writer_run_seconds feltd_writer_commit_seconds
feltd_writer_batch_size feltd_writer_queue feltd_keeper_last_ok_seconds
feltd_keeper_failures_total feltd_workloads feltd_oldest_ready_seconds feltd_claims_total
feltd_attempts_ended_total feltd_fence_refusals_total feltd_workers feltd_leases_recovered_total
feltd_outage_credit_ms_total feltd_trigger_lag_changes feltd_triggers_disabled
feltd_operations_compacted_total feltd_log_rewritten_total feltd_wal_bytes feltd_database_bytes
feltd_disk_free_bytes feltd_backup_age_seconds feltd_grants_expiring feltd_keys_expiring
feltd_storage_clean feltd_clock_healthy
"""
PROMISED = NAMES.split()
#: Beside them, for people who look for what holds connections open.
BESIDE = ["feltd_streams"]
LABELS = {
    "feltd_requests_total": {"operation", "status"},
    "feltd_request_seconds": {"operation"},
    "feltd_keeper_last_ok_seconds": {"task"},
    "feltd_workloads": {"state"},
    "feltd_workers": {"lifecycle"},
    "feltd_attempts_ended_total": {"end"},
    "feltd_requests_shed_total": {"reason"},
    "feltd_request_deadline_exceeded_total": {"committed"},
}
NAME = re.compile(r"\bfeltd_[a-z_]+\b")
#: What PromQL appends to the name of a histogram.
HISTOGRAM_ENDS = ("_bucket", "_sum", "_count")


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The families of a daemon that has worked a little, by the name they are asked by."""
    daemon = Daemon(tmp_path_factory.mktemp("metrics") / "feltd.db", "--tick-ms", "100")
    try:
        daemon.init().start()
        mesh = people(daemon)
        edge = Edge(daemon, "edge", mesh.registrar_key, capabilities=["documents.extract"])
        edge.beat()
        create(daemon, mesh, "one")
        [claim] = edge.pull(start=True)
        assert edge.fenced("complete", claim, output=1).status == 200
        assert edge.fenced("renew", claim).status == 409
        yield families(daemon.get("/metrics"))
    finally:
        daemon.close()


def families(text: str) -> dict[str, Any]:
    found = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        assert name not in found, f"{name} comes twice"
        found[name] = family
    return found


def test_a_daemon_serves_the_promised_names_and_no_others(scraped: dict[str, Any]) -> None:
    assert sorted(scraped) == sorted(PROMISED + BESIDE)


def test_no_series_is_of_one_worker_or_one_tenant(scraped: dict[str, Any]) -> None:
    labels = {
        name: {label for sample in family.samples for label in sample.labels} - {"le"}
        for name, family in scraped.items()
    }
    for name, expected in LABELS.items():
        assert labels[name] == expected, name
    assert not {"worker", "worker_id", "tenant", "tenant_id"} & set().union(*labels.values())


def test_histograms_count_up_to_everything(scraped: dict[str, Any]) -> None:
    for family in scraped.values():
        if family.type != "histogram":
            continue
        last: dict[str, float] = {}
        for sample in family.samples:
            of = str(sorted({**sample.labels, "le": ""}.items()))
            if sample.name.endswith("_bucket"):
                assert sample.value >= last.get(of, 0.0), (family.name, sample)
                last[of] = sample.value
            elif sample.name.endswith("_count"):
                assert sample.value == last[of]


def test_what_happened_is_counted(scraped: dict[str, Any]) -> None:
    [refused] = scraped["feltd_fence_refusals_total"].samples
    assert (refused.labels, refused.value) == ({"code": "WORKLOAD_STALE_FENCE"}, 1.0)
    states = {one.labels["state"]: one.value for one in scraped["feltd_workloads"].samples}
    assert states["COMPLETED"] == 1.0


def expressions() -> dict[str, str]:
    """Every expression that is shipped, by where it stands."""
    rules = yaml.safe_load((SYSTEMD / "feltd-alerts.yml").read_text())
    found = {
        f"alert {rule['alert']}": rule["expr"]
        for group in rules["groups"]
        for rule in group["rules"]
    }
    board = json.loads((SYSTEMD / "feltd-dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            found[f"panel {panel['title']} {target['refId']}"] = target["expr"]
    return found


def test_rules_and_dashboard_use_what_is_served_alone(scraped: dict[str, Any]) -> None:
    wrong, used = [], set()
    for place, text in expressions().items():
        names = set(NAME.findall(text))
        assert names, f"{place} asks for nothing"
        for name in names:
            base = name
            for end in HISTOGRAM_ENDS:
                family = scraped.get(name.removesuffix(end))
                if name.endswith(end) and family is not None and family.type == "histogram":
                    base = name.removesuffix(end)
            if base not in scraped:
                wrong.append(f"{place}: {name}")
            elif scraped[base].type == "histogram" and base == name:
                wrong.append(f"{place}: {name} is a histogram")
            used.add(base)
    assert not wrong, "\n".join(wrong)
    unseen = set(PROMISED) - used
    assert not unseen, f"in no rule and no panel: {sorted(unseen)}"


def test_rules_name_label_values_that_exist(scraped: dict[str, Any]) -> None:
    wrong = []
    for place, text in expressions().items():
        for name, selector in re.findall(r"(feltd_[a-z_]+)\{([^}]*)\}", text):
            for label, values in re.findall(r'([a-z_]+)!?=~?"([^"$.*]+)"', selector):
                for end in HISTOGRAM_ENDS:
                    name = name.removesuffix(end) if name not in scraped else name
                known = {one.labels.get(label) for one in scraped[name].samples}
                if label in {"state", "lifecycle", "task", "committed"}:
                    wrong += [f"{place}: {v}" for v in values.split("|") if v not in known]
    assert not wrong, "\n".join(wrong)


def test_expressions_are_balanced() -> None:
    pairs = {")": "(", "]": "[", "}": "{"}
    for place, text in expressions().items():
        open_now: list[str] = []
        for sign in re.sub(r'"[^"]*"', '""', text):
            if sign in pairs.values():
                open_now.append(sign)
            elif sign in pairs:
                assert open_now, place
                assert open_now.pop() == pairs[sign], place
        assert not open_now, place


def test_every_rule_says_what_it_is_and_what_to_type() -> None:
    from feltd.cli.main import COMMANDS

    rules = yaml.safe_load((SYSTEMD / "feltd-alerts.yml").read_text())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in {"page", "ticket"}, rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]
        typed = re.findall(r"feltd ([a-z-]+)", rule["annotations"]["runbook"])
        assert typed, rule["alert"]
        assert set(typed) <= set(COMMANDS) | {"top", "doctor", "diagnostics", "backup", "bench"}


def test_the_dashboard_has_room_for_each_panel() -> None:
    panels = json.loads((SYSTEMD / "feltd-dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, f"{panel['title']} lies on another"
        taken |= cells
