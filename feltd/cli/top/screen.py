"""How one look is drawn: a few lines of numbers, and a bar for each worker that fits.

Made for any width: what does not fit is cut at the end of its line, never folded, so the numbers
stay where the eye left them.
"""

from collections.abc import Iterator

from rich.text import Text

from feltd.cli.doctor.findings import size, span
from feltd.cli.output import CONTROLS
from feltd.cli.top.sample import IN_HANDS, Bar, Look

BAR_CELLS = 16
RATES = ("claims", "completed", "ended otherwise", "calls")
NAME_CELLS = 24
STYLES = {
    "READY": "green",
    "BUSY": "cyan",
    "DRAINING": "yellow",
    "OFFLINE": "red",
    "RECOVERING": "yellow",
    "REGISTERED": "dim",
}


def lines(look: Look, width: int, height: int, foot: str = "") -> list[Text]:
    """The screen as lines, none wider than `width`, at most `height` of them."""
    drawn = list(_head(look))
    room = max(0, height - len(drawn) - (2 if foot else 1))
    shown = look.workers[:room]
    drawn.append(Text(f"workers ({len(look.workers)})", style="bold"))
    drawn += [_worker(one) for one in shown]
    left = len(look.workers) - len(shown)
    if foot or left:
        more = f"{left} workers more; " if left else ""
        drawn.append(Text(more + foot, style="dim"))
    for line in drawn:
        line.no_wrap = True
        line.truncate(max(1, width), overflow="ellipsis")
    return drawn[: max(1, height)]


def _head(look: Look) -> Iterator[Text]:
    style = "bold green" if look.status == "healthy" else "bold red"
    line = Text.assemble("feltd ", look.version, " at ", look.url, "  ", (look.status, style))
    line.append(f"  up {span(look.uptime_ms)}")
    yield line
    for reason in look.reasons[:2]:
        yield Text(reason.translate(CONTROLS), style="yellow")
    states, rates = look.workloads, look.rates
    if states:
        running = sum(states.get(state, 0) for state in IN_HANDS)
        dead = states.get("DEAD_LETTERED", 0)
        retrying = "?" if look.retrying is None else str(look.retrying)
        yield Text.assemble(
            ("ready ", "dim"), (f"{states.get('READY', 0):.0f}", "bold"),
            ("  running ", "dim"), (f"{running:.0f}", "bold"),
            ("  retrying ", "dim"), (retrying, "bold"),
            ("  pending ", "dim"), f"{states.get('PENDING', 0):.0f}",
            ("  dead ", "dim"), (f"{dead:.0f}", "bold red" if dead else ""),
        )  # fmt: skip
        if rates:
            told = [f"{name} {rates[name]:.1f}" for name in RATES]
            yield Text("per second  " + "  ".join(told))
        yield _troubles(look)
    if look.oldest is not None:
        oldest = look.oldest
        line = Text(f"oldest  {oldest.kind} waits {span(oldest.waited_ms)}: ")
        line.append(oldest.code, style="yellow")
        line.append(f", {oldest.detail} -> {oldest.remedy}".translate(CONTROLS))
        yield line
    for what, why in look.missing.items():
        yield Text(f"no {what}: {why}".translate(CONTROLS), style="dim")


def _troubles(look: Look) -> Text:
    line = Text()
    for name in ("sheds", "fence refusals", "leases recovered"):
        total = look.totals.get(name, 0)
        line.append(f"{name} ", style="dim")
        line.append(f"{total:.0f}  ", style="bold red" if look.rates.get(name) else "")
    for name, told in (
        ("feltd_in_flight", "in flight"),
        ("feltd_long_polls", "polls"),
        ("feltd_channels", "channels"),
    ):
        line.append(f"{told} ", style="dim")
        line.append(f"{look.gauges.get(name, 0):.0f}  ")
    line.append("wal ", style="dim")
    line.append(size(look.gauges.get("feltd_wal_bytes", 0)))
    return line


def _worker(one: Bar) -> Text:
    filled = round(BAR_CELLS * min(1.0, one.active / max(1, one.concurrency)))
    # A worker that holds something shows it, however little of its room that is.
    filled = max(filled, 1) if one.active else filled
    told = "QUARANTINED" if one.quarantined else one.lifecycle
    name = one.name.translate(CONTROLS)
    name = name if len(name) <= NAME_CELLS else name[: NAME_CELLS - 1] + "…"
    seen = "" if one.seen_ms_ago is None else f"  {span(one.seen_ms_ago)} ago"
    style = "yellow" if one.quarantined else STYLES.get(one.lifecycle, "")
    return Text.assemble(
        f"{name:<{NAME_CELLS}} ",
        ("█" * filled, "cyan"),
        ("·" * (BAR_CELLS - filled), "dim"),
        f" {one.active:>4}/{one.concurrency:<4} ",
        (f"{told:<11}", style),
        (seen, "dim"),
        (f"  {one.tenant_id.translate(CONTROLS)}", "dim"),
    )
