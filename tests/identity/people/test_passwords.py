"""What is kept of a password, and that only it matches."""

import pytest

from feltd.identity import passwords

PASSWORD = "correct horse battery"


def test_what_is_kept_names_its_costs_and_holds_neither_password_nor_salt_in_clear() -> None:
    kept = passwords.hashed(PASSWORD, b"0123456789abcdef")

    assert kept.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert "horse" not in kept
    assert "0123456789" not in kept


def test_only_the_same_password_matches() -> None:
    kept = passwords.hashed(PASSWORD, b"0123456789abcdef")

    assert passwords.matches(kept, PASSWORD)
    assert not passwords.matches(kept, PASSWORD + " ")
    assert not passwords.matches(kept, PASSWORD.title())


def test_two_people_with_one_password_do_not_look_alike() -> None:
    one, two = (passwords.hashed(PASSWORD, salt * 16) for salt in (b"a", b"b"))

    assert one.rpartition("$")[2] != two.rpartition("$")[2]


@pytest.mark.parametrize("kept", ["", "plain text", "$argon2id$", "$argon2id$v=19$m=1,t=1,p=1$a$b"])
def test_nothing_matches_what_is_no_hash(kept: str) -> None:
    assert not passwords.matches(kept, PASSWORD)


def test_a_salt_of_another_length_is_a_fault_of_the_caller() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        passwords.hashed(PASSWORD, b"short")


def test_a_password_of_every_length_and_script_is_taken_as_it_is() -> None:
    long = "пароль-鍵-🔑" * 25

    assert passwords.matches(passwords.hashed(long, b"0123456789abcdef"), long)
