"""Text that looks like a secret is found, named by its rule, and covered."""

import pytest

from feltd.identity import bearer
from feltd.mesh import secrets

OWN = bearer.bearer("s", "A" * 12 + "b" * 43)

SECRETS = [
    ("feltd-key", f"key {OWN} leaked"),
    ("bearer", "Authorization: Bearer abcdefgh12345678"),
    ("pem", "-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----"),
    ("aws-key", "using AKIAIOSFODNN7EXAMPLE now"),
    ("github-token", "ghp_" + "a1B2" * 9),
    ("gitlab-token", "glpat-" + "x" * 20),
    ("slack-token", "xoxb-1234567890-abc"),
    ("google-key", "AIza" + "b" * 35),
    ("stripe-key", "sk_live_" + "c" * 24),
    ("url-password", "cannot connect to postgres://app:hunter2@db.example:5432/orders"),
    ("url-password", "redis://:p4ss@cache"),
    ("assignment", "PASSWORD = 'hunter2hunter2'"),
    ("assignment", "api-key:abcdefgh"),
    ("assignment", 'my_secret="12345678"'),
    ("assignment", "token=abcdefgh1"),
]

PLAIN = [
    "fencing_token=12345678901",
    "the secret of success is work",
    "http://host:8080/a@b and mailto:a@b, ssh://git@host:22/x, s3://bucket/a:b",
    "password: short",
    "Bearer of bad news",
    OWN[:-1] + ("0" if OWN[-1] != "0" else "1"),
    "‹redacted: assignment›",
    "",
]


@pytest.mark.parametrize(("rule", "text"), SECRETS)
def test_a_secret_is_found_and_covered(rule: str, text: str) -> None:
    covered = secrets.redacted(text)

    assert secrets.found(text) == rule
    assert f"‹redacted: {rule}›" in covered
    assert secrets.found(covered) is None
    assert secrets.redacted(covered) == covered


@pytest.mark.parametrize("text", PLAIN)
def test_plain_text_passes_as_it_is(text: str) -> None:
    assert secrets.found(text) is None
    assert secrets.redacted(text) == text


def test_nothing_of_the_secret_is_left() -> None:
    covered = secrets.redacted(f"a {OWN} b password=hunter2hunter2 c")

    assert covered == "a ‹redacted: feltd-key› b password=‹redacted: assignment› c"
