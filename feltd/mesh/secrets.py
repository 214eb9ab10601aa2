"""Keeps what looks like a secret out of text that people read: messages, log lines, labels.

Pure pattern matching; the found text is never echoed, only the rule's name. It errs towards
finding: refused text can be sent again with on_secret "redact".
"""

import re
from collections.abc import Mapping

from feltd.errors import Refused
from feltd.identity import bearer
from feltd.model.secret_text import RULES, Rule, covered, is_cover


def found(text: str) -> str | None:
    """The name of the first rule that this text breaks, or None."""
    for rule in RULES:
        if any(_counts(rule, match) for match in rule.pattern.finditer(text)):
            return rule.name
    return None


def holds_key(text: str) -> bool:
    """Whether a text holds a key of feltd, by its checksum, or a private key."""
    return any(
        _counts(rule, match)
        for rule in RULES
        if rule.name in {"feltd-key", "pem"}
        for match in rule.pattern.finditer(text)
    )


def redacted(text: str) -> str:
    """The text with `‹redacted: rule›` in place of everything that looks like a secret."""
    return covered(text, _counts)


def screened(text: str, on_secret: str, pointer: str) -> str:
    """The text as it may be stored: itself, or redacted when `on_secret` is "redact".

    Refuses WORKLOAD_SECRET_IN_TEXT naming the rule and where, never the text.
    """
    if on_secret == "redact":
        return redacted(text)
    rule = found(text)
    if rule is not None:
        raise Refused(
            "WORKLOAD_SECRET_IN_TEXT",
            f"the text looks like a secret (rule {rule}); take it out, or send on_secret: redact",
            errors=[{"pointer": pointer, "detail": f"rule {rule}"}],
        )
    return text


def screen_labels(labels: Mapping[str, str]) -> None:
    """Refuse WORKLOAD_SECRET_IN_TEXT for a label that looks like a secret, pointing at its key."""
    for key, text in labels.items():
        rule = found(f"{key}={text}")
        if rule is not None:
            # A key holds no ~, the other character that a pointer escapes.
            pointer = f"/labels/{key.replace('/', '~1')}"
            raise Refused(
                "WORKLOAD_SECRET_IN_TEXT",
                f"a label looks like a secret (rule {rule}): labels are shown to everybody",
                errors=[{"pointer": pointer, "detail": f"rule {rule}"}],
            )


def _counts(rule: Rule, match: re.Match[str]) -> bool:
    # Our own shape has a checksum: what fails it is no key of ours (and redaction is no secret).
    if rule.name == "feltd-key":
        return any(
            bearer.parse(match[0][:length]) is not None
            for length in range(len(match[0]), bearer.BEARER_CHARS - 1, -1)
        )
    return not is_cover(rule, match)
