"""The daemons of these stories: a process each, ended with the test; and a mesh in memory."""

from tests.daemon.conftest import daemon, daemons
from tests.mesh.conftest import mesh

__all__ = ["daemon", "daemons", "mesh"]
