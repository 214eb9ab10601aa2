"""A world once more, as it stands: its rows, its clocks, what was acknowledged, and who holds what.

Dying at each statement of a call needs the moment before it as often as there are statements.
"""

from copy import deepcopy
from typing import Any, TypeVar

from feltd.store.connect import memory
from tests.sim.faults import Line
from tests.sim.world import World

T = TypeVar("T")


def twin(world: World, reaching: T) -> T:
    """`reaching` once more, and the world it reaches over a database of its own."""
    conn = memory()
    conn.deserialize(world.conn.serialize())
    known: dict[int, Any] = {id(world.conn): conn, id(world._line): Line(conn)}
    # Rows are counted anew: the first look at the twin is not to be taken for one that was had.
    checked, world._checked = world._checked, -1
    try:
        return deepcopy(reaching, known)
    finally:
        world._checked = checked
