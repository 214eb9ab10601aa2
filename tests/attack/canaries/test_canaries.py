"""Every secret of a full story is looked for, byte by byte, wherever the daemon leaves a trace.

Passwords, sessions, keys, worker keys, grant tokens and signing keys: used in every way there is,
well and badly, and then found in no file, no log, no backup, no page and no diagnostics. The
keyring alone holds the signing keys.
"""

import base64
import gzip
import http.client
import io
import json
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from feltd import console
from feltd.cli.main import run
from tests.daemon.running import PATIENCE_S, Daemon, Edge, create, people

PASSWORDS = ("canary-first-password-51d0", "canary-second-password-9a3e", "canary-wrong-77c1")
#: Of a bearer: its kind and its public id, before the secret.
PUBLIC_CHARS = len("felt_s_") + 12 + 1
#: The shortest piece of a secret that stands for it; anything shorter comes up by chance.
PIECE_CHARS = 20
ENCODED_CHARS = 12


def typed(*words: str) -> str:
    """What a command of the command line prints, on both streams."""
    raw = io.BytesIO()
    said = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    with redirect_stdout(said), redirect_stderr(said):
        code = run(list(words))
    told = raw.getvalue().decode()
    assert code == 0, (words, told)
    return told


class Story:
    """A daemon that lives through everything, and what nobody else may ever see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.audit = folder / "audit.jsonl"
        self.daemon = Daemon(
            folder / "feltd.db", "--tick-ms", "100", "--audit", str(self.audit), "--open-signup"
        )
        self.secrets: dict[str, str] = {f"password {n}": one for n, one in enumerate(PASSWORDS)}
        self.ids: dict[str, str] = {}
        #: What the daemon answered that is no answer with a secret in it, by where it came from.
        self.seen: dict[str, bytes] = {}

    def hide(self, what: str, secret: str) -> str:
        """A secret that was handed out once."""
        self.secrets[what] = secret
        return secret

    def get(self, path: str, cookie: str = "", **headers: str) -> tuple[int, bytes]:
        """A page as a browser reads it."""
        address = urlsplit(self.daemon.url)
        with closing(
            http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE_S)
        ) as connection:
            sent = {"Cookie": f"feltd_session={cookie}"} if cookie else {}
            connection.request("GET", path, headers=sent | headers)
            answer = connection.getresponse()
            body = answer.read()
            told = "\n".join(f"{name}: {text}" for name, text in answer.getheaders())
        return answer.status, told.encode() + b"\n\n" + body


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    made = Story(tmp_path_factory.mktemp("canaries"))
    try:
        made.daemon.init().start()
        made.hide("admin key", made.daemon.key)
        of_people(made)
        of_keys(made)
        of_work(made)
        of_errors(made)
        asked_everywhere(made)
        yield made
    finally:
        made.daemon.close()


def of_people(story: Story) -> None:
    """Made, logged in well and badly, a password changed, logged out, signed up, disabled."""
    daemon = story.daemon
    first, second, wrong = PASSWORDS
    roles = {"*": "admin"}
    asked = {"username": "ada", "password": first, "roles": roles}
    for _ in range(2):  # the answer of the first is kept for the second
        daemon.call("POST", "/v1/users", asked, Idempotency_Key="make-ada")
    daemon.call("POST", "/v1/users", asked | {"roles": {"*": "no role"}})
    daemon.call("POST", "/v1/auth/login", {"username": "ada", "password": wrong}, key="")
    daemon.call("POST", "/v1/auth/login", {"username": wrong, "password": first}, key="")
    daemon.call("POST", "/v1/auth/login", {"password": wrong, "more": first}, key="")
    login = daemon.post("/v1/auth/login", {"username": "ada", "password": first}, key="")
    session = story.hide("session that ended", login["session"])
    daemon.call("POST", "/v1/auth/password", {"old": wrong, "new": second}, key=session)
    daemon.post("/v1/auth/password", {"old": first, "new": second}, key=session)
    login = daemon.post("/v1/auth/login", {"username": "ada", "password": second}, key="")
    story.hide("session", login["session"])
    daemon.call("POST", "/v1/auth/signup", {"username": "bob", "password": first}, key="")
    bob = daemon.post("/v1/auth/login", {"username": "bob", "password": first}, key="")
    daemon.call("POST", "/v1/auth/logout", key=story.hide("session of bob", bob["session"]))
    daemon.call("POST", "/v1/users/bob/disable", {})


def of_keys(story: Story) -> None:
    """Keys made twice with one idempotency key, rotated, revoked; grants issued and passed on."""
    daemon = story.daemon
    made = []
    for turn in range(2):
        answer = daemon.post(
            "/v1/keys",
            {"name": "ci", "scopes": ["workloads:read"], "tenants": ["t"]},
            Idempotency_Key="make-ci",
        )
        story.hide(f"key {turn}", answer["secret"])
        made.append(answer)
    rotated = daemon.post(f"/v1/keys/{made[1]['key_id']}/rotate", {"overlap_ms": 60_000})
    story.hide("rotated key", rotated["secret"])
    daemon.call("DELETE", f"/v1/keys/{rotated['key_id']}")
    enrolled = typed(
        "enroll", "--data", str(daemon.data), "--tenant", "t", "--application", "a",
        "--capability", "documents.extract", "--json",
    )  # fmt: skip
    story.hide("enrolled key", json.loads(enrolled)["secret"])
    typed("signing-key", "rotate", "--data", str(daemon.data))
    ring = json.loads((story.folder / "signing.keyring").read_text())
    for number, text in enumerate(strings(ring)):
        if len(text) >= 40:
            story.hide(f"signing key {number}", text)
    assert any(name.startswith("signing key") for name in story.secrets)


def strings(found: Any) -> Iterator[str]:
    """Every string of a JSON value."""
    if isinstance(found, str):
        yield found
    elif isinstance(found, dict):
        for one in found.values():
            yield from strings(one)
    elif isinstance(found, list):
        for one in found:
            yield from strings(one)


def of_work(story: Story) -> None:
    """Workers that register with a token, work under it, and write secrets where they must not."""
    daemon = story.daemon
    mesh = people(daemon)
    story.hide("submitter", mesh.submitter_key)
    story.hide("registrar", mesh.registrar_key)
    issued = daemon.post(
        "/v1/grants",
        {
            "subject": {"kind": "service", "id": "crew"},
            "tenant_id": "t",
            "application_id": "a",
            "capabilities": ["worker:register", "worker:capability:documents.extract"],
            "resources": [{"kind": "RESOURCE_PREFIX", "uri": "flow://a/workers/*"}],
            "constraints": {},
            "expires_at_ms": 4_000_000_000_000,
        },
        Idempotency_Key="issue-one",
    )
    token = story.hide("grant token", issued["token"])
    edge = Edge(
        daemon, "edge", mesh.registrar_key, capabilities=["documents.extract"],
        authorization_grant=token,
    )  # fmt: skip
    story.hide("worker key", edge.key)
    edge.beat()
    made = create(daemon, mesh, "one", authorization_grant=token)
    [claim] = edge.pull(start=True)
    edge.fenced("log", claim, lines=[f"I use {edge.key}"], on_secret="redact")
    edge.fenced("log", claim, lines=[f"I use {edge.key}"])
    edge.fenced("fail", claim, kind="transient", message=f"the key {edge.key} is no good")
    edge.fenced("fail", claim, kind="broken", message=f"no {edge.key}", on_secret="redact")
    daemon.call("POST", f"/v1/workers/{edge.id}/drain", {"reason": "a new disk"})
    story.ids = {"worker": edge.id, "workload": made["workload_id"], "grant": issued["grant"]["id"]}


def of_errors(story: Story) -> None:
    """Each secret sent where it does not belong: in paths, queries, headers, other bodies."""
    daemon = story.daemon
    for secret in list(story.secrets.values()):
        odd = quote(secret, safe="")
        daemon.call("GET", f"/v1/workloads/{odd}")
        daemon.call("GET", f"/v1/workloads?token={odd}")
        daemon.call("GET", f"/v1/workloads?label={odd}")
        daemon.call("GET", "/v1/workloads", key=secret)
        daemon.call("GET", "/v1/workloads", key=secret[:-1] + "!")
        daemon.call("GET", "/health", traceparent=secret, x_request_id=secret, user_agent=secret)
        daemon.call("POST", "/v1/pools", {"name": "p", "secret": secret})
        daemon.call("POST", "/v1/auth/login", {"username": "ada", "password": secret}, key="")


def asked_everywhere(story: Story) -> None:
    """Every page, list, log, backup and bundle, kept to be looked through."""
    daemon, session = story.daemon, story.secrets["session"]
    # GET /v1/grants/{id} is left out: it hands the token to whoever may issue grants.
    for path in (
        "/metrics", "/health", "/v1/diagnostics", "/v1/audit?limit=500", "/v1/events?limit=500",
        "/v1/keys", "/v1/users", "/v1/grants", "/v1/workers", "/v1/workloads", "/v1/backlog",
        f"/v1/workloads/{story.ids['workload']}", f"/v1/workloads/{story.ids['workload']}/logs",
        f"/v1/workers/{story.ids['worker']}", "/v1/auth/me",
    ):  # fmt: skip
        status, body = story.get(path, Authorization=f"Bearer {daemon.key}")
        assert status == 200, (path, status)
        story.seen[path] = body
    for path in pages(story):
        status, body = story.get(path, session)
        assert status == 200, (path, status, body[:400])
        story.seen[path] = body
    daemon.post("/v1/backups")
    bundle = story.folder / "bundle.tar.gz"
    for words in (
        ("diagnostics", "--out", str(bundle)), ("doctor",), ("top", "--once"), ("keys", "list"),
        ("users", "list"), ("grants", "list"), ("config", "show"),
    ):  # fmt: skip
        data = () if words[0] == "config" else ("--data", str(daemon.data))
        story.seen["feltd " + " ".join(words)] = typed(*words, *data).encode()
    with tarfile.open(bundle) as tar:
        for member in tar.getmembers():
            held = tar.extractfile(member)
            assert held is not None
            story.seen[f"bundle {member.name}"] = held.read()


def pages(story: Story) -> list[str]:
    """Every page of the console that a plain GET opens."""
    of = {
        "/console/workloads/{id}": story.ids["workload"],
        "/console/workers/{id}": story.ids["worker"],
        "/console/grants/{id}": story.ids["grant"],
    }
    found = []
    for route in console.ROUTES:
        if route.method != "GET" or route.path.endswith(("/stream", "/samples", "/bulk", "/")):
            continue
        if "{" not in route.path:
            found.append(route.path)
        elif route.path in of:
            found.append(route.path.replace("{id}", of[route.path]))
    return found


def forms(secret: str) -> set[bytes]:
    """A secret as it may come to lie somewhere: as it is, in part, encoded."""
    hidden = secret[PUBLIC_CHARS:] if secret.startswith("felt_") else secret
    raw = hidden.encode()
    found = {raw, raw.hex().encode(), quote(hidden, safe="").encode(), raw[::-1]}
    found |= {raw[at : at + PIECE_CHARS] for at in range(0, len(raw) - PIECE_CHARS + 1, 7)}
    # Three ways in which base64 may fall upon it, without the ends that depend on what is beside.
    for shift in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            inner = encode(b"\0" * shift + raw)[4 * (shift > 0) : -4]
            if len(inner) >= ENCODED_CHARS:
                found.add(inner)
    return found


def assert_nowhere(story: Story, heaps: dict[str, bytes]) -> None:
    found = [
        f"{what} in {place}"
        for what, secret in story.secrets.items()
        for form in forms(secret)
        for place, heap in heaps.items()
        if form in heap
    ]
    assert not found, "\n".join(sorted(set(found)))


def test_the_search_finds_what_is_there(story: Story) -> None:
    """Each form of each secret would be found, were it anywhere."""
    for secret in story.secrets.values():
        hidden = secret[PUBLIC_CHARS:] if secret.startswith("felt_") else secret
        for heap in (secret.encode(), base64.b64encode(b"{'a': '" + hidden.encode() + b"'}")):
            assert any(form in heap for form in forms(secret))
    ring = {"keyring": (story.folder / "signing.keyring").read_bytes()}
    with pytest.raises(AssertionError, match="signing key"):
        assert_nowhere(story, ring)


def test_no_answer_and_no_page_shows_a_secret(story: Story) -> None:
    assert len(story.seen) > 30
    assert_nowhere(story, story.seen)


def test_no_file_holds_a_secret(story: Story) -> None:
    """BC-092: while it runs: the database, its WAL, the mark, the log, the mirror, the backups."""
    kept = {
        str(path.relative_to(story.folder)): path.read_bytes()
        for path in sorted(story.folder.rglob("*"))
        if path.is_file() and path.name != "signing.keyring"
    }
    names = "\n".join(kept)
    for wanted in ("feltd.db\n", "feltd.db-wal", "feltd.db.log", "audit.jsonl", "backups/feltd-"):
        assert wanted in names + "\n", names
    assert_nowhere(story, kept)
    assert b"redacted" in b"".join(kept.values())


def test_nor_does_any_after_a_stop_and_another_start(story: Story) -> None:
    assert story.daemon.stop() == 0
    with closing(sqlite3.connect(story.daemon.data)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        dump = "\n".join(conn.iterdump()).encode()
    assert_nowhere(story, {"dump": dump, "gzip": gzip.decompress(gzip.compress(dump))})
    story.daemon.start()
    assert_nowhere(
        story,
        {
            path.name: path.read_bytes()
            for path in story.folder.iterdir()
            if path.is_file() and path.name != "signing.keyring"
        },
    )
