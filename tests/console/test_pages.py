"""Pages over HTTP: what is in them, who may see them, and that no name in them does anything."""

import re
from html.parser import HTMLParser
from urllib.parse import parse_qs, urlsplit

import pytest

from feltd import console
from feltd.identity import roles
from tests.console.town import HOSTILE, HOSTILE_ID, Town

#: A page and a word that stands in it because its row is there.
PAGES = {
    "/console/workers": "edge-1",
    "/console/pools": "gpu",
    "/console/pools/gpu?tenant_id=t": "edge-1",
    "/console/holds": "definition",
    "/console/triggers": HOSTILE_ID,
    f"/console/triggers/{HOSTILE_ID}?tenant_id=t": "after.status",
    "/console/schedules": "Europe/Berlin",
    "/console/schedules/nightly?tenant_id=t": "+01:00",
    "/console/dead-letters": "the parser lost page 3",
    "/console/events": "pool_create",
    "/console/audit": "hold",
    "/console/keys": "soon",
    "/console/signing-keys": "signs and proves",
    "/console/grants": "worker:register",
    "/console/users": "olga",
    "/docs": "heartbeat",
}


class Elements(HTMLParser):
    """What a page is made of: its elements with their attributes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: text or "" for name, text in attrs}))

    def of(self, tag: str) -> list[dict[str, str]]:
        """The attributes of each element of a kind."""
        return [attributes for found, attributes in self.found if found == tag]


@pytest.mark.parametrize("path", sorted(PAGES))
def test_each_page_shows_its_rows(town: Town, path: str) -> None:
    answer = town.page(path)

    assert answer.status == 200, answer.body[:2_000]
    assert PAGES[path] in answer.body
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", sorted(PAGES))
def test_no_name_in_a_page_is_more_than_text(town: Town, path: str) -> None:
    page = Elements(town.page(path).body)

    assert not [one for one in page.of("script") if "src" not in one]
    assert not [one for one in page.of("img") if one.get("src") == "x"]
    assert not [one for _, one in page.found if any(name.startswith("on") for name in one)]
    assert not [one for _, one in page.found if "style" in one]


def test_a_hostile_name_is_shown_as_it_is_written(town: Town) -> None:
    body = town.page("/console/pools").body

    assert HOSTILE not in body
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in body


def test_what_is_put_into_an_address_comes_back_as_text(town: Town) -> None:
    body = town.page(f"/console/events?actor={'%3Cb%3Ex%22%27'}").body

    assert "<b>x" not in body
    assert 'value="&lt;b&gt;x&#34;&#39;"' in body


def beyond_a_viewer() -> list[str]:
    return sorted(
        re.sub(r"\{[^}]+\}", "made-up", route.path)
        for route in console.ROUTES
        if route.method == "GET" and route.scope and route.scope not in roles.SCOPES["viewer"]
    )


@pytest.mark.parametrize("path", beyond_a_viewer())
def test_a_viewer_is_refused_pages_beyond_his_role(town: Town, path: str) -> None:
    answer = town.page(path, by="vic")

    assert answer.status == 403
    assert "FORBIDDEN" in answer.body


def test_a_viewer_is_shown_no_button_he_may_not_press(town: Town) -> None:
    worker = town.crew.worker("edge-1")["worker_id"]
    for path in ("/console/pools", f"/console/workers/{worker}", "/console/dead-letters"):
        forms = Elements(town.page(path, by="vic").body).of("form")
        posts = [one["action"] for one in forms if one.get("method") == "post"]
        assert not [action for action in posts if action != "/console/logout"], path


@pytest.mark.parametrize(
    "path",
    [
        "/console/workers?lifecycle=READY&application_id=nobody&label=zone%3Da&limit=25",
        "/console/events?kind=claim&worker_id=w1&limit=25",
        "/console/audit?kind=all&actor=service%3Afeltd&limit=25",
    ],
)
def test_a_filter_stays_in_the_address_and_in_its_fields(town: Town, path: str) -> None:
    body = town.page(path).body
    page = Elements(body)
    asked = {name: texts[0] for name, texts in parse_qs(urlsplit(path).query).items()}

    fields = {one["name"]: one.get("value", "") for one in page.of("input") if "name" in one}
    chosen = {one["value"] for one in page.of("option") if "selected" in one}
    for name, text in asked.items():
        assert fields.get(name) == text or text in chosen, (name, text)
    reload = [one["href"] for one in page.of("a") if urlsplit(path).path in one.get("href", "")]
    assert any(parse_qs(urlsplit(href).query) == parse_qs(urlsplit(path).query) for href in reload)


def test_the_next_page_of_events_goes_on_with_the_same_filter(town: Town) -> None:
    first = Elements(town.page("/console/events?limit=2&tenant_id=t").body)
    (next_page,) = [one["href"] for one in first.of("a") if one.get("rel") == "next"]

    assert "tenant_id=t" in next_page
    second = town.page(next_page)
    assert second.status == 200
    assert 'data-follows="no"' in second.body
    seen = re.findall(r'class="seq">(\d+)<', town.page("/console/events?limit=2&tenant_id=t").body)
    more = re.findall(r'class="seq">(\d+)<', second.body)
    assert len(seen) == len(more) == 2
    assert int(more[0]) == int(seen[-1]) - 1 or int(more[0]) < int(seen[-1])


def test_paused_events_are_a_page_that_stays(town: Town) -> None:
    follows = town.page("/console/events?kind=claim").body
    paused = town.page("/console/events?kind=claim&paused=true").body

    assert 'data-follows="yes"' in follows
    assert "data-hx-get" in follows
    assert 'data-follows="no"' in paused
    assert 'href="/console/events?kind=claim&amp;limit=50"' in paused


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/console/workers?lifecycle=ASLEEP", 422),
        ("/console/workers?cursor=made-up", 400),
        ("/console/workers?label=zone", 422),
        ("/console/workers/made-up", 404),
        ("/console/pools/made-up?tenant_id=t", 404),
        ("/console/pools/gpu", 422),
        ("/console/triggers/made-up?tenant_id=t", 404),
        ("/console/events?before=soon", 422),
        ("/console/events?part=elsewhere", 404),
        ("/console/grants/made-up", 404),
        ("/console/nowhere", 404),
        ("/docs?q=" + "x" * 65, 422),
    ],
)
def test_what_does_not_fit_is_a_page_that_says_so(town: Town, path: str, status: int) -> None:
    answer = town.page(path)

    assert answer.status == status, answer.body[:1_500]
    assert answer.headers["content-type"].startswith("text/html")
    assert "Traceback" not in answer.body


def test_a_part_of_a_page_comes_alone(town: Town) -> None:
    whole = town.page("/console/workers").body
    part = town.page("/console/workers?part=rows").body

    assert "<html" in whole
    assert "<html" not in part
    assert "edge-1" in part


def test_somebody_of_one_tenant_sees_no_other(town: Town) -> None:
    body = {"username": "tina", "password": "a horse, a battery, a staple"}
    town.daemon.call("POST", "/v1/users", body | {"roles": {"elsewhere": "admin"}})
    worker = town.crew.worker("edge-1")["worker_id"]

    assert "edge-1" not in town.page("/console/workers", by="tina").body
    assert town.page(f"/console/workers/{worker}", by="tina").status == 404
    assert town.page("/console/workers?tenant_id=t", by="tina").status == 403
    assert "parser lost" not in town.page("/console/dead-letters", by="tina").body
    assert "pool_create" not in town.page("/console/events", by="tina").body
    assert town.crew.grant_id not in town.page("/console/grants", by="tina").body
    assert town.page("/console/audit", by="tina").status == 403
    assert town.page("/console/signing-keys", by="tina").status == 403
    assert town.form(f"/console/workers/{worker}/drain", by="tina").status == 404
