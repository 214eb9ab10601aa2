"""The daemons of these stories are the ones of tests/daemon: a process each, ended with the test."""

from tests.daemon.conftest import daemon, daemons

__all__ = ["daemon", "daemons"]
