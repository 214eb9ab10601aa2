"""What keeps workers from work, in words: each by the first rule that fails, grouped when many.

One sentence a worker, with every other rule that fails too, and the command that changes the
first. Those that would fit but for how they stand come first: they are nearest to taking it.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from feltd.clock import Now
from feltd.mesh import causes, placement
from feltd.mesh.crowd import Crowd, Member, Misfit, Verdict
from feltd.model.why import Cause
from feltd.store.tx import Row

#: Workers told one by one; of more, one sentence for each rule.
ONE_BY_ONE_MAX = 8
#: How near an end of a grant is told.
GRANT_ENDS_MS = 3_600_000
#: The runtime of workers inside the daemon, whose programs are records.
HOSTED = "hosted"
#: A name of its own: under one in use it would take over, and end, the worker that has it.
_RUN = "feltd worker run with a --name of its own"


class Subject(Struct, frozen=True):
    """What is to be run: whose it is, what it asks, and the workload it is about, if one is."""

    tenant_id: str
    application_id: str
    wanted: placement.Wanted
    workload_id: str | None = None


def tell(
    now: Now,
    subject: Subject,
    crowd: Crowd,
    verdict: Verdict,
    pools: Mapping[str, placement.Pool],
) -> list[Cause]:
    """Why nobody, or nobody else, may take it: what is true of all first, then worker by worker."""
    told = _of_all(now, subject, crowd, verdict, pools)
    if len(verdict.others) <= ONE_BY_ONE_MAX:
        told += [of_one(now, subject, misfit, pools) for misfit in verdict.others]
    else:
        told += _grouped(now, subject, verdict.others, pools)
    if crowd.unread:
        told.append(
            Cause(
                code="WORKERS_UNREAD",
                detail=f"{causes.many(crowd.unread, 'more worker')} were not compared",
                remedy=f"look at them: feltd worker list --application {subject.application_id}",
            )
        )
    return told


def of_one(
    now: Now, subject: Subject, misfit: Misfit, pools: Mapping[str, placement.Pool]
) -> Cause:
    """What keeps one worker away: its first failing rule, and the others by name."""
    rule, *others = misfit.rules
    detail, remedy = _of_rule(now, subject, misfit.member, rule, pools)
    if others:
        detail += f"; also {', '.join(others)}"
    return Cause(
        code=causes.OF_RULE[rule],
        detail=detail,
        remedy=remedy,
        worker_id=misfit.member.worker_id,
    )


def standing(now: Now, member: Member) -> list[Cause]:
    """Everything that keeps one worker from any work at this instant."""
    found = []
    for rule in member.standing:
        detail, remedy = _of_standing(now, member, rule)
        found.append(
            Cause(
                code=causes.OF_RULE[rule], detail=detail, remedy=remedy, worker_id=member.worker_id
            )
        )
    ends_at_ms = member.row["authority_expires_at_ms"]
    if "grant" not in member.standing and ends_at_ms is not None:
        left_ms = ends_at_ms - now.wall_ms
        if left_ms <= GRANT_ENDS_MS:
            found.append(
                Cause(
                    code="GRANT_ENDS",
                    detail=f"its grant ends {causes.of_wall(now, ends_at_ms)}, and its claims then",
                    remedy=_extend(member),
                    worker_id=member.worker_id,
                )
            )
    return found


def missing(wanted: placement.Wanted, members: Sequence[Member]) -> list[str]:
    """Capabilities that are asked for and that none of these workers was granted."""
    had = frozenset[str]().union(*(one.offered.granted for one in members))
    return sorted(wanted.capabilities - had)


def _of_all(
    now: Now,
    subject: Subject,
    crowd: Crowd,
    verdict: Verdict,
    pools: Mapping[str, placement.Pool],
) -> list[Cause]:
    """What is true of the whole application: nobody there, nobody able, nobody heard."""
    where = f"{subject.tenant_id}/{subject.application_id}"
    if not crowd.members:
        return [
            Cause(
                code="NO_WORKER",
                detail=f"no worker is registered in {where}",
                remedy=f"start one: {_enroll(subject)}, then feltd worker run",
            )
        ]
    lacking = missing(subject.wanted, crowd.members)
    if lacking:
        of = "the capability" if len(lacking) == 1 else "the capabilities"
        detail = f"no worker of {where} was granted {of} {', '.join(lacking)}"
        remedy = f"start a worker that has it: {_enroll(subject)}, then {_RUN}"
        return [Cause(code="NO_CAPABILITY", detail=detail, remedy=remedy)]
    fitting = [one.member for one in verdict.others if one.fits]
    if not fitting and not verdict.eligible:
        count = causes.many(len(crowd.members), "worker")
        return [
            Cause(
                code="NO_MATCH",
                detail=f"none of {count} of {where} fits it",
                remedy="change what is asked, or start a worker that fits; each says what it lacks",
            )
        ]
    if fitting and not verdict.eligible and all("stale" in one.standing for one in fitting):
        return [_unheard(now, fitting)]
    return []


def _unheard(now: Now, fitting: Sequence[Member]) -> Cause:
    last = max(fitting, key=lambda one: (one.row["last_seen_at_ms"], one.worker_id))
    heard = causes.moment(now, last.row["last_seen_at_ms"])
    names = causes.listed([one.row["name"] for one in fitting])
    return Cause(
        code="NO_FRESH_WORKER",
        detail=f"{causes.many(len(fitting), 'worker')} would fit ({names}), and none is heard: "
        f"the last was {last.row['name']}, {heard}",
        remedy="start their processes again, or look at their network: "
        f"feltd worker why {last.worker_id}",
        worker_id=last.worker_id,
    )


def _grouped(
    now: Now,
    subject: Subject,
    others: Sequence[Misfit],
    pools: Mapping[str, placement.Pool],
) -> list[Cause]:
    groups: dict[tuple[bool, str], list[Misfit]] = {}
    for misfit in others:
        groups.setdefault((misfit.fits, misfit.rules[0]), []).append(misfit)
    told = []
    for (fits, rule), group in groups.items():
        if len(group) == 1:
            told.append(of_one(now, subject, group[0], pools))
            continue
        names = causes.listed([one.member.row["name"] for one in group])
        would = "would fit, but " if fits else ""
        _detail, remedy = _of_rule(now, subject, group[0].member, rule, pools)
        told.append(
            Cause(
                code=causes.OF_RULE[rule],
                detail=f"{len(group):,} workers ({names}) {would}fail one rule: "
                f"{placement.RULES[rule]}",
                remedy=remedy,
            )
        )
    return told


def _of_rule(
    now: Now,
    subject: Subject,
    member: Member,
    rule: str,
    pools: Mapping[str, placement.Pool],
) -> tuple[str, str]:
    if rule in _STANDING:
        return _of_standing(now, member, rule)
    return _of_fit(subject, member, rule, pools)


def _of_standing(now: Now, member: Member, rule: str) -> tuple[str, str]:
    """The sentence and the remedy of a rule that is about the worker alone."""
    row, worker_id = member.row, member.worker_id
    name = row["name"]
    heard = causes.moment(now, row["last_seen_at_ms"])
    if rule == "draining":
        by, said = row["drain_by"], causes.quoted(row["drain_reason"])
        return f"{name} is draining: {by}, {said}", _back(row, worker_id)
    if rule == "not_ready":
        return _not_ready(row, heard)
    if rule == "quarantined":
        until_at_ms = row["quarantined_until_at_ms"]
        until = "" if until_at_ms is None else f", until {causes.of_wall(now, until_at_ms)}"
        said = f"{row['quarantined_by']}, {causes.quoted(row['quarantine_reason'])}{until}"
        return f"{name} is quarantined: {said}", f"feltd worker unquarantine {worker_id}"
    if rule == "full":
        return (
            f"{name} holds {row['active']} of {row['concurrency']:,} claims",
            f"wait for one to end (feltd claim list --worker {worker_id}), start another worker, "
            "or start it with a higher --concurrency",
        )
    if rule == "unhealthy":
        if row["lifecycle"] == "OFFLINE":
            return f"{name} is {row['health']}: nothing is heard of it", "start its process again"
        said = f"{name} reports {row['health']}"
        return said, f"look at its process; it says so itself: feltd worker show {worker_id}"
    if rule == "stale":
        return (
            f"{name} was not heard within its heartbeat timeout of "
            f"{causes.span(row['heartbeat_timeout_ms'])}: last {heard}",
            "look at its process and its network, and start it again",
        )
    if row["authority_unsettled"] and row["authority_live"]:
        return f"the grant of {name} was changed and is being compared", "wait a moment"
    return f"the grant of {name} has ended", _extend(member)


def _not_ready(told: Row, heard: str) -> tuple[str, str]:
    name, worker_id = told["name"], told["worker_id"]
    if told["lifecycle"] == "REGISTERED":
        return (
            f"{name} is REGISTERED and has not sent a heartbeat",
            "let its process send one (feltd worker run does); start it again if it is gone",
        )
    if told["lifecycle"] == "RECOVERING":
        return (
            f"{name} is RECOVERING and has not reconciled",
            "let its process reconcile (feltd worker run does); start it again if it is gone",
        )
    why = told["offline_reason"] or "unknown"
    if why in ("drained", "left") and told["drain_at_ms"] is not None:
        return f"{name} is OFFLINE ({why})", _back(told, worker_id)
    return (
        f"{name} is OFFLINE ({why}), last heard {heard}",
        f"start its process again; or, if it still runs: feltd worker recover {worker_id}",
    )


def _back(told: Row, worker_id: str) -> str:
    """What ends a drain: for a process that drained itself a new start, else a resume."""
    if told["lifecycle"] == "OFFLINE" and told["offline_reason"] == "left":
        return "start its process again"
    resume = f"feltd worker resume {worker_id}"
    return f"{resume}, then start its process" if told["lifecycle"] == "OFFLINE" else resume


def _of_fit(
    subject: Subject, member: Member, rule: str, pools: Mapping[str, placement.Pool]
) -> tuple[str, str]:
    """The sentence and the remedy of a rule that compares the work with the worker."""
    wanted, offered, name = subject.wanted, member.offered, member.row["name"]
    if rule == "capabilities":
        lacking = sorted(wanted.capabilities - offered.granted)
        return f"{name} was not granted {', '.join(lacking)}", (
            f"start a worker that is: {_enroll(subject)}, then {_RUN}"
        )
    if rule == "workload_kinds":
        takes = causes.listed(sorted(offered.kinds))
        handles = f"start a worker that handles {wanted.definition_id}: feltd worker run"
        if member.row["runtime"] == HOSTED:
            return f"the daemon's worker {name} takes {takes} only", (
                f"write the program _flow_capabilities/{wanted.definition_id}, or see in the "
                f"daemon's log why it cannot be run; or {handles}"
            )
        return f"{name} takes {takes} only", handles
    if rule == "resources":
        short = [
            f"{key} {amount:,} of {offered.profile.get(key) or 0:,}"
            for key, amount in sorted(wanted.resources.items())
            if (amount or 0) > (offered.profile.get(key) or 0)
        ]
        return f"{name} has less than is asked: {', '.join(short)}", (
            "start a worker on a larger machine, or create the work asking for less"
        )
    if rule == "required_labels":
        pairs = sorted(wanted.required_labels.items())
        differing = [f"{key}={text}" for key, text in pairs if offered.labels.get(key) != text]
        return f"{name} has no label {', '.join(differing)}", (
            f"start a worker with it: feltd worker run --label {differing[0]}"
            + _or_edit(subject, f"placement.required_labels.{differing[0].split('=')[0]}=null")
        )
    if rule == "anti_affinity":
        pairs = sorted(wanted.anti_affinity.items())
        same = [f"{key}={text}" for key, text in pairs if offered.labels.get(key) == text]
        return f"{name} has {', '.join(same)}, which the work avoids", (
            "start a worker without it"
            + _or_edit(subject, f"placement.anti_affinity.{same[0].split('=')[0]}=null")
        )
    return _not_in_pool(subject, member, pools.get(wanted.pool_id or ""))


def _not_in_pool(subject: Subject, member: Member, pool: placement.Pool | None) -> tuple[str, str]:
    name, pool_id = member.row["name"], subject.wanted.pool_id
    if pool is None:
        return (
            f"{name} is in no pool {pool_id}: there is none",
            f"feltd pool create {pool_id} --tenant {subject.tenant_id}",
        )
    because = "is not listed"
    if pool.worker_ids is None or member.worker_id in pool.worker_ids:
        lacking = sorted(pool.capabilities - member.offered.granted)
        labels = sorted(pool.required_labels.items() - member.offered.labels.items())
        because = "lacks " + ", ".join([*lacking, *(f"{key}={text}" for key, text in labels)])
    return (
        f"{name} is no member of the pool {pool_id}: it {because}",
        f"feltd pool update {pool_id} --tenant {subject.tenant_id}, with --worker, --any-worker, "
        "--label or --capability",
    )


def _or_edit(subject: Subject, place: str) -> str:
    if subject.workload_id is None:
        return ", or edit the work: feltd workload edit"
    return f"; or feltd workload edit {subject.workload_id} --set {place}"


def _enroll(subject: Subject) -> str:
    asked = "".join(f" --capability {one}" for one in sorted(subject.wanted.capabilities))
    asked = asked or " --capability NAME"
    owner = f"--tenant {subject.tenant_id} --application {subject.application_id}"
    return f"feltd enroll {owner}{asked}"


def _extend(member: Member) -> str:
    grant_id = member.row["authorization_grant_id"]
    if grant_id is None:
        return "register it again under a grant that lives: feltd enroll"
    return f"feltd grants extend {grant_id} --expires 30d, or register it under another grant"


_STANDING = frozenset(
    ("not_ready", "draining", "quarantined", "full", "unhealthy", "stale", "grant")
)
