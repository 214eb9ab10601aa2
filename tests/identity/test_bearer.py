"""The text of a key."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feltd.api import fresh
from feltd.identity import bearer

MATERIAL = st.text(alphabet=bearer.DIGITS, min_size=55, max_size=55)


@pytest.mark.parametrize("kind", ["s", "a", "w"])
def test_a_key_is_one_short_word_that_names_its_kind_and_its_id(kind: bearer.Kind) -> None:
    made = fresh.key_material()

    text = bearer.bearer(kind, made)

    assert text.startswith(f"felt_{kind}_{made[:12]}_")
    assert len(text) == bearer.BEARER_CHARS <= 80
    assert bearer.parse(text) == made[:12]


@given(MATERIAL, st.integers(0, 68), st.sampled_from(bearer.DIGITS + "_-. é"))
def test_a_key_with_one_wrong_character_is_no_key(material: str, at: int, wrong: str) -> None:
    text = bearer.bearer("s", material)

    mistyped = text[:at] + wrong + text[at + 1 :]

    assert mistyped == text or bearer.parse(mistyped) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "felt_",
        "felt_s_",
        "Bearer x",
        "felt_h_" + "0" * 62,
        "x" * 69,
        "felt_s_" + "é" * 62,
        "0" * 9999,
    ],
)
def test_what_has_not_the_shape_of_a_key_is_none(text: str) -> None:
    assert bearer.parse(text) is None


def test_a_checksum_alone_does_not_make_a_key() -> None:
    body = "felt_s_000000000000-" + "0" * 43

    assert bearer.parse(body + bearer.checksum(body.encode())) is None


@given(st.binary(max_size=80))
def test_the_checksum_is_the_crc32_in_base_62(body: bytes) -> None:
    digits = bearer.checksum(body)

    number = 0
    for digit in digits:
        number = number * 62 + bearer.DIGITS.index(digit)
    assert number == zlib.crc32(body)


def test_fresh_keys_never_meet() -> None:
    assert len({fresh.key_material() for _ in range(1_000)}) == 1_000
    assert len({fresh.grant_id() for _ in range(1_000)}) == 1_000


def test_material_of_another_length_or_alphabet_is_a_fault() -> None:
    for material in ("", "0" * 54, "0" * 56, "0" * 54 + "_"):
        with pytest.raises(ValueError, match="55 characters"):
            bearer.bearer("s", material)
