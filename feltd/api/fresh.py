"""Randomness for the rules, made before a command is submitted, since rules make none."""

import secrets

from feltd.identity.bearer import DIGITS, FRESH_CHARS

#: 62^16 is 95 bits: ids are never guessed and never meet.
RECORD_CHARS = 16
#: A tenant has few holds; 62^10 is 59 bits.
HOLD_CHARS = 10


def characters(count: int) -> str:
    """`count` characters of 0-9A-Za-z from the system's randomness."""
    return "".join(secrets.choice(DIGITS) for _ in range(count))


def text() -> str:
    """96 bits that ids are made from; in one system call, since every creation asks for it."""
    return secrets.token_hex(12)


def key_material() -> str:
    """What a new key is made of: its id and its secret, 55 characters. See identity/bearer.py."""
    return characters(FRESH_CHARS)


def grant_id() -> str:
    """The id of a new grant."""
    return "grant_" + characters(RECORD_CHARS)


def hold_id() -> str:
    """The id of a new hold, short enough to be typed."""
    return "hold_" + characters(HOLD_CHARS)
