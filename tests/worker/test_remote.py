"""A remote handler: which addresses may be asked, what is told, and what an answer may be."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from feltd.cli.worker_run import run as worker_run
from feltd.model.policy import RuntimePolicy
from feltd.worker.command import result
from feltd.worker.failures import Permanent, Transient
from feltd.worker.runtimes import limits
from feltd.worker.runtimes.remote import RemoteRuntime
from tests.worker.programs import CLAIM
from tests.worker.remotes import FLOOD_BYTES, Remote, serving

TOKEN = "the-token-of-the-remote-handler"


@pytest.fixture
def remote() -> Iterator[Remote]:
    with serving() as found:
        yield found


def ask(url: str, given: Any = None, token: str | None = None, **members: Any) -> Any:
    """What one attempt comes to."""

    async def story() -> Any:
        runtime = RemoteRuntime(url, token)
        policy = RuntimePolicy(**members)
        claim = {**CLAIM, "attempt_id": "attempt_7", "traceparent": "00-1-2-01", "input": "other"}
        await runtime.start(claim, policy)
        try:
            return result(await runtime.execute(claim, msgspec.json.encode(given)), policy)
        finally:
            runtime.forget(claim)

    return asyncio.run(story())


def refusal(remote: Remote, status: int, text: str = "", **headers: str) -> Exception:
    """What an answer of this status becomes."""
    told = {"status": status, "text": text, "headers": headers}
    with pytest.raises((Permanent, Transient)) as failed:
        ask(f"{remote.url}/said", told, TOKEN)
    return failed.value


# -- addresses


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://jobs.example/run", "begins with https://"),
        ("http://127.0.0.1.jobs.example/run", "begins with https://"),
        ("http://10.0.0.1/run", "begins with https://"),
        ("ftp://127.0.0.1/run", "begins with https://"),
        ("jobs.example/run", "begins with https://"),
        ("https:///run", "begins with https://"),
        ("https://me:hunter2@jobs.example/run", "carries no credentials"),
        ("https://hunter2@jobs.example/run", "carries no credentials"),
        ("https://jobs.example/run?key=hunter2", "has no query"),
        ("https://jobs.example/run#hunter2", "has no query and no fragment"),
        ("https://jobs.example:hunter2/run", "is no URL"),
        ("https://[jobs/hunter2", "is no URL"),
        ("https://jobs.example/a hunter2", "printable characters"),
        ("https://jobs.example/" + "a" * 2_048, "printable characters"),
    ],
)
def test_claims_go_to_no_such_address_and_no_message_repeats_a_secret(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        RemoteRuntime(url)

    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://jobs.example/run", "https://jobs.example:8443", "http://127.0.0.1:9/run",
        "http://127.8.9.1/run", "http://localhost:9/run", "http://[::1]:9/run",
    ],
)  # fmt: skip
def test_claims_may_go_there(url: str) -> None:
    assert RemoteRuntime(url).url == url


@pytest.mark.parametrize("token", ["two\nlines", "a b", "ü"])
def test_a_token_is_one_line_and_is_not_repeated(token: str) -> None:
    with pytest.raises(ValueError, match="not one line") as refused:
        RemoteRuntime("https://jobs.example", token)

    assert token not in str(refused.value)


# -- what is told


def test_it_is_told_the_claim_its_policy_and_whose_attempt_it_is(remote: Remote) -> None:
    assert ask(f"{remote.url}/echo", {"page": 7}, TOKEN, max_duration_ms=5_000) == {"page": 7}
    [heard] = remote.heard

    assert heard.body["claim"]["workload_id"] == CLAIM["workload_id"]
    assert heard.body["claim"]["fencing_token"] == CLAIM["fencing_token"]
    assert heard.body["runtime_policy"]["max_duration_ms"] == 5_000
    assert heard.headers["Authorization"] == f"Bearer {TOKEN}"
    assert heard.headers["Idempotency-Key"] == "attempt_7"
    assert heard.headers["traceparent"] == "00-1-2-01"


def test_no_proxy_of_the_environment_is_asked(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    assert ask(f"{remote.url}/echo", 1) == 1


def test_the_token_is_never_logged_nor_quoted(
    remote: Remote, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    refused = refusal(remote, 422, f"I was given {TOKEN} and AKIAIOSFODNN7EXAMPLE")

    assert "I was given [token]" in str(refused)
    assert "AKIAIOSFODNN7EXAMPLE" not in str(refused)
    assert TOKEN not in caplog.text


def test_one_that_does_not_hear_of_the_end_holds_nobody_up(
    remote: Remote, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "DELETE_S", 0.1)
    with pytest.raises(Permanent) as failed:
        ask(f"{remote.url}/deaf", max_duration_ms=100)

    assert failed.value.kind == "timeout"
    assert f"was not told of the end of {CLAIM['claim_id']}: TimeoutError" in caplog.text


# -- what it may answer


@pytest.mark.parametrize(
    ("status", "text", "output"),
    [(200, '{"a": 1}', {"a": 1}), (201, "done", "done"), (204, "", None), (200, "", None)],
)
def test_the_body_of_a_good_answer_is_the_output(
    remote: Remote, status: int, text: str, output: Any
) -> None:
    assert ask(f"{remote.url}/said", {"status": status, "text": text}) == output


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_trouble_that_passes_is_transient(remote: Remote, status: int) -> None:
    refused = refusal(remote, status, "busy", Retry_After="7")

    assert isinstance(refused, Transient)
    assert refused.retry_after_ms == 7_000
    assert str(refused) == f"the remote handler answered {status}: busy"


def test_a_date_to_wait_for_is_left_to_the_retry_policy(remote: Remote) -> None:
    refused = refusal(remote, 503, Retry_After="Mon, 30 Nov 2026 13:00:00 GMT")

    assert isinstance(refused, Transient)
    assert refused.retry_after_ms is None


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (400, "no\n  such page", ": no such page"),
        (401, "", ""),
        (422, '{"title": "x", "detail": "page 7 is missing"}', ": page 7 is missing"),
        (404, "[" * 5_000, "[["),
        (418, "x" * 70_000, "xx"),
    ],
)
def test_any_other_refusal_is_for_good(remote: Remote, status: int, text: str, said: str) -> None:
    refused = refusal(remote, status, text)

    assert isinstance(refused, Permanent)
    assert refused.kind == "execution_error"
    assert f"the remote handler answered {status}" in str(refused)
    assert said in str(refused)
    assert len(str(refused)) < 2_100


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(remote: Remote, status: int) -> None:
    refused = refusal(remote, status, Location=f"{remote.url}/elsewhere")

    assert isinstance(refused, Permanent)
    assert "redirects are not followed" in str(refused)
    assert [one.path for one in remote.heard] == ["/said"]


def test_an_answer_that_could_become_larger_is_refused(remote: Remote) -> None:
    refused = refusal(remote, 200, "not really", Content_Encoding="gzip")

    assert isinstance(refused, Permanent)
    assert "compressed" in str(refused)


def test_a_refusal_of_a_hundred_megabytes_is_not_read(remote: Remote) -> None:
    with pytest.raises(Permanent, match="answered 400"):
        ask(f"{remote.url}/flood", {"status": 400})

    assert remote.sent_bytes < 50 * 1024 * 1024


def test_what_is_answered_to_the_end_of_a_claim_is_not_read(remote: Remote) -> None:
    with pytest.raises(Permanent):
        ask(f"{remote.url}/talkative", max_duration_ms=100)
    assert remote.asked("DELETE")
    assert remote.sent_bytes < FLOOD_BYTES / 2


def test_an_answer_that_breaks_off_and_nobody_there_are_transient(remote: Remote) -> None:
    for url in (f"{remote.url}/drop", "http://127.0.0.1:1/run"):
        with pytest.raises(Transient, match="no answer from the remote handler at 127"):
            ask(url)


# -- at the command line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--remote", "http://jobs.example/run"], "begins with https://"),
        (["--remote", "https://jobs.example", "--max-memory", "64MiB"], "cannot be enforced here"),
        (["--remote", "https://jobs.example", "--network", "none"], "is not this worker's"),
        (["--remote", "https://jobs.example", "--wasm", __file__], "give one of MODULE:HANDLERS"),
    ],
)
def test_what_could_run_no_claim_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], said: str
) -> None:
    monkeypatch.setenv("FELTD_URL", "http://127.0.0.1:1")
    ran = CliRunner().invoke(worker_run, flags)

    assert ran.exit_code == 2
    assert said in " ".join(ran.output.split())
