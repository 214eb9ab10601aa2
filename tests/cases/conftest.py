"""The daemons of these stories: a process each, ended with the test."""

from tests.daemon.conftest import daemon, daemons

__all__ = ["daemon", "daemons"]
