"""Workers under ever new names, each narrowing its pulls anew, leave no memory behind for ever."""

from collections.abc import Iterator

import pytest

from feltd.mesh import fits
from feltd.mesh.fits import ENTRY_IDS, NARROWINGS_MAX, Fits
from tests.mesh.world import Mesh


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    world = Mesh()
    yield world
    world.close()


def test_what_was_found_for_the_worker_longest_not_asked_for_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fits, "IDS_MAX", 10 * (100 + ENTRY_IDS))
    found: Fits[str] = Fits()
    for number in range(10):
        found.keep(f"w{number}", (), f"fit {number}", 100)
    assert found.get("w0", ()) == "fit 0"

    found.keep("w10", (), "fit 10", 100)

    assert found.get("w1", ()) is None
    assert [found.get(f"w{number}", ()) for number in (0, 2, 10)] == ["fit 0", "fit 2", "fit 10"]
    assert found.ids == fits.IDS_MAX


def test_a_worker_that_narrows_as_it_likes_is_remembered_a_few_times() -> None:
    found: Fits[int] = Fits()
    for number in range(1_000):
        found.keep("w", (f"kind-{number}",), number, 50)
        assert found.get("w", (f"kind-{number}",)) == number
        assert found.ids <= NARROWINGS_MAX * (50 + ENTRY_IDS)


def test_a_finding_kept_again_is_counted_once() -> None:
    found: Fits[int] = Fits()
    for ids in (10, 200, 3):
        found.keep("w", (), ids, ids)
        assert (found.get("w", ()), found.ids) == (ids, ids + ENTRY_IDS)


def test_one_worker_is_remembered_however_much_fits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "IDS_MAX", 10)
    found: Fits[str] = Fits()
    found.keep("small", (), "fit", 1)
    found.keep("large", (), "fit", 5_000)

    assert (found.get("small", ()), found.get("large", ())) == (None, "fit")


def test_forgotten_workers_find_their_work_again(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits, "IDS_MAX", 3 * ENTRY_IDS)
    workers = [mesh.worker(f"w{n}", workload_kinds=[f"d{n % 4}"]) for n in range(12)]
    for turn in range(3):
        jobs = {f"d{n}": mesh.workload(definition_id=f"d{n}") for n in range(4)}
        # Waiting work of a kind nobody has had before: every list of demands grows.
        mesh.workload(definition_id=f"new-{turn}")
        for worker in workers[4 * turn :] + workers[: 4 * turn]:
            for claim in mesh.pull(worker).claims:
                assert jobs.pop(claim.definition_id) == claim.workload_id
                mesh.say("complete", claim, start=True)
        assert jobs == {}
    assert mesh.memo["fits"].ids <= 3 * ENTRY_IDS + 40
