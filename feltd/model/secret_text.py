"""What text of people and programs looks like a secret: the patterns, and how a find is covered.

Pure. The daemon refuses or covers such text where it would be stored; a worker covers what it has
to cut, because half a secret is found by nobody. It errs towards finding.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple


class Rule(NamedTuple):
    """One kind of secret; the whole match is replaced, or its group `secret` if it has one."""

    name: str
    pattern: re.Pattern[str]


#: In the order they are tried; the first that matches names the refusal.
RULES = (
    Rule("feltd-key", re.compile(r"felt_[sahw]_[0-9A-Za-z]{12}_[0-9A-Za-z]{40,60}")),
    Rule("bearer", re.compile(r"(?i)\bBearer\s+(?P<secret>[A-Za-z0-9._~+/=\-]{16,})")),
    Rule(
        "pem",
        re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z0-9 ]*-----|\Z)"),
    ),
    Rule("aws-key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    Rule("google-key", re.compile(r"\bAIza[0-9A-Za-z_\-]{35}")),
    Rule("github-token", re.compile(r"\b(?:gh[pousr]_[0-9A-Za-z]{36,}|github_pat_\w{22,})")),
    Rule("gitlab-token", re.compile(r"\bglpat-[0-9A-Za-z_\-]{20,}")),
    Rule("slack-token", re.compile(r"\bxox[abprs]-[0-9A-Za-z\-]{10,}")),
    Rule("stripe-key", re.compile(r"\b[rs]k_live_[0-9A-Za-z]{16,}")),
    # What a client of a database, a queue or a proxy says when it cannot connect.
    Rule("url-password", re.compile(r"://[^\s/:@?#]{0,256}:(?P<secret>[^\s/@]{1,256})@")),
    Rule(
        "assignment",
        re.compile(
            r"""(?i)(?<!fencing_)(?:password|passwd|secret|token|api[_-]?key)"""
            r"""\s*[:=]\s*["']?(?P<secret>\S{8,})"""
        ),
    ),
)


def covered(text: str, counts: Callable[[Rule, re.Match[str]], bool] | None = None) -> str:
    """The text with `‹redacted: rule›` in place of everything that looks like a secret.

    `counts` may say of a match that it is none after all.
    """
    for rule in RULES:
        text = rule.pattern.sub(partial(_cover, rule, counts), text)
    return text


def is_cover(rule: Rule, match: re.Match[str]) -> bool:
    """Whether what was found is the cover of an earlier find."""
    return "secret" in rule.pattern.groupindex and match["secret"].startswith("‹redacted")


def _cover(
    rule: Rule, counts: Callable[[Rule, re.Match[str]], bool] | None, match: re.Match[str]
) -> str:
    if is_cover(rule, match) or not (counts is None or counts(rule, match)):
        return match[0]
    cover = f"‹redacted: {rule.name}›"
    if "secret" not in rule.pattern.groupindex:
        return cover
    start, end = (place - match.start() for place in match.span("secret"))
    return match[0][:start] + cover + match[0][end:]
