"""Every statement of what state does by itself is a place to die at: all of them are tried.

After each death the promises hold as they did before, and the same call, made again, does what it
would have done: nothing is missing, nothing comes twice. So does one whose answer was lost, and one
that found the disk full.
"""

from collections.abc import Callable
from functools import cache

import pytest

from tests.state import deaths
from tests.state.dying import Story, die, statements

STORIES: dict[str, Callable[[], Story]] = {
    "a transaction of five mutations": deaths.transaction,
    "an evaluation of three changes for two triggers": deaths.evaluated,
    "the same in slices": deaths.evaluated_in_slices,
    "an evaluation beside the keeper's": deaths.evaluated_by_two,
    "instants that are due": deaths.fired,
    "a fifth failure": deaths.disabled,
    "a definition with another start": deaths.begun,
    "every table cleared": deaths.cleared,
}
#: In the ordinary run every statement is died at, and each fifth one finds the disk full.
FULL_STEP = 5


@cache
def told(name: str) -> tuple[Story, list[int]]:
    """A story, and how many statements each of its steps takes."""
    story = STORIES[name]()
    return story, statements(story)


def everywhere(name: str, kind: str, step: int = 1) -> int:
    """Die at every `step`-th statement; how often."""
    story, counted = told(name)
    died = 0
    for number, count in enumerate(counted):
        for at in range(1, count + 1, step):
            die(story, kind, number, at)
            died += 1
    return died


@pytest.mark.parametrize("name", STORIES)
def test_a_death_at_any_statement_is_as_if_nothing_had_begun(name: str) -> None:
    assert everywhere(name, "crash") > 9


@pytest.mark.parametrize("name", STORIES)
def test_an_answer_that_was_lost_leaves_what_was_done(name: str) -> None:
    story, counted = told(name)
    for number in range(len(counted)):
        die(story, "lost", number, 0)


@pytest.mark.parametrize("name", STORIES)
def test_a_full_disk_at_some_statement_is_as_if_nothing_had_begun(name: str) -> None:
    assert everywhere(name, "full", FULL_STEP) > 3


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", STORIES)
def test_a_full_disk_at_any_statement_is_as_if_nothing_had_begun(name: str) -> None:
    assert everywhere(name, "full") > 9
