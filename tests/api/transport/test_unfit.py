"""A refusal names what would fit, in words, at the member that does not."""

import pytest
from msgspec import Struct

from feltd.api import wire
from feltd.errors import Refused
from feltd.model.base import Labels, Subject
from feltd.model.grant import Runtime


class Crew(Struct, frozen=True, forbid_unknown_fields=True):
    """Members at every depth: in a list, in an object, in a dictionary's key, beside null."""

    members: tuple[Subject, ...] = ()
    lead: Subject | None = None
    labels: Labels | None = None
    runtime: Runtime | None = None


def told(body: bytes) -> tuple[str, str]:
    with pytest.raises(Refused) as refused:
        wire.decode(body, Crew, "WORKER_INVALID")
    [one] = refused.value.facts["errors"]
    return one["pointer"], one["detail"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b'{"members": [{"kind": "ci", "id": "a"}]}', "/members/0/kind"),
        (b'{"lead": {"kind": "ci", "id": "a"}}', "/lead/kind"),
    ],
)
def test_a_word_that_is_none_of_a_set_is_answered_with_the_set(body: bytes, pointer: str) -> None:
    assert told(body) == (
        pointer,
        "Invalid enum value 'ci': one of agent, connection, human, service, worker, workload",
    )


def test_a_name_with_a_space_is_answered_with_the_characters_it_may_hold() -> None:
    fits = "may hold only letters, digits and . _ @ + -"
    assert told(b'{"lead": {"kind": "human", "id": "a b"}}')[1].startswith(fits + " and")
    pointer, detail = told(b'{"labels": {"a b": "c"}}')
    assert pointer == "/labels/a b"
    assert detail.startswith(fits + " / and")


def test_a_query_parameter_is_told_so_too() -> None:
    with pytest.raises(Refused, match="'sh': one of browser, container"):
        wire.query({"query_string": b"runtime=sh"}, Crew)
