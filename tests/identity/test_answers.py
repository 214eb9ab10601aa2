"""POSTs that are done once under an Idempotency-Key."""

from typing import Any

from feltd.clock import Now
from feltd.identity import answers, keys
from feltd.identity.answers import Answered, Once, once
from feltd.identity.principals import LOCAL
from feltd.model.base import Ask, Caller
from feltd.model.key import CreateKey, RotateKey
from feltd.store.tx import Tx
from tests.identity.house import DAY_MS, House


class Counter:
    """A rule that does something countable."""

    def __init__(self) -> None:
        self.done = 0

    def __call__(self, tx: Tx, ask: Ask[Any], now: Now) -> dict[str, int]:
        self.done += 1
        return {"done": self.done}


def send(
    house: House,
    rule: Any,
    key: str | None = "k",
    body: str = "x",
    route: str = "count",
    by: Caller = LOCAL,
    **more: Any,
) -> Answered[Any]:
    ask = more.pop("ask", None) or Ask(caller=by, body=None)
    cmd: Once[Any] = Once(
        rule=rule, ask=ask, request_key=key, route=route, body_sha256=body, **more
    )
    return house.do(lambda tx, now: once(tx, cmd, now))


def test_a_repeat_gets_the_first_answer_and_does_nothing(house: House) -> None:
    count = Counter()

    first = send(house, count)
    second = send(house, count)

    assert (first.status, first.answer, first.repeated) == (201, {"done": 1}, False)
    assert (second.status, bytes(second.answer), second.repeated) == (201, b'{"done":1}', True)
    assert count.done == 1


def test_without_a_key_each_call_is_its_own(house: House) -> None:
    count = Counter()

    send(house, count, key=None)
    send(house, count, key=None)

    assert count.done == 2
    assert house.rows("SELECT * FROM answers") == []


def test_a_key_belongs_to_its_sender(house: House) -> None:
    count = Counter()

    for by in (LOCAL, house.caller(), house.caller()):
        send(house, count, by=by)

    assert count.done == 3


def test_the_same_key_with_another_request_is_refused(house: House) -> None:
    count = Counter()
    send(house, count)

    for other in ({"body": "y"}, {"route": "other"}):
        assert house.refusal(lambda o=other: send(house, count, **o)).code == "REQUEST_INVALID"
    assert count.done == 1


def test_a_refusal_is_not_kept(house: House) -> None:
    body = CreateKey(name="x")
    ask = Ask(caller=LOCAL, body=body, fresh=house.fresh())

    assert house.refusal(lambda: send(house, keys.create, ask=ask)).code == "REQUEST_INVALID"

    assert send(house, Counter()).repeated is False


def test_an_answer_is_kept_for_a_day_and_then_forgotten(house: House) -> None:
    count = Counter()
    send(house, count)

    house.later(DAY_MS - 1)
    assert send(house, count).repeated
    assert house.do(lambda tx, now: answers.prune(tx, 10, now)) == 0
    house.later(1)
    assert not send(house, count, body="y").repeated
    house.later(DAY_MS)
    assert house.do(lambda tx, now: answers.prune(tx, 10, now)) == 1


def test_pruning_is_bounded(house: House) -> None:
    """BC-070: no transaction of the keeper grows with what has gathered."""
    for number in range(5):
        send(house, Counter(), key=str(number))
    house.later(DAY_MS)

    left = [house.do(lambda tx, now: answers.prune(tx, 2, now)) for _ in range(4)]

    assert left == [2, 2, 1, 0]


def key_once(house: House) -> Answered[Any]:
    body = CreateKey(name="import", tenants=("acme",))
    ask = Ask(caller=LOCAL, body=body, fresh=house.fresh())
    return send(house, keys.create, ask=ask, public=keys.public, again=keys.create_again)


def test_a_repeated_creation_of_a_key_ends_the_first_and_makes_another(house: House) -> None:
    first = key_once(house).answer

    second = key_once(house).answer
    third = key_once(house).answer

    assert len({first.secret, second.secret, third.secret}) == 3
    ended = [house.ended(made.key_id) for made in (first, second, third)]
    assert ended == ["revoked", "revoked", None]
    kept = house.rows("SELECT answer FROM answers")[0]["answer"]
    assert third.key_id in kept
    assert "secret" not in kept


def test_a_repeated_rotation_replaces_the_first_successor(house: House) -> None:
    old = house.key(scopes=["workers:register"])
    worker = house.issue_worker_key(house.bearer_of(old), house.worker("worker_1"))

    def rotate() -> Any:
        ask = Ask(caller=LOCAL, body=RotateKey(overlap_ms=0), id=old.key_id, fresh=house.fresh())
        more = {"ask": ask, "public": keys.public, "again": keys.rotate_again}
        return send(house, keys.rotate, **more).answer

    first, second = rotate(), rotate()

    assert [house.ended(it.key_id) for it in (old, first, second)] == ["rotated", "rotated", None]
    assert house.bearer_of(second).subject == house.bearer_of(old).subject
    assert house.ended(worker.key_id) is None
