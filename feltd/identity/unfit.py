"""Refusing members that can be read but do not fit, found by a rule, not by the decoder."""

from collections.abc import Sequence

from feltd.errors import Refused

#: As many are named as a person reads.
ERRORS_MAX = 32


def unfit(code: str, found: Sequence[tuple[str, str]]) -> Refused:
    """`code` with `errors: [{pointer, detail}]`; `found` holds at least one (pointer, sentence)."""
    pointer, detail = found[0]
    return Refused(
        code,
        f"{pointer or 'the request'}: {detail}",
        errors=[{"pointer": at, "detail": what} for at, what in found[:ERRORS_MAX]],
    )
