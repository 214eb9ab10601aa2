"""Rules of the mesh: workers, workloads, placement, claims, and how each ends."""
