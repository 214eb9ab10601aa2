"""Who tries too often waits, each time longer; nobody else does."""

from feltd.identity import throttle
from feltd.identity.throttle import ACCOUNT_FREE, ADDRESS_FREE, KEPT_MS, LOGINS_FREE, Throttle

HERE, THERE = "192.0.2.7", "198.51.100.9"


def tried(table: Throttle, name: str, address: str, at_ms: int, times: int = 1) -> int:
    """The wait after so many wrong passwords."""
    for _ in range(times):
        wait_ms, _ = table.begin(name, address, at_ms)
        assert wait_ms == 0
    return table.begin(name, address, at_ms)[0]


def test_the_first_wrong_passwords_cost_nothing_and_each_further_one_doubles_the_wait() -> None:
    table, at_ms = Throttle(), 1_000_000

    waits = [tried(table, "ada", HERE, at_ms, ACCOUNT_FREE)]
    for _ in range(12):
        at_ms += waits[-1]
        waits.append(tried(table, "ada", HERE, at_ms))

    assert waits[:4] == [1_000, 2_000, 4_000, 8_000]
    assert waits[-1] == throttle.WAIT_LAST_MS


def test_being_told_to_wait_is_told_once_and_an_attempt_refused_is_none() -> None:
    table = Throttle()

    marks = [table.begin("ada", HERE, 0)[1] for _ in range(ACCOUNT_FREE)]
    refused = [table.begin("ada", HERE, 500) for _ in range(50)]

    assert marks == [False] * (ACCOUNT_FREE - 1) + [True]
    assert refused == [(500, False)] * 50
    assert table.begin("ada", HERE, 1_000) == (0, False)


def test_many_attempts_at_once_are_no_way_around_it() -> None:
    table = Throttle()

    let_in = [table.begin("ada", HERE, 0)[0] == 0 for _ in range(40)]

    assert sum(let_in) == ACCOUNT_FREE


def test_the_right_password_clears_the_account_but_not_what_the_address_tried_on_others() -> None:
    table = Throttle()
    for number in range(ADDRESS_FREE - 1):
        assert table.begin(f"victim-{number}", HERE, 0)[0] == 0

    assert table.begin("mallory", HERE, 0)[0] == 0
    table.right("mallory", HERE, 0)
    assert table.begin("another", HERE, 0)[0] == 0

    assert table.begin("one-more", HERE, 0)[0] == 1_000
    assert table.begin("one-more", THERE, 0)[0] == 0


def test_strangers_who_try_a_name_do_not_keep_its_user_out_where_he_logged_in_before() -> None:
    table = Throttle()
    table.begin("ada", HERE, 0)
    table.right("ada", HERE, 0)

    assert tried(table, "ada", THERE, 0, ACCOUNT_FREE) > 0

    assert table.begin("ada", HERE, 0)[0] == 0


def test_what_was_tried_is_forgotten_in_time_and_the_table_stays_small() -> None:
    table = Throttle()
    tried(table, "ada", HERE, 0, ACCOUNT_FREE)

    assert table.begin("bob", THERE, KEPT_MS)[0] == 0

    assert len(table._accounts) == 1
    assert table.begin("ada", HERE, KEPT_MS)[0] == 0


def test_an_attempt_the_daemon_had_no_time_for_is_none() -> None:
    table = Throttle()

    for _ in range(10 * ADDRESS_FREE):
        assert table.begin("ada", HERE, 0)[0] == 0
        table.unmade("ada", HERE)


def test_whoever_has_the_password_may_not_fill_the_table_of_sessions_either() -> None:
    table, let_in = Throttle(), 0

    for _ in range(10 * LOGINS_FREE):
        if table.begin("robot", HERE, 0)[0] == 0:
            table.right("robot", HERE, 0)
            let_in += 1

    assert let_in == LOGINS_FREE


def test_an_address_that_names_nobody_is_not_counted() -> None:
    table = Throttle()

    for number in range(10 * ADDRESS_FREE):
        assert table.begin(f"user-{number}", "", 0)[0] == 0


def test_sign_ups_of_one_address_wait_like_wrong_passwords() -> None:
    table = Throttle()

    waits = [table.sign_up(HERE, 0) for _ in range(ADDRESS_FREE + 2)]

    assert waits == [0] * ADDRESS_FREE + [1_000, 1_000]
    assert table.begin("ada", HERE, 0)[0] == 1_000
