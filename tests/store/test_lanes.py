"""Whose turn it is: keep-alive calls first, tenants in turn, and nobody waits for ever."""

from feltd.store.lanes import BULK_SKIPPED_MAX, KEEP_ALIVE_RUN_MAX, Lanes, Operation


def waiting(
    lanes: Lanes, name: str, *, keep_alive: bool = False, bulk: bool = False, tenant: str = ""
) -> None:
    # The future is the loop's business; whose turn it is does not depend on it.
    lanes.add(Operation(lambda *_: None, name, None, keep_alive, tenant, 0.0, bulk))  # type: ignore[arg-type]


def taken(lanes: Lanes, turns: int) -> list[object]:
    """What the next batches begin with."""
    found = []
    for _ in range(turns):
        operation = lanes.take()
        assert operation is not None
        lanes.opened(operation)
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


def test_bulk_opens_a_batch_or_waits_for_the_next() -> None:
    """Nobody's answer waits for bulk that came behind him."""
    lanes = Lanes()
    waiting(lanes, "slice", bulk=True, tenant="loud")
    waiting(lanes, "pull", tenant="quiet")

    assert taken(lanes, 1) == ["pull"]
    assert lanes.take(opening=False) is None
    assert len(lanes) == 1
    assert taken(lanes, 1) == ["slice"]


def test_bulk_gets_one_batch_in_four_however_much_comes_before_it() -> None:
    lanes = Lanes()
    waiting(lanes, "slice", bulk=True, tenant="loud")
    for number in range(12):
        waiting(lanes, f"renew-{number}", keep_alive=True)

    opening = taken(lanes, BULK_SKIPPED_MAX + 1)

    assert opening[-1] == "slice"
    assert "slice" not in opening[:-1]


def test_what_fills_a_batch_is_not_counted_against_bulk() -> None:
    lanes = Lanes()
    waiting(lanes, "slice", bulk=True)
    for number in range(20):
        waiting(lanes, f"pull-{number}")

    assert taken(lanes, 1) == ["pull-0"]
    for _ in range(10):
        assert lanes.take(opening=False) is not None
    assert taken(lanes, BULK_SKIPPED_MAX - 1)[-1] == "pull-12"
    assert taken(lanes, 1) == ["slice"]


def test_tenants_take_turns_with_their_bulk() -> None:
    lanes = Lanes()
    for number in range(3):
        waiting(lanes, f"flood-{number}", bulk=True, tenant="loud")
    waiting(lanes, "one", bulk=True, tenant="quiet")

    assert taken(lanes, 2) == ["flood-0", "one"]


def test_a_slice_that_was_given_up_takes_no_turn_of_another() -> None:
    """Its client went away: the turn of bulk is still to come."""
    lanes = Lanes()
    for number in range(6):
        waiting(lanes, f"pull-{number}")
    assert taken(lanes, BULK_SKIPPED_MAX) == ["pull-0", "pull-1", "pull-2"]
    waiting(lanes, "gone", bulk=True, tenant="loud")
    waiting(lanes, "slice", bulk=True, tenant="quiet")

    given_up = lanes.take()

    assert given_up is not None
    assert given_up.cmd == "gone"
    assert taken(lanes, 2) == ["slice", "pull-3"]


def test_bulk_that_was_not_there_for_long_waits_for_no_batch() -> None:
    """One batch in four may begin with it; which one, the others do not mind."""
    lanes = Lanes()
    for number in range(12):
        waiting(lanes, f"pull-{number}")
    taken(lanes, BULK_SKIPPED_MAX + 2)
    waiting(lanes, "first", bulk=True)
    waiting(lanes, "second", bulk=True)

    opening = taken(lanes, BULK_SKIPPED_MAX + 2)

    assert (opening[0], opening[-1]) == ("first", "second")
