"""The tables of the README that are read off the code: `python -m tests.tidy.tables` writes them.

Each stands between two marks; a test compares what stands there with what would be written.
"""

import sys
from collections.abc import Callable

import msgspec

from feltd.api.app import routes as daemon_routes
from feltd.config import FLAG_OF, Config
from feltd.errors import TABLE
from tests.tidy.source import ROOT

README = ROOT / "README.md"


def errors() -> str:
    """One row per code."""
    rows = ["| code | status | `next` | what it means |", "|---|---|---|---|"]
    rows += [f"| {row.code} | {row.status} | {row.next} | {row.title} |" for row in TABLE.values()]
    return "\n".join(rows)


def settings() -> str:
    """One row per setting of the daemon."""
    rows = ["| flag | environment | default | bounds | what and why |", "|---|---|---|---|---|"]
    for field in msgspec.structs.fields(Config):
        flag = FLAG_OF.get(field.name, "--" + field.name.replace("_", "-"))
        told = msgspec.inspect.type_info(field.type)
        bounds = ""
        description = ""
        if isinstance(told, msgspec.inspect.Metadata):
            description = (told.extra_json_schema or {}).get("description", "")
            told = told.type
        if isinstance(told, msgspec.inspect.IntType) and told.ge is not None:
            bounds = f"{told.ge:,} to {told.le:,}" if told.le is not None else f"≥ {told.ge:,}"
        if isinstance(told, msgspec.inspect.LiteralType):
            bounds = ", ".join(str(value) for value in told.values)
        default = {None: "", (): "", False: "off"}.get(field.default, f"{field.default}")
        name = "FELTD_" + field.name.upper()
        rows.append(f"| `{flag}` | `{name}` | {default} | {bounds} | {description} |")
    return "\n".join(rows)


def routes() -> str:
    """One row per call."""
    rows = ["| call | key | what it does |", "|---|---|---|"]
    words = {"none": "none", "any": "any", "worker": "worker key"}
    for route in daemon_routes(Config()):
        key = f"`{route.scope}`" if route.scope else words.get(route.auth, route.auth)
        rows.append(f"| `{route.method} {route.path}` | {key} | {route.summary} |")
    return "\n".join(rows)


TABLES: dict[str, Callable[[], str]] = {"errors": errors, "settings": settings, "routes": routes}


def rendered(text: str) -> str:
    """The README with its tables as the code has them now."""
    for name, table in TABLES.items():
        begin, end = f"<!-- table: {name} -->", f"<!-- end: {name} -->"
        before, rest = text.split(begin, 1)
        _old, after = rest.split(end, 1)
        text = f"{before}{begin}\n{table()}\n{end}{after}"
    return text


def main() -> None:
    """Write the tables into the README."""
    README.write_text(rendered(README.read_text()))
    sys.stdout.write("README.md: tables written\n")


if __name__ == "__main__":
    main()
