"""The audit chain can be computed again by anybody: each hash is over plain JSON."""

import hashlib
import json
from functools import partial

from feltd.clock import Now
from feltd.identity import audit, bearer
from feltd.store.tx import Tx
from tests.identity.house import House


def test_a_hash_is_over_the_json_of_its_row(house: House) -> None:
    """No tool, and no later Python, may read a reason in another way than it was hashed."""
    reason = 'a "quoted" word, a line\n, ümlaut, a face that came with Unicode 15: \U0001fae8'
    house.do(lambda tx, now: audit.act(tx, now, "human:ann", "drain", "worker_1", reason=reason))

    [row] = house.rows("SELECT * FROM audit ORDER BY seq DESC LIMIT 1")

    told = dict(row)
    kept = told.pop("hash")
    text = json.dumps(list(told.values()), ensure_ascii=False, separators=(",", ":"))
    assert told["reason"] == reason
    assert kept == hashlib.sha256(text.encode()).hexdigest()


def test_a_secret_in_a_reason_is_covered(house: House) -> None:
    """The chain is kept for ever: what stands in it cannot be taken back."""
    secret = bearer.bearer("s", "A" * 12 + "b" * 43)
    for reason in (f"key {secret} has leaked", "password: hunter2hunter2"):
        house.do(partial(_drained, reason=reason))

    kept = [row["reason"] for row in house.rows("SELECT reason FROM audit WHERE action = 'drain'")]

    assert kept == ["key ‹redacted: feltd-key› has leaked", "password: ‹redacted: assignment›"]


def _drained(tx: Tx, now: Now, reason: str) -> None:
    audit.act(tx, now, "human:ann", "drain", "worker_1", reason=reason)
