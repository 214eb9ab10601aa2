"""What a client meets instead of an answer: a refusal of the daemon, or silence.

A refusal carries what the client does `next`; nobody needs to know the codes by name, and a code
that this version has never heard of is as good as any other.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

#: Statuses of a proxy or of a daemon in trouble whose body is no problem document of feltd.
_PASSING = frozenset({408, 425, 429, 502, 503, 504})


class Refusal(Exception):
    """The daemon refused a call. `next` says what to do, `facts` is the whole problem document.

    `retry_after_s` is the daemon's Retry-After in seconds, None where it named none.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        status: int,
        next: str,
        facts: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.status = status
        self.next = next
        self.facts: Mapping[str, Any] = facts or {}
        self.retry_after_s = retry_after_s

    @property
    def reason(self) -> str | None:
        """Code of the first of `reasons`, such as taken_over for a key that has ended."""
        reasons = self.facts.get("reasons")
        if isinstance(reasons, list) and reasons and isinstance(reasons[0], dict):
            code = reasons[0].get("code")
            return code if isinstance(code, str) else None
        return None

    @property
    def reason_detail(self) -> str:
        """The sentence of the first of `reasons`, else the refusal's own."""
        reasons = self.facts.get("reasons")
        if isinstance(reasons, list) and reasons and isinstance(reasons[0], dict):
            return str(reasons[0].get("detail") or self.detail)
        return self.detail


class Unreachable(Exception):
    """No answer came, for as long as the caller was ready to wait; the outcome is not known."""


def read(status: int, content: bytes, retry_after: str | None) -> Refusal:
    """The refusal behind an answer that is not 2xx, whoever wrote it."""
    facts: dict[str, Any] = {}
    try:
        decoded = msgspec.json.decode(content)
        if isinstance(decoded, dict):
            facts = decoded
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    code = facts.get("code")
    if not isinstance(code, str):
        code = f"HTTP_{status}"
    next = facts.get("next")
    if not isinstance(next, str):
        next = "repeat" if status in _PASSING else "ask_operator"
    detail = facts.get("detail") or facts.get("error") or f"the answer has status {status}"
    return Refusal(
        code,
        str(detail),
        status=status,
        next=next,
        facts=facts,
        retry_after_s=_seconds(retry_after),
    )


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After as seconds; the date form is not sent by feltd and counts as none."""
    if retry_after is None or not retry_after.strip().isdigit():
        return None
    return float(min(int(retry_after), 3_600))
