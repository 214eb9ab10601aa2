"""The house keeps its shape: which room may import which, how large a room may grow."""

import ast
import re
import subprocess

from feltd.api.explain import EXPLANATIONS
from feltd.errors import NEXTS, TABLE
from tests.tidy.source import PACKAGE, ROOT, functions, imports, length, modules

LINES_MAX = 400
FUNCTION_LINES_MAX = 60
COLUMNS_MAX = 100

LEAVES = {"errors", "clock"}

#: What each room may import beside itself and the leaves. `daemon` and `cli` may import any.
ARROWS = {
    "errors": set(),
    "clock": set(),
    "model": set(),
    "config": {"model"},
    "store": set(),
    "identity": {"model", "store", "config"},
    "mesh": {"identity", "model", "store", "config"},
    "state": {"mesh", "identity", "model", "store", "config"},
    "executor": {"worker", "model"},
    "api": {"state", "mesh", "identity", "model", "store", "config", "worker"},
    "keeper": {"state", "mesh", "identity", "store", "model", "config"},
    "worker": {"model"},
    "console": {"api", "state", "mesh", "identity", "model", "store", "config"},
}

#: Rules read no clock, make no randomness, wait for nothing.
BANNED_IN_RULES = {"time", "random", "secrets", "asyncio", "threading", "os", "socket", "uuid"}


def room_of(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "feltd" else None


def test_arrows_between_rooms_go_one_way() -> None:
    wrong = []
    for module in modules():
        if module.room in {"daemon", "cli", "__main__", "feltd"}:
            continue
        allowed = ARROWS[module.room] | LEAVES | {module.room}
        for name in imports(module, at_run_time=True):
            room = room_of(name)
            inside = room and ((PACKAGE / room).exists() or (PACKAGE / f"{room}.py").exists())
            if inside and room not in allowed:
                wrong.append(f"{module.place} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_rules_import_nothing_but_the_transaction_from_the_store() -> None:
    wrong = [
        f"{module.place} imports {name}"
        for module in modules()
        if module.room in {"mesh", "identity", "state"}
        for name in imports(module)
        if name.startswith("feltd.store.")
        and not name.startswith(("feltd.store.tx", "feltd.store.dialect"))
    ]
    assert not wrong, "\n".join(wrong)


def test_rules_read_no_clock_and_make_no_randomness() -> None:
    wrong = []
    for module in modules():
        if module.room not in {"mesh", "identity", "state"}:
            continue
        wrong += [
            f"{module.place} imports {name}"
            for name in imports(module)
            if name.split(".")[0] in BANNED_IN_RULES
        ]
        wrong += [
            f"{module.place}:{node.lineno} is asynchronous"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.AsyncFunctionDef | ast.Await)
        ]
        if re.search(r"datetime\.now|LeaseClock\(|wall_ms\(\)|boot_ms\(\)", module.text):
            wrong.append(f"{module.place} reads a clock")
    assert not wrong, "\n".join(wrong)


def test_only_the_store_opens_a_database() -> None:
    wrong = [
        module.place
        for module in modules()
        if module.room != "store" and re.search(r"sqlite3\.connect|aiosqlite", module.text)
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_server_touches_the_inside_of_hypercorn() -> None:
    wrong = [
        module.place
        for module in modules()
        if module.name not in {"feltd.api.server", "feltd.api.protocol", "feltd.api.websocket"}
        and any(name.startswith("hypercorn") for name in imports(module))
    ]
    assert not wrong, "\n".join(wrong)


def test_files_and_functions_stay_small() -> None:
    wrong = []
    for module in modules():
        lines = module.text.count("\n")
        if lines > LINES_MAX:
            wrong.append(f"{module.place} has {lines} lines")
        wrong += [
            f"{module.place}:{function.lineno} {function.name} has {length(function)} lines"
            for function in functions(module)
            if length(function) > FUNCTION_LINES_MAX
        ]
        wrong += [
            f"{module.place}:{number} is {len(line)} wide"
            for number, line in enumerate(module.text.splitlines(), 1)
            if len(line) > COLUMNS_MAX
        ]
    assert not wrong, "\n".join(wrong)


def test_every_file_opens_with_what_it_is_for() -> None:
    wrong = [module.place for module in modules() if not ast.get_docstring(module.tree)]
    assert not wrong, "\n".join(wrong)


def test_public_functions_say_what_their_signature_cannot() -> None:
    wrong = [
        f"{module.place}:{node.lineno} {node.name}"
        for module in modules()
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_is_dead() -> None:
    used: set[str] = set()
    everything = ""
    for module in modules():
        used |= {name for name in imports(module) if name.startswith("feltd")}
        everything += module.text
    dead = [
        module.place
        for module in modules()
        if module.path.name not in {"__init__.py", "__main__.py"}
        and module.name not in used
        and f"{module.name}:" not in everything
    ]
    assert not dead, "\n".join(dead)


def test_nothing_is_left_unfinished() -> None:
    marks = re.compile(r"NotImplementedError|\b(TODO|FIXME|XXX)\b|# stub")
    wrong = [module.place for module in modules() if marks.search(module.text)]
    assert not wrong, "\n".join(wrong)


def test_the_top_level_holds_what_it_shall_and_no_more() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    top = {name.split("/")[0] for name in tracked if not name.startswith(".")}
    assert top <= {"pyproject.toml", "README.md", "feltd", "migrations", "tests", "systemd"}


def test_every_refusal_has_one_row_and_one_explanation() -> None:
    assert set(TABLE) == set(EXPLANATIONS)
    assert {row.next for row in TABLE.values()} <= set(NEXTS)
