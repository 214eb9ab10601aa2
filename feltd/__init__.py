"""feltd: a worker-mesh control plane in one daemon and one SQLite file."""

__version__ = "0.1.0"
