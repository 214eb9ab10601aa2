"""The audit chain can be computed again by anybody: each hash is over plain JSON."""

import hashlib
import json

from feltd.identity import audit
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
