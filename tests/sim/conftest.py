"""FELTD_SEED=n replays the schedules of that number and runs nothing else of this folder."""

import os

import pytest

REPLAY = "test_replay"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the replay, or with a seed to replay everything but it."""
    here = os.path.dirname(__file__)
    replaying = bool(os.environ.get("FELTD_SEED"))
    left_out = [
        item
        for item in items
        if str(item.path).startswith(here) and item.name.startswith(REPLAY) is not replaying
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
