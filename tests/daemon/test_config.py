"""Settings: where each comes from, what is refused, in the words the operator knows them by."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from feltd.cli.config import config as config_command
from feltd.cli.serve import serve
from feltd.config import ConfigProblem, hooks, load, settings

OPEN_BIND = "is outside loopback: give --tls-cert and --tls-key, or --trust-proxy CIDR, or"


def refusal(env: dict[str, str] | None = None, **flags: object) -> str:
    with pytest.raises(ConfigProblem) as refused:
        load(flags, env or {})
    return str(refused.value)


def test_the_defaults_are_the_documented_ones() -> None:
    config, sources = load({}, {})
    assert (config.port, config.host, config.data) == (7610, "127.0.0.1", "feltd.db")
    assert config.max_in_flight == 64
    assert config.request_deadline_ms == 10_000
    assert (config.heartbeat_interval_ms, config.heartbeat_timeout_ms) == (10_000, 30_000)
    assert set(sources.values()) == {"default"}


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "feltd.toml"
    file.write_text("port = 1\ntick_ms = 20\nmax_in_flight = 3\n")
    env = {"FELTD_PORT": "2", "FELTD_TICK_MS": "30"}
    config, sources = load({"port": "3"}, env, file)
    assert (config.port, config.tick_ms, config.max_in_flight) == (3, 30, 3)
    assert (sources["port"], sources["tick_ms"], sources["max_in_flight"]) == (
        "flag",
        "environment",
        "file",
    )


def test_allowed_origins_of_all_sources_add_up(tmp_path: Path) -> None:
    file = tmp_path / "feltd.toml"
    file.write_text('allowed_origins = ["https://c.example"]\n')
    env = {"FELTD_ALLOWED_ORIGINS": "https://b.example, https://a.example"}
    config, sources = load({"allowed_origins": ("https://d.example:8443",)}, env, file)
    assert config.allowed_origins == (
        "https://a.example",
        "https://b.example",
        "https://c.example",
        "https://d.example:8443",
    )
    assert sources["allowed_origins"] == "flag + environment + file"


@pytest.mark.parametrize(
    "one", [one for one in settings() if one.kind is int], ids=lambda o: o.name
)
def test_a_number_that_is_none_or_out_of_bounds_names_its_flag(one: object) -> None:
    name, flag, least = one.name, one.flag, one.least  # type: ignore[attr-defined]
    for text in ("x", "", "1.5", "1e3", "9" * 400, " ", "0x10"):
        assert refusal(**{name: text}) == f"invalid {flag}"
    if least:
        assert refusal(**{name: str(least - 1)}) == f"{flag} must be at least {least}"
    else:
        assert refusal(**{name: "-1"}) == f"{flag} must be at least 0"


def test_the_texts_of_the_two_oldest_flags_are_kept() -> None:
    assert refusal(max_in_flight="0") == "--max-in-flight must be at least 1"
    assert refusal(request_deadline_ms="99") == "--request-deadline-ms must be at least 100"
    assert refusal(max_in_flight="many") == "invalid --max-in-flight"
    assert refusal({"FELTD_MAX_IN_FLIGHT": "many"}) == "invalid --max-in-flight"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("https://ops.example.org", "https://ops.example.org"),
        ("HTTP://Localhost:3000", "http://localhost:3000"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_an_origin_is_scheme_host_and_port(text: str, kept: str) -> None:
    assert load({"allowed_origins": (text,)}, {}).config.allowed_origins == (kept,)


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "null",
        "",
        "a.example",
        "ftp://a",
        "file:///etc",
        "https://a.example/",
        "https://a.example/path",
        "https://a@a.example",
        "https://a.example:port",
        "https://a.example:0",
        "https://a.example:65536",
        "https://*.a.example",
        "https://[zz]",
        "https://a.example\n",
    ],
)
def test_anything_else_is_no_origin(text: str) -> None:
    assert refusal(allowed_origins=(text,)).startswith(f"invalid --allow-origin {text!r}")


def test_combinations_that_fail_open_are_refused() -> None:
    assert "twice" in refusal(heartbeat_timeout_ms="19999")
    for host in ("0.0.0.0", "::", "feltd.example", "192.0.2.1"):
        assert OPEN_BIND in refusal(host=host)
        assert load({"host": host, "insecure_http": True}, {}).config.host == host
        assert "--no-auth needs a loopback" in refusal(host=host, no_auth=True, insecure_http=True)
    assert refusal(tls_cert="a.pem") == "--tls-cert and --tls-key come together"
    assert refusal(trust_proxy=("10.0.0.0/99",)).startswith("invalid --trust-proxy")
    assert load({"host": "0.0.0.0", "trust_proxy": ("10.0.0.0/8",)}, {}).config.trust_proxy
    for host in ("localhost", "127.0.0.2", "::1", "[::1]"):
        assert load({"host": host, "no_auth": True}, {}).config.no_auth


def test_switches_read_the_usual_words() -> None:
    for word, set_ in (("1", True), ("true", True), ("ON", True), ("0", False), ("", False)):
        assert load({}, {"FELTD_METRICS_OPEN": word}).config.metrics_open is set_
    assert refusal({"FELTD_METRICS_OPEN": "perhaps"}) == "invalid --metrics-open"


def test_a_file_that_is_wrong_says_where(tmp_path: Path) -> None:
    file = tmp_path / "feltd.toml"
    for text, told in (
        ("port = ", "is not TOML"),
        ("prot = 1", "unknown setting 'prot'"),
        ('port = "7610"', "invalid --port"),
        ("port = true", "invalid --port"),
        ("metrics_open = 1", "invalid --metrics-open"),
        ('on_worker_lost = "maybe"', "--on-worker-lost must be one of end, lease"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigProblem, match=told):
            load({}, {}, file)
    with pytest.raises(ConfigProblem, match="cannot be read"):
        load({}, {}, tmp_path / "absent.toml")


def test_every_setting_tells_its_reason_and_no_test_hook_is_on() -> None:
    assert all(one.reason for one in settings())
    assert hooks({}) == hooks({"FELTD_TEST_SLOW_COMMIT_MS": "x", "FELTD_TEST_CRASH_AT": "now:1"})
    assert hooks({"FELTD_TEST_CRASH_AT": "before:3"}).crash == ("before", 3)


def test_serve_answers_a_wrong_setting_with_usage_and_exit_2() -> None:
    ran = CliRunner().invoke(serve, ["--max-in-flight", "0"])
    assert ran.exit_code == 2
    assert "Error: --max-in-flight must be at least 1" in ran.output


def test_config_show_says_where_each_setting_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FELTD_TICK_MS", "50")
    ran = CliRunner().invoke(config_command, ["show", "--port", "0"], standalone_mode=True)
    lines = {line.split("\t")[0]: line.split("\t")[1:] for line in ran.output.splitlines()}
    assert lines["port"] == ["0", "flag"]
    assert lines["tick_ms"] == ["50", "environment"]
    assert lines["namespace"] == ["default", "default"]


def test_the_file_too_can_be_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "feltd.toml"
    file.write_text("port = 8\n")
    monkeypatch.setenv("FELTD_CONFIG", str(file))
    ran = CliRunner().invoke(config_command, ["show"], standalone_mode=True)
    assert "port\t8\tfile" in ran.output.splitlines()
