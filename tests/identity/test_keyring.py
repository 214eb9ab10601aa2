"""The signing keys, their file, and the tokens made with them."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feltd.errors import Refused
from feltd.identity import grants, keyring
from feltd.identity.keyring import Keyring, Signed
from feltd.model.base import Subject
from feltd.store import private
from feltd.store.connect import StoreProblem
from tests.identity.house import House

SECRET = bytes([4]) * 32
SIGNED = Signed(
    contract_version=1,
    id="grant_1",
    subject=Subject(kind="service", id="registrar"),
    tenant_id="t",
    application_id="a",
)


def ring(kid: str = "k", secret: bytes = SECRET) -> Keyring:
    return keyring.parse(keyring.render(kid, secret))


def text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def test_a_token_proves_the_grant_it_was_made_for() -> None:
    token = ring().seal(SIGNED)

    assert ring().open(token) == SIGNED
    assert token.split(".")[0] == "k"
    assert token == ring().seal(SIGNED)


@given(st.data())
def test_a_token_with_one_wrong_character_proves_nothing(data: st.DataObject) -> None:
    token = ring().seal(SIGNED)
    at = data.draw(st.integers(0, len(token) - 1))
    wrong = data.draw(st.sampled_from("AZaz09-_.=+/ é\0"))

    forged = token[:at] + wrong + token[at + 1 :]

    assert forged == token or ring().open(forged) is None


@pytest.mark.parametrize("token", ["", ".", "..", "...", "k.e30.e30", "k" * 5_000, "k.é.x", "a.b"])
def test_any_other_text_proves_nothing(token: str) -> None:
    assert ring().open(token) is None


def test_another_secret_or_another_kid_proves_nothing() -> None:
    token = ring().seal(SIGNED)

    assert ring(secret=bytes(32)).open(token) is None
    assert ring(kid="other").open(token) is None
    # The MAC of an unknown kid is made with a key everybody knows; it still opens nothing.
    assert ring().open(Keyring("x", {"x": bytes(32)}).seal(SIGNED)) is None


def test_a_payload_that_is_not_canonical_proves_nothing_even_when_signed() -> None:
    keys = ring()
    payload = base64.urlsafe_b64decode(keys.seal(SIGNED).split(".")[1] + "==")
    for other in (
        json.dumps(json.loads(payload), indent=1).encode(),
        payload + b" ",
        payload.replace(b'"tenant_id":"t"', b'"tenant_id":"t","tenant_id":"t"'),
        payload.replace(b"}", b',"x":1}'),
        b"not json",
        b"",
    ):
        forged = f"k.{text(other)}.{text(keys._mac('k', other))}"
        assert keys.open(forged) is None


def test_a_token_never_passes_as_the_mac_of_anything_else() -> None:
    payload = base64.urlsafe_b64decode(ring().seal(SIGNED).split(".")[1] + "==")
    mac = ring()._mac("k", payload)

    import hashlib
    import hmac

    assert mac != hmac.digest(SECRET, payload, hashlib.sha256)
    assert mac != hmac.digest(SECRET, b"k." + payload, hashlib.sha256)


def file(*keys: tuple[str, str, bytes]) -> bytes:
    members = [{"kid": kid, "status": status, "secret": text(s)} for kid, status, s in keys]
    return json.dumps({"format": "feltd-keyring/1", "keys": members}).encode()


def test_an_older_key_still_verifies_and_a_retired_one_does_not() -> None:
    old, new = bytes([1]) * 32, bytes([2]) * 32
    token = ring("old", old).seal(SIGNED)

    both = keyring.parse(file(("old", "verify", old), ("new", "active", new)))
    retired = keyring.parse(file(("old", "retired", old), ("new", "active", new)))

    assert both.open(token) == SIGNED
    assert both.kid == "new"
    assert both.seal(SIGNED).startswith("new.")
    assert retired.open(token) is None
    assert len(both.cursor_secret) == 32


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not a keyring"),
        (b"{}", "is not a keyring"),
        (b"\xff\xfe", "is not a keyring"),
        (b"[" * 100_000, "is not a keyring"),
        (file(), "is not a keyring"),
        (file(("k", "active", b"short")), "broken secret"),
        (file(("k", "verify", SECRET)), "0 active keys"),
        (file(("a", "active", SECRET), ("b", "active", SECRET)), "2 active keys"),
        (file(("a", "active", SECRET), ("a", "verify", SECRET)), "twice"),
    ],
)
def test_a_file_that_is_no_keyring_is_refused_in_a_sentence(content: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as problem:
        keyring.parse(content)
    assert text(SECRET) not in str(problem.value)


def test_no_secret_is_printed() -> None:
    shown = repr(ring()) + str(ring())

    assert text(SECRET) not in shown
    assert repr(SECRET) not in shown


def test_the_handler_gets_the_id_or_the_refusal_it_asked_for(house: House) -> None:
    grant = house.grant("registrar")
    token = grants.token_of(ring(), grant)

    assert grants.open_token(ring(), token) == grant.id
    with pytest.raises(Refused, match="WORKER_UNAUTHORIZED"):
        grants.open_token(ring(), token[:-1], "WORKER_UNAUTHORIZED")


def test_a_token_stays_good_when_its_grant_is_extended(house: House) -> None:
    grant = house.grant("registrar")
    token = grants.token_of(ring(), grant)

    house.replace(grant, expires_at_ms=grant.expires_at_ms + 1)

    assert grants.open_token(ring(), token) == grant.id
    assert grants.token_of(ring(), house.read(grant)) == token


# The file


def test_a_private_file_is_made_once_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "signing.keyring"
    private.create(path, b"first")

    assert path.stat().st_mode & 0o7777 == 0o600
    assert private.read(path) == b"first"
    with pytest.raises(StoreProblem, match="exists already"):
        private.create(path, b"second")
    assert path.read_bytes() == b"first"
    assert [it.name for it in tmp_path.iterdir()] == ["signing.keyring"]


def test_what_a_crash_left_of_a_private_file_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "signing.keyring.new").write_bytes(b"torn")

    private.create(tmp_path / "signing.keyring", b"whole")

    assert private.read(tmp_path / "signing.keyring") == b"whole"


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o660, 0o666, 0o644])
def test_a_file_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "signing.keyring"
    private.create(path, b"x")
    path.chmod(mode)

    with pytest.raises(StoreProblem, match=f"mode {mode:04o}"):
        private.read(path)


def test_a_link_a_folder_a_missing_or_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "signing.keyring"
    private.create(path, b"x")
    link, huge = tmp_path / "link", tmp_path / "huge"
    link.symlink_to(path)
    private.create(huge, b"x" * (private.BYTES_MAX + 1))

    for wrong in (link, tmp_path, tmp_path / "missing", huge):
        with pytest.raises(StoreProblem):
            private.read(wrong)
    with pytest.raises(StoreProblem, match="cannot be written"):
        private.create(tmp_path / "no" / "folder", b"x")


def test_a_rotated_file_signs_by_the_new_key_and_verifies_the_old() -> None:
    file = keyring.render("first", b"1" * 32)
    token = keyring.parse(file).seal(SIGNED)
    turned = keyring.rotated(file, "second", b"2" * 32)
    assert keyring.standings(turned) == [("second", "active"), ("first", "verify")]
    held = keyring.parse(turned)
    assert held.open(token) == SIGNED
    assert held.signer(held.seal(SIGNED)) == "second"
    ended = keyring.parse(keyring.retired(turned, "first"))
    assert ended.open(token) is None
    assert ended.retired == {"first"}


def test_a_keyring_follows_its_file_in_place() -> None:
    """Whoever holds the object signs and verifies as the file says from then on."""
    file = keyring.render("first", b"1" * 32)
    held = keyring.parse(file)
    token = held.seal(SIGNED)
    turned = keyring.rotated(file, "second", b"2" * 32)
    held.follow(keyring.parse(turned))
    assert (held.kid, held.open(token)) == ("second", SIGNED)
    held.follow(keyring.parse(keyring.retired(turned, "first")))
    assert held.open(token) is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda file: keyring.retired(file, "first"), "rotate first"),
        (lambda file: keyring.retired(file, "other"), "holds no key other"),
        (lambda file: keyring.rotated(file, "first", b"2" * 32), "knows key first already"),
    ],
)
def test_a_change_that_would_lose_the_signer_is_refused(change: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        change(keyring.render("first", b"1" * 32))


def test_a_full_file_takes_no_more_keys() -> None:
    file = keyring.render("k0", b"1" * 32)
    for number in range(1, keyring.KEYS_MAX):
        file = keyring.rotated(file, f"k{number}", b"2" * 32)
    with pytest.raises(ValueError, match="take retired ones out"):
        keyring.rotated(file, "more", b"2" * 32)


def test_a_private_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "signing.keyring"
    private.create(path, b"old")
    private.change(path, lambda old: b"new")
    assert (private.read(path), path.stat().st_mode & 0o777) == (b"new", 0o600)
    # Another command is at it, or was killed.
    path.with_name("signing.keyring.next").write_bytes(b"half")
    with pytest.raises(StoreProblem, match="another command is writing"):
        private.change(path, lambda old: b"newer")
    assert private.read(path) == b"new"
