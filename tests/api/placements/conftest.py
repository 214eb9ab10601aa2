"""The daemon and the people of tests/api/claims, one daemon a file."""

from tests.api.claims.conftest import crew, daemon

__all__ = ["crew", "daemon"]
