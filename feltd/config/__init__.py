"""Every setting of the daemon: one frozen Struct, read once, never changed while it runs.

A setting comes from its flag, else from the environment (FELTD_<NAME>), else from the TOML file,
else from its default; allowed origins add up. Signing keys that a service manager hands over come
before the default. Each field names its unit; its bounds and the reason for them stand beside it.
Nothing here opens the database. Tests alone use the two variables of `Hooks`, which do nothing
when absent.
"""

import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from feltd.config.credentials import KEYRING, credential
from feltd.config.fields import Config

__all__ = [
    "Config",
    "ConfigProblem",
    "Hooks",
    "Loaded",
    "Setting",
    "hooks",
    "is_loopback",
    "load",
    "origin",
    "refuse_open_bind",
    "settings",
]

#: Environment and flag names that do not follow from the field's name.
FLAG_OF = {"allowed_origins": "--allow-origin"}
ORIGIN = re.compile(r"https?://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
WHOLE = re.compile(r"-?[0-9]{1,18}")
TRUTHS = {"1": True, "true": True, "yes": True, "on": True}
TRUTHS |= {"": False, "0": False, "false": False, "no": False, "off": False}


class ConfigProblem(Exception):
    """A setting, or a combination of settings, the daemon refuses (exit code 2)."""


class Hooks(Struct, frozen=True):
    """What tests set in the environment to hold or break commits; both are off by default.

    FELTD_TEST_SLOW_COMMIT_MS sleeps that long before each commit. FELTD_TEST_CRASH_AT is
    `before:N` or `after:N`: the process kills itself before or after its N-th commit.
    """

    slow_commit_ms: int = 0
    crash: tuple[str, int] | None = None


class Setting(NamedTuple):
    """One field of Config as the command line, the environment and the file know it."""

    name: str
    flag: str
    env: str
    kind: type  # int, str, bool or tuple
    least: int | None
    most: int | None
    choices: tuple[str, ...]
    default: Any
    reason: str


class Loaded(NamedTuple):
    """The settings, and where each came from.

    That is `flag`, `environment`, `file`, `credential` or `default`.
    """

    config: Config
    sources: dict[str, str]


def settings() -> tuple[Setting, ...]:
    """Every setting, in the order of Config."""
    return _SETTINGS


def load(
    flags: Mapping[str, Any], env: Mapping[str, str] = os.environ, file: Path | None = None
) -> Loaded:
    """The settings from all four sources.

    `flags` holds text (or True) by field name, without those not given. Raises ConfigProblem in
    the words the operator knows the setting by.
    """
    written = _from_file(file) if file is not None else {}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for one in _SETTINGS:
        found = []
        if one.name in flags:
            found.append(("flag", _parsed(one, flags[one.name])))
        if one.env in env:
            found.append(("environment", _parsed(one, env[one.env])))
        if one.name in written:
            found.append(("file", _typed(one, written[one.name])))
        if one.name == "keyring" and (handed := credential(KEYRING, env)) is not None:
            found.append(("credential", handed))
        if not found:
            sources[one.name] = "default"
        elif one.name == "allowed_origins":
            values[one.name] = tuple(sorted({origin(text) for _, many in found for text in many}))
            sources[one.name] = " + ".join(source for source, _ in found)
        else:
            sources[one.name], values[one.name] = found[0]
    config = Config(**values)
    _verify(config)
    return Loaded(config, sources)


def hooks(env: Mapping[str, str] = os.environ) -> Hooks:
    """The hooks of a test, from the environment."""
    slow = env.get("FELTD_TEST_SLOW_COMMIT_MS", "0")
    point, _, number = env.get("FELTD_TEST_CRASH_AT", "").partition(":")
    crash = (point, int(number)) if point in ("before", "after") and number.isdigit() else None
    return Hooks(int(slow) if slow.isdigit() else 0, crash)


def origin(text: str) -> str:
    """An origin as a browser sends it, lower case: scheme, host, port. Raises ConfigProblem."""
    known = ORIGIN.fullmatch(text.lower())
    if known is None or not 0 < int(known["port"] or 1) <= 65_535:
        raise ConfigProblem(
            f"invalid --allow-origin {text!r}: name one exact origin such as "
            "https://console.example, without a path"
        )
    return text.lower()


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _verify(config: Config) -> None:
    """Refuse the combinations that cannot work or would fail open."""
    if config.heartbeat_timeout_ms < 2 * config.heartbeat_interval_ms:
        raise ConfigProblem("--heartbeat-timeout-ms must be at least twice --heartbeat-interval-ms")
    for network in config.trust_proxy:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise ConfigProblem(f"invalid --trust-proxy {network!r}: {error}") from error
    if (config.tls_cert is None) != (config.tls_key is None):
        raise ConfigProblem("--tls-cert and --tls-key come together")
    if config.fd is None:
        refuse_open_bind(config, "--host", config.host)


def refuse_open_bind(config: Config, flag: str, host: str) -> None:
    """Refuse an address outside loopback without one of the three ways to protect it.

    `flag` is what it was given by.
    """
    if is_loopback(host):
        return
    if config.no_auth:
        raise ConfigProblem(f"--no-auth needs a loopback {flag}, not {host}")
    if config.tls_cert is None and not config.trust_proxy and not config.insecure_http:
        raise ConfigProblem(
            f"{flag} {host} is outside loopback: give --tls-cert and --tls-key, or "
            "--trust-proxy CIDR, or --insecure-http"
        )


def _from_file(file: Path) -> dict[str, Any]:
    try:
        written = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigProblem(f"--config {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigProblem(f"--config {file} is not TOML: {error}") from error
    for name in written:
        if name not in {one.name for one in _SETTINGS}:
            raise ConfigProblem(f"--config {file} names an unknown setting {name!r}")
    return written


def _parsed(one: Setting, text: Any) -> Any:
    """A value given as text, by flag or environment."""
    if one.kind is int and isinstance(text, str) and WHOLE.fullmatch(text.strip()):
        return _typed(one, int(text))
    if one.kind is bool and isinstance(text, str) and text.strip().lower() in TRUTHS:
        return TRUTHS[text.strip().lower()]
    if one.kind is tuple and isinstance(text, str):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return _typed(one, text)


def _typed(one: Setting, value: Any) -> Any:
    """A value of the setting's own type, within its bounds."""
    if one.kind is tuple and isinstance(value, list | tuple):
        if all(isinstance(part, str) and "\0" not in part for part in value):
            return tuple(value)
    elif one.kind is bool and isinstance(value, bool):
        return value
    elif one.kind is int and isinstance(value, int) and not isinstance(value, bool):
        if one.least is not None and value < one.least:
            raise ConfigProblem(f"{one.flag} must be at least {one.least}")
        if one.most is not None and value > one.most:
            raise ConfigProblem(f"{one.flag} must be at most {one.most}")
        return value
    elif one.kind is str and isinstance(value, str) and value and "\0" not in value:
        if one.choices and value not in one.choices:
            raise ConfigProblem(f"{one.flag} must be one of {', '.join(one.choices)}")
        try:
            return msgspec.convert(value, _TYPES[one.name])
        except msgspec.ValidationError:
            raise ConfigProblem(f"invalid {one.flag}") from None
    raise ConfigProblem(f"invalid {one.flag}")


def _described() -> tuple[Setting, ...]:
    described = []
    for field in msgspec.structs.fields(Config):
        kind: Any = field.type.__origin__
        meta = field.type.__metadata__[0]
        bounds, choices = meta, ()
        plain: Any = getattr(kind, "__args__", (kind,))[0] if kind != tuple[str, ...] else tuple
        if isinstance(plain, str):
            choices, plain = kind.__args__, str
        elif hasattr(plain, "__metadata__"):
            bounds, plain = plain.__metadata__[0], plain.__origin__
        flag = FLAG_OF.get(field.name, "--" + field.name.replace("_", "-"))
        described.append(
            Setting(
                field.name,
                flag,
                "FELTD_" + field.name.upper(),
                plain,
                bounds.ge,
                bounds.le,
                choices,
                field.default,
                meta.description or "",
            )
        )
    return tuple(described)


_TYPES = {field.name: field.type for field in msgspec.structs.fields(Config)}
_SETTINGS = _described()
