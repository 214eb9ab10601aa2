"""Without authentication the console is open to this machine, and to no other page of a browser."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.console.reading import Reading
from tests.console.test_frame import call
from tests.daemon.running import Answer, Daemon

HOLD = {"scope": "definition", "value": "x", "reason": "by hand", "tenant_id": "default"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    path: Path = tmp_path_factory.mktemp("open") / "feltd.db"
    daemon = Daemon(path, "--no-auth").init().start()
    try:
        yield daemon
    finally:
        daemon.close()


def hold(house: Daemon, **headers: str) -> Answer:
    """The form of a hold, as it is sent from somewhere."""
    return call(house, "POST", "/console/holds", urlencode(HOLD), **FORM, **headers)


def test_nobody_is_asked_who_he_is(house: Daemon) -> None:
    page = call(house, "GET", "/console")

    assert page.status == 200
    assert "/console/logout" not in {form.action for form in Reading(page.body).forms}
    asked = call(house, "GET", "/console/login?next=%2Fconsole%2Fworkers")
    assert (asked.status, asked.headers["location"]) == (303, "/console/workers")


def test_the_consoles_own_forms_act(house: Daemon) -> None:
    assert hold(house, Origin=house.url).status == 303


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost", ""]
)
def test_a_form_of_another_page_does_not(house: Daemon, origin: str) -> None:
    assert hold(house, Origin=origin).status == 403


def test_a_name_that_points_here_does_not(house: Daemon) -> None:
    port = house.url.rpartition(":")[2]
    evil = f"evil.example:{port}"

    assert hold(house, Host=evil, Origin=f"http://{evil}").status == 400


def test_the_api_takes_listed_origins_alone(house: Daemon) -> None:
    got = call(house, "GET", "/v1/workloads", Origin=house.url)

    assert got.status == 403
