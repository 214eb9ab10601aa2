"""Whose turn it is: keep-alive calls first, tenants in turn, and nobody waits for ever."""

from feltd.store.lanes import KEEP_ALIVE_RUN_MAX, Lanes, Operation


def waiting(lanes: Lanes, name: str, *, keep_alive: bool = False, tenant: str = "") -> None:
    # The future is the loop's business; whose turn it is does not depend on it.
    lanes.add(Operation(lambda *_: None, name, None, keep_alive, tenant, 0.0))  # type: ignore[arg-type]


def taken(lanes: Lanes, turns: int) -> list[object]:
    found = []
    for _ in range(turns):
        operation = lanes.take()
        assert operation is not None
        found.append(operation.cmd)
    return found


def test_keep_alive_calls_go_before_the_rest() -> None:
    lanes = Lanes()
    waiting(lanes, "pull")
    waiting(lanes, "renew", keep_alive=True)

    assert taken(lanes, 2) == ["renew", "pull"]


def test_an_endless_row_of_keep_alive_calls_leaves_turns_to_the_rest() -> None:
    lanes = Lanes()
    for number in range(8):
        waiting(lanes, f"exchange-{number}", keep_alive=True)
    waiting(lanes, "pull")

    assert taken(lanes, KEEP_ALIVE_RUN_MAX + 1)[-1] == "pull"
    assert taken(lanes, 5) == [f"exchange-{number}" for number in range(3, 8)]


def test_tenants_take_turns() -> None:
    lanes = Lanes()
    for number in range(3):
        waiting(lanes, f"flood-{number}", tenant="loud")
    waiting(lanes, "one", tenant="quiet")

    assert taken(lanes, 2) == ["flood-0", "one"]
