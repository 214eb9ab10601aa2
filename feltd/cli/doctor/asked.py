"""What a daemon says of itself when it is asked, and what it means when it does not answer."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from feltd.cli.doctor import rows
from feltd.cli.doctor.files import BACKUP_OLD_MS, room
from feltd.cli.doctor.findings import Finding, fail, ok, size, some, span, warn
from feltd.model.checkup import Checkup
from feltd.worker.client import Client
from feltd.worker.refusal import Refusal, Unreachable

#: Seconds a try may take; /health answers from memory, so silence is an answer.
ANSWER_S = 4.0
#: The diagnostics read the rows.
DIAGNOSTICS_S = 12.0
#: Reasons of /health that a line of its own tells more of.
TOLD_ELSEWHERE = frozenset({"CLAIMS_HELD"})
TOLD_BY_FILES = frozenset({"DISK_LOW", "WAL_LARGE"})
FAILURES = ("STORAGE_", "KEEPER_", "DISK_", "FOREIGN_")
LINES_OF = {
    "STORAGE_": "storage",
    "KEEPER_": "keeper",
    "DISK_": "disk",
    "CLOCK_": "clock",
    "WAL_": "wal",
    "MEMBERSHIP_": "membership",
}
HELPS = {
    "STORAGE_RECOVERED": "see what is missing (README: restoring), then feltd health acknowledge",
    "STORAGE_DAMAGED": "stop, keep the file and its -wal, put a backup in its place: feltd backup "
    "restore",
    "STORAGE_FAILING": "make room or mend the disk; it goes on by itself",
    "KEEPER_FAILING": "see the log for 'keeper task failed': feltd diagnostics",
    "DISK_LOW": "make room beside the database, then feltd compact",
    "CLOCK_STEPPED": "set the machine's clock right; leases follow the lease clock meanwhile",
    "WAL_LARGE": "end the read that keeps it from being emptied",
    "MEMBERSHIP_RECOVERING": "nothing: it passes within the heartbeat timeout",
    "FOREIGN_WRITE": "feltd check names the rows; end the program that writes to the file",
    "AUDIT_FILE": "feltd check --audit FILE tells how they differ; then move the file away",
    "BACKUP_FAILED": "mend what it names, then feltd backup create",
    "REPLICA_FAILING": "see the log for 'replica': feltd diagnostics; until then feltd backup "
    "create",
    "KEYRING_UNREADABLE": "put the keyring back from its copy: feltd signing-key list tells",
    "CERTIFICATE_UNREADABLE": "mend the files of --tls-cert and --tls-key, then systemctl reload "
    "feltd",
    "EXPIRING": "the lines of grants and keys name them: feltd grants extend, feltd keys rotate",
}
#: Sheds of the recent refusals that are worth a line.
SHEDS_TOLD = 20


class Asked:
    """One daemon, asked once. `health` is None where no answer came."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.health: dict[str, Any] | None = None
        self.diagnostics: dict[str, Any] | None = None
        self.trouble = ""

    def _get(self, path: str, answer_s: float = ANSWER_S) -> Any:
        return self._client.call("GET", path, answer_s=answer_s, patience_ms=0)

    def reach(self) -> bool:
        """Whether /health is answered; `trouble` says why not."""
        try:
            found = self._get("/health")
        except Unreachable as silence:
            self.trouble = str(silence)
            return False
        except Refusal as refusal:
            self.trouble = f"{refusal.code}: {refusal.detail}"
            return False
        if not isinstance(found, Mapping) or "storage" not in found:
            self.trouble = "what answers there is no feltd daemon"
            return False
        self.health = dict(found)
        return True

    def findings(self, *, nearby: bool) -> Iterator[Finding]:
        """A line for each thing a running daemon can tell.

        `nearby`: its files are looked at as well, which tells more of disk and WAL.
        """
        assert self.health is not None
        health = self.health
        yield ok(
            "daemon",
            f"feltd {health['version']} answers, up for {span(health['uptime_ms'])}, "
            f"last stop {health['last_stop']}",
        )
        key = self._key()
        yield key
        yield self._ready()
        yield from _reasons(health, TOLD_BY_FILES if nearby else ())
        engine_of = health["sqlite"]
        yield engine(engine_of["version"], engine_of["wal_reset_affected"])
        if key.level != "FAIL":
            yield from self._inside()

    def _key(self) -> Finding:
        try:
            me = self._get("/v1/auth/me")
        except Refusal as refusal:
            seen = f"{refusal.code}: {refusal.reason_detail}"
            return fail("key", seen, "give FELTD_KEY a key of this daemon: feltd keys create")
        except Unreachable as silence:
            return fail("key", str(silence), "feltd health")
        return ok("key", f"calls as {_subject(me)}")

    def _ready(self) -> Finding:
        try:
            found = self._get("/health/ready")
        except Refusal as refusal:
            return fail("ready", f"{refusal.code}: {refusal.detail}", _unready(refusal.code))
        except Unreachable as silence:
            return fail("ready", str(silence), "the storage stalls: look at the disk")
        return ok("ready", f"reads and writes in {found['probe_ms']} ms")

    def _inside(self) -> Iterator[Finding]:
        try:
            found = self._get("/v1/diagnostics", DIAGNOSTICS_S)
        except Refusal as refusal:
            seen = f"{refusal.code}: {refusal.detail}"
            helps = "use a key with daemon:operate for tenant '*', or --data on the machine itself"
            if refusal.code == "ROUTE_NOT_FOUND":
                helps = "the daemon is an older one: upgrade it"
            yield warn("inside", seen, helps)
            return
        except Unreachable as silence:
            yield fail("inside", str(silence), "feltd health")
            return
        self.diagnostics = found
        yield _keeper(found["keeper"], found["at_ms"])
        yield _refusals(found)
        if found.get("checkup") is None:
            told = found["missing"].get("checkup", "not told")
            yield fail("rows", f"the rows cannot be read: {told}", "look at the disk; feltd check")
            return
        try:
            checkup = msgspec.convert(found["checkup"], Checkup)
        except msgspec.ValidationError as error:
            yield warn("rows", f"another version of feltd answers: {error}", "use its own feltd")
            return
        yield from rows.judge(checkup, found["at_ms"])

    def from_afar(self) -> Iterator[Finding]:
        """Disk, WAL and backup as the daemon tells them, where its files are out of reach."""
        if self.diagnostics is None:
            return
        place = self.diagnostics["place"]
        told = {reason["code"] for reason in self.health["reasons"]} if self.health else set()
        if "DISK_LOW" not in told:
            yield room(place["disk_free_bytes"], place["database_bytes"])
        if "WAL_LARGE" not in told:
            yield ok("wal", f"write-ahead log of {size(place['wal_bytes'])}")
        age_s = _gauge(self.diagnostics["metrics"], "feltd_backup_age_seconds")
        if age_s < 0:
            yield warn("backup", f"none in {place['backup_dir']}", "feltd backup create")
        elif age_s * 1_000 > BACKUP_OLD_MS:
            yield warn("backup", f"{span(age_s * 1_000)} old", "feltd backup create")
        else:
            yield ok("backup", f"{span(age_s * 1_000)} old, verified")


def silence(pid: int, state: str, trouble: str) -> Finding:
    """What it means that a process holds the lock of the database and does not answer."""
    if state in ("T", "t"):
        seen = f"process {pid} holds the database and is stopped (SIGSTOP, or a debugger)"
        return fail("daemon", seen, f"kill -CONT {pid}")
    if state == "D":
        seen = f"process {pid} holds the database and waits for the disk"
        return fail("daemon", seen, "look at the disk: dmesg, iostat")
    seen = f"process {pid} holds the database and does not answer ({trouble})"
    return fail("daemon", seen, "look at its log (journalctl -u feltd), then start it anew")


def _reasons(health: Mapping[str, Any], left_out: Collection[str]) -> Iterator[Finding]:
    told: set[str] = set()
    for reason in health["reasons"]:
        code = reason["code"]
        if code in TOLD_ELSEWHERE or code in left_out:
            continue
        check = next((line for start, line in LINES_OF.items() if code.startswith(start)), "health")
        told.add(check)
        bad = code.startswith(FAILURES)
        make = fail if bad else warn
        yield make(check, f"{code}: {reason['detail']}", HELPS.get(code, "feltd health"))
    if "storage" not in told:
        label = health["storage"]
        yield ok("storage", label if label == "clean" else f"{label}, acknowledged")
    if "clock" not in told:
        yield ok("clock", "wall and lease clock agree")


def engine(version: str, wal_reset_affected: bool) -> Finding:
    """Which SQLite it is."""
    seen = f"SQLite {version}"
    if wal_reset_affected:
        # Told, not warned of: one writer that alone checkpoints does not meet the fault.
        seen += ", which has the WAL-reset fault: no second writer, no Litestream beside it"
    return ok("sqlite", seen)


def _keeper(records: Mapping[str, Any], at_ms: int) -> Finding:
    failing = {name: one for name, one in records.items() if one["failing"]}
    if failing:
        name, one = next(iter(failing.items()))
        seen = f"{name} failed {one['failing']} times in a row: {one['trouble']}"
        return fail("tasks", seen, HELPS["KEEPER_FAILING"])
    oldest = min((one["last_ok_at_ms"] for one in records.values()), default=at_ms)
    return ok(
        "tasks", f"all {len(records)} went well, the rarest {span(max(0, at_ms - oldest))} ago"
    )


def _refusals(found: Mapping[str, Any]) -> Finding:
    recent = [
        one["code"] for one in found["recent_refusals"] if found["at_ms"] - one["at_ms"] < 600_000
    ]
    counts = sorted(((recent.count(code), code) for code in set(recent)), reverse=True)
    seen = ", ".join(f"{count} {code}" for count, code in counts[:4])
    if recent.count("SERVICE_OVERLOADED") >= SHEDS_TOLD:
        return warn("refusals", f"of the last 10 minutes: {seen}", "feltd top shows the load")
    if not recent:
        return ok("refusals", "none in the last 10 minutes")
    return ok("refusals", f"{some(len(recent), 'call', 'calls')} in the last 10 minutes: {seen}")


def _unready(code: str) -> str:
    if code == "STORAGE_STALLED":
        return "the disk or a foreign lock holds the writer: end what writes to the file"
    return "look at the disk and at feltd health"


def _subject(me: Mapping[str, Any]) -> str:
    subject = me.get("subject")
    if isinstance(subject, Mapping):
        return f"{subject.get('kind')}:{subject.get('id')}"
    return str(subject or me.get("worker_id") or "somebody")


def _gauge(text: str, name: str) -> float:
    for family in text_string_to_metric_families(text):
        if family.name == name:
            return float(family.samples[0].value)
    return -1.0
