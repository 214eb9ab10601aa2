"""What is refused before anybody looks at what is wanted (BC-086), and what every answer says."""

import pytest

from tests.api.transport.kit import Answer, House, request, serving


def raw(house: House, message: bytes) -> tuple[Answer, bool]:
    """The answer to bytes, and whether the connection ended after it."""
    talk = house.connect().send(message)
    answer = talk.answer()
    return answer, answer.headers.get("connection") == "close" and talk.ended()


def test_every_answer_names_its_call_and_the_protocol(house: House) -> None:
    first = house.call("GET", "/health")
    second = house.call("GET", "/nowhere")

    assert first.headers["feltd-protocol"] == second.headers["feltd-protocol"] == "1"
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert second.json["request_id"] == second.headers["x-request-id"]
    assert "server" not in first.headers


def test_the_callers_own_request_id_is_kept_when_it_is_a_plain_word(house: House) -> None:
    assert house.call("GET", "/health", X_Request_Id="a-1.b_2").headers["x-request-id"] == "a-1.b_2"
    for odd in ("x" * 65, "a b", "<script>", "ä"):
        assert house.call("GET", "/health", X_Request_Id=odd).headers["x-request-id"] != odd


def test_length_and_chunks_together_are_refused_and_what_is_hidden_behind_is_not_served(
    house: House,
) -> None:
    """BC-086: a second request smuggled in the body."""
    smuggled = b"GET /v1/workers/smuggled HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer good\r\n\r\n"
    head = (
        b"POST /v1/echo HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer good\r\n"
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    answer, ended = raw(house, head + smuggled)

    assert (answer.status, answer.code) == (400, "REQUEST_MALFORMED")
    assert ended
    assert ("worker", 200) not in house.do(lambda: list(house.world.answered))


@pytest.mark.parametrize(
    "lines",
    [
        b"Host: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
        b"Host: a\r\nHost: b\r\n",
        b"Host: a\r\nTransfer-Encoding: gzip\r\n",
        b"Host: a b\r\n",
        b"Host: a/b\r\n",
        b"Host: \r\n",
        b"Host: a\r\nAuthorization: Bearer good\r\nAuthorization: Bearer other\r\n",
        b"Host: a\r\nX-Feltd-Tenant: acme\r\nX-Feltd-Tenant: beta\r\n",
        b"Host: a\r\nIdempotency-Key: k1\r\nIdempotency-Key: k2\r\n",
        b"",
    ],
)
def test_heads_that_two_readers_could_read_in_two_ways_are_refused(
    house: House, lines: bytes
) -> None:
    """BC-086."""
    answer, ended = raw(house, b"GET /health HTTP/1.1\r\n" + lines + b"\r\n")

    assert (answer.status, answer.code) == (400, "REQUEST_MALFORMED")
    assert answer.headers["feltd-protocol"] == "1"
    assert ended


@pytest.mark.parametrize("method", ["TRACE", "CONNECT"])
def test_methods_that_only_proxies_serve_are_refused(house: House, method: str) -> None:
    """BC-086."""
    answer, ended = raw(house, f"{method} /health HTTP/1.1\r\nHost: a\r\n\r\n".encode())

    assert (answer.status, answer.code) == (405, "METHOD_NOT_ALLOWED")
    assert ended


@pytest.mark.parametrize("target", ["http://other/health", "*", "health:80"])
def test_a_target_that_is_no_path_is_refused(house: House, target: str) -> None:
    """BC-086: absolute form."""
    answer, ended = raw(house, f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())

    assert (answer.status, answer.code) == (400, "REQUEST_MALFORMED")
    assert ended


def test_folded_headers_do_not_smuggle_a_second_authorization(house: House) -> None:
    """BC-086: obs-fold is one header."""
    folded = b"GET /v1/items HTTP/1.1\r\nHost: a\r\nX: y\r\n Authorization: Bearer good\r\n\r\n"
    answer, _ = raw(house, folded)

    assert answer.code == "UNAUTHENTICATED"


@pytest.mark.parametrize("query", ["token=abc", "a=1&token=", "%74oken=abc"])
def test_a_key_in_the_url_is_refused_even_where_no_key_is_needed(house: House, query: str) -> None:
    answer, ended = raw(house, request("GET", f"/health?{query}"))

    assert (answer.status, answer.code) == (400, "REQUEST_MALFORMED")
    assert "abc" not in answer.body.decode()
    assert ended


def test_a_longer_name_that_only_begins_like_a_token_is_no_key(house: House) -> None:
    assert house.call("GET", "/v1/items?tokens=1").code == "REQUEST_INVALID"


@pytest.mark.parametrize(
    ("path", "filler"), [("/health?" + "a" * 8300, ""), ("/health", "b" * 17_000)]
)
def test_a_long_url_and_long_headers_are_too_large(house: House, path: str, filler: str) -> None:
    answer, ended = raw(house, request("GET", path, X_Filler=filler))

    assert (answer.status, answer.code) == (413, "REQUEST_TOO_LARGE")
    assert ended


def test_a_head_beyond_what_is_parsed_at_all_is_too_large_as_well(house: House) -> None:
    talk = house.connect().send(b"GET /health HTTP/1.1\r\nHost: a\r\n")
    answer = talk.send(b"X: " + b"y" * 200_000).answer()

    assert (answer.status, answer.code) == (413, "REQUEST_TOO_LARGE")


def test_a_compressed_body_is_refused(house: House) -> None:
    answer = house.call("POST", "/v1/echo", b"\x1f\x8b\x08", Content_Encoding="gzip")

    assert (answer.status, answer.code) == (415, "MEDIA_TYPE_UNSUPPORTED")


def test_another_protocol_version_is_refused_with_what_is_spoken(house: House) -> None:
    answer = house.call("GET", "/health", Feltd_Protocol="2")

    assert (answer.status, answer.code) == (400, "PROTOCOL_UNSUPPORTED")
    assert answer.json["supported"] == [1]
    assert house.call("GET", "/health", Feltd_Protocol="1").status == 200


def test_a_fault_answers_500_names_itself_in_the_log_and_shows_nothing(house: House) -> None:
    answer = house.call("POST", "/v1/fault")

    assert (answer.status, answer.code) == (500, "INTERNAL")
    assert answer.json["next"] == "ask_operator"
    assert b"hunter2" not in answer.body
    assert b"Traceback" not in answer.body
    assert house.call("GET", "/health").status == 200


def test_a_refusal_that_cannot_be_written_is_a_fault_and_still_an_answer(house: House) -> None:
    answer = house.call("POST", "/v1/unwritable")
    assert (answer.status, answer.code) == (500, "INTERNAL")


def test_a_path_that_is_not_and_a_method_that_is_not(house: House) -> None:
    assert house.call("GET", "/v1/nothing").code == "ROUTE_NOT_FOUND"
    wrong = house.call("PUT", "/v1/workers/all")
    assert (wrong.status, wrong.code) == (405, "METHOD_NOT_ALLOWED")
    assert wrong.headers["allow"] == "GET, HEAD, DELETE, OPTIONS"


def test_head_is_get_without_the_body(house: House) -> None:
    talk = house.connect()
    head = talk.send(request("HEAD", "/health")).answer(head_only=True)
    get = talk.send(request("GET", "/health")).answer()

    assert head.status == 200
    assert head.headers["content-length"] == get.headers["content-length"]


def test_options_says_what_a_path_takes(house: House) -> None:
    answer = house.call("OPTIONS", "/v1/workers/w1")

    assert (answer.status, answer.headers["allow"]) == (204, "GET, HEAD, DELETE, OPTIONS")


def test_without_authentication_only_a_loopback_name_is_a_host() -> None:
    with serving(stack={"loopback_only": True}) as house:
        for good in ("localhost", "127.0.0.1:7610", "[::1]:1", "LOCALHOST"):
            assert house.call("GET", "/health", Host=good).status == 200
        assert house.call("GET", "/health", Host="evil.example").code == "REQUEST_MALFORMED"
        assert house.call("GET", "/health", Host="127.0.0.1.evil").code == "REQUEST_MALFORMED"
        strange = house.call("GET", "/health", Origin="https://evil.example")
        assert (strange.status, strange.code) == (403, "FORBIDDEN")


def test_browsers_may_call_from_listed_origins_only() -> None:
    with serving(stack={"allowed_origins": ("https://ops.example",)}) as house:
        asked = {"Access_Control_Request_Method": "POST", "Authorization": ""}
        allowed = house.call("OPTIONS", "/v1/echo", Origin="https://ops.example", **asked)
        strange = house.call("OPTIONS", "/v1/echo", Origin="https://evil.example", **asked)
        read = house.call("GET", "/health", Origin="https://ops.example")
        unread = house.call("GET", "/health", Origin="https://evil.example")

    assert allowed.status == 204
    assert allowed.headers["access-control-allow-origin"] == "https://ops.example"
    assert "Authorization" in allowed.headers["access-control-allow-headers"]
    assert strange.status == 403
    assert read.headers["access-control-expose-headers"] == (
        "ETag, Retry-After, X-Request-Id, Feltd-Protocol"
    )
    assert unread.status == 200
    for answer in (allowed, strange, read, unread):
        assert "access-control-allow-credentials" not in answer.headers
        assert answer.headers["vary"] == "Origin"
    assert "access-control-allow-origin" not in unread.headers
    assert "access-control-allow-origin" not in strange.headers
